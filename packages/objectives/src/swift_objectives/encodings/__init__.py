"""Encodings of the objectives: how rows of data sets become samples."""
