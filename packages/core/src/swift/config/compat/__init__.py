"""Third-party flags: the keys that each sets here, and the notes and errors for those without a key."""
