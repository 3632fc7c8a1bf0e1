"""The command line. Each verb has its own module, imported only when it is typed."""
