"""Says where results lie, and writes them: a document as JSON, and beside it the page that is made of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).parents[1] / "results"


def write_results(path: Path, document: Mapping[str, Any], page: str = "") -> None:
    """Writes a document of results, and its page, if it has one, under the same name with the suffix `.md`."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")
    if page:
        path.with_suffix(".md").write_text(page)
