"""Parses the arguments of `remat`, and prints the results; `import remat` does the work.

This package may import all others, and no other package imports it. Begin reading in `app`, which names all commands.
Each command, or group of commands, has one file; `options`, `inputs` and `output` contain what several commands take,
read and print.
"""

from remat.cli.app import main

__all__ = ["main"]
