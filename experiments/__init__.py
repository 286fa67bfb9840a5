"""Drivers that reproduce the project's claims; each runs with one command."""
