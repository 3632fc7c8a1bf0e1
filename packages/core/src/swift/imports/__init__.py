"""Configurations of other programs, read into swift's own: `swift config import`.

Each program has a file with a table: their key, and what becomes of it here. `sources` reads files and commands and
finds out whose they are, `carrying` gathers what a table says, and `write` makes the YAML of it.
"""
