"""The command line: what it does, `import remat` does; here are parsing and printing."""

from remat.cli.app import main

__all__ = ["main"]
