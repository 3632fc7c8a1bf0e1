"""Looking at runs: everything is read from their folders, and nothing is written."""
