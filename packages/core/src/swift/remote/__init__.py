"""Files and folders behind URLs, in any file system that fsspec opens: brought to this machine, and put there."""
