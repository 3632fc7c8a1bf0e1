"""Finding, checking and running plugins. Importing this package imports neither torch nor any plugin."""
