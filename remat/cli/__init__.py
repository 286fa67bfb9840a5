"""Parses what users type after `remat`, and prints what they asked for; `import remat` does the work.

It may import every floor of the library, and nothing of the library imports it. Begin reading in `app`, which
names all commands: each has a file of its own, and what several of them take (`options`), read (`inputs`) and
print (`output`) stands beside them.
"""

from remat.cli.app import main

__all__ = ["main"]
