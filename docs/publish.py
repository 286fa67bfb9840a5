"""Puts a built site beside those of other versions: `python docs/publish.py build/site FOLDER 0.2.0`.

Each version has a folder of its name. Their list, `versions.json`, is what the sidebar of every version offers, and the
first page of all leads to the newest one that is no pre-release.
"""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path

from packaging.version import InvalidVersion, Version


def publish(site: Path, folder: Path, version: str) -> None:
    """Copies the site of a version into a folder of sites, in the place of an older copy, and lists all versions."""
    shutil.rmtree(folder / str(Version(version)), ignore_errors=True)
    shutil.copytree(site, folder / str(Version(version)))
    versions = sorted(filter(None, map(_version, folder.iterdir())), reverse=True)
    (folder / "versions.json").write_text(json.dumps([str(each) for each in versions]))
    newest = next((each for each in versions if not each.is_prerelease), versions[0])
    refresh = f'<meta http-equiv="refresh" content="0; url={newest}/index.html">'
    (folder / "index.html").write_text(f"<!doctype html><title>remat</title>{refresh}\n")
    (folder / ".nojekyll").touch()  # folders may begin with an underscore


def _version(folder: Path) -> Version | None:
    try:
        return Version(folder.name) if folder.is_dir() else None
    except InvalidVersion:
        return None


if __name__ == "__main__":
    publish(Path(sys.argv[1]), Path(sys.argv[2]), sys.argv[3])
