"""The benchmark of the field: posed instances, a checker that needs nothing, best-known answers, frozen releases.

docs/benchmark.md is its specification. `check.py` is for everybody, and imports nothing of ours.
"""
