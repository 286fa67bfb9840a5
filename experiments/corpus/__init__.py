"""Joint graphs of published models, as files: `python -m experiments.corpus` makes them again."""
