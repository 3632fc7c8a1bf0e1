"""Configurations of third-party programs in swift's keys: `swift config import`.

Each program has a module with a table: its key → a rule. `sources` reads files and commands and detects the program,
and `recipe` holds the state of an import.
"""
