"""Conversion of third-party configurations to swift's: `swift config import`.

Each program has a module with a table: its key → a rule. `sources` reads files and commands and detects the program,
`recipe` holds the state of an import, and `write` makes the YAML.
"""
