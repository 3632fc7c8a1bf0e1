"""Configuration of a run: its sections, and how a command line, a file or keywords become one."""
