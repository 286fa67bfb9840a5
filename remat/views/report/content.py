"""Answers what readers ask of a file's content to know their own kind."""

from __future__ import annotations

from typing import Any, cast


def has(content: Any, *keys: str) -> bool:
    """Says whether the content is an object with all of these keys."""
    return isinstance(content, dict) and set(keys) <= cast(dict[str, Any], content).keys()


def is_rows(content: Any) -> bool:
    """Says whether the content is a list of rows; an empty list is a list of no rows."""
    return isinstance(content, list) and all(isinstance(row, dict) for row in cast(list[Any], content))


def described(content: Any) -> str:
    """Describes, for an error message, a content that no reader knows."""
    if isinstance(content, dict):
        document = cast(dict[str, Any], content)
        keys = ", ".join(repr(key) for key in list(document)[:8]) or "no keys"
        return f"JSON with {keys}{', ...' if len(document) > 8 else ''}"
    if is_rows(content):
        names = list(dict.fromkeys(key for row in content for key in row))
        return f"a table of {len(content)} rows with the columns {', '.join(map(str, names[:12])) or '(none)'}"
    return "neither JSON, CSV nor parquet" if content is None else f"JSON that is no object: {type(content).__name__}"
