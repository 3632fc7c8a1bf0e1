"""The command line. Each command has its own module, imported only when it is typed."""
