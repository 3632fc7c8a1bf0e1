"""Files and folders behind URLs of any file system that fsspec opens: fetched to this machine, and uploaded."""
