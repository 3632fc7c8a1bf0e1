"""Flags and environment variables of third-party programs, for training and for each other command."""
