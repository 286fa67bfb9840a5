"""What the pages of `docs/results/` say, for the tests that compare it with the committed rows."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
RESULTS = ROOT / "experiments" / "results"
PAGES = {path.stem: path.read_text() for path in sorted((ROOT / "docs" / "results").glob("*.md"))}
ALL_PAGES = "\n".join(PAGES.values())


def rows_of(name: str) -> list[dict[str, Any]]:
    """The committed rows of an experiment."""
    return json.loads((RESULTS / f"{name}.json").read_text())["rows"]


def section(heading: str, text: str = ALL_PAGES) -> str:
    """The text under a heading of level two or three, which one page has, up to the next heading of any level."""
    (found,) = re.findall(rf"^##+ {re.escape(heading)}\n(.*?)(?=^#+ |\Z)", text, re.MULTILINE | re.DOTALL)
    return found


def sentences(text: str) -> str:
    """The text in one line, so that a phrase is found wherever its lines break."""
    return " ".join(text.split())
