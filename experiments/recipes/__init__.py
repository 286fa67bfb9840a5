"""How to use remat in other people's training loops: `python -m experiments.recipes.NAME`; all: `.table`.

A recipe is one file, with the one line in it that matters; `beside` trains it with TorchInductor and with remat.
`table` runs all of them, and docs/recipes.md explains them. They are small random models, on CPUs, without a network.
"""
