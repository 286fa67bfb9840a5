"""Makes the pages of the corpus from its index, so that they agree with it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from experiments.report.markdown import bullets, page, section, table
from remat.facts.corpus import Entry
from remat.words import human_bytes

# The introduction, how the graphs were made, and the introduction of the list.
_TEXTS = Path(__file__).with_name("about.txt").read_text().strip().split("\n\n%%\n\n")


def pages(entries: Sequence[Entry]) -> dict[str, str]:
    """Makes the pages, by the names of their files: one about the corpus, and one with a table for each family."""
    size = human_bytes(sum(entry.file_bytes for entry in entries))
    families = {
        family: [entry for entry in entries if entry.family == family]
        for family in dict.fromkeys(entry.family for entry in entries)
    }
    summed = [
        (name, len(of), min(entry.values for entry in of), max(entry.values for entry in of))
        for name, of in families.items()
    ]
    cited = dict.fromkeys(entry.cite for entry in entries if entry.cite)
    models = {cite: ", ".join(f"`{entry.name}`" for entry in entries if entry.cite == cite) for cite in cited}
    about = page(
        "Joint graphs of real models",
        _TEXTS[0],
        f"## {len(entries)} instances, {size}",
        table(("family", "instances", "values, least", "values, most"), summed),
        _TEXTS[1],
        bullets(f"{cite}: {names}" for cite, names in models.items()),
    )
    listed = (section(name, _family(of)) for name, of in families.items())
    return {"README.md": about, "LIST.md": page("Instances of the corpus", _TEXTS[2], *listed)}


def _family(entries: Sequence[Entry]) -> str:
    """Makes a table of the instances of one family."""
    rows = [
        (
            *(f"`{entry.name}`", entry.values, entry.uses, human_bytes(entry.no_recompute_saved_bytes)),
            *(entry.model, f"{entry.sizes}, {entry.dtype}"),
        )
        for entry in entries
    ]
    return table(("name", "values", "uses", "saved", "model", "sizes"), rows)
