"""Data sets as they lie on disk or on a hub: what a name stands for, and the rows that are read from it."""
