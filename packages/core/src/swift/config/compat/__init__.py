"""Flags of other programs: what each sets here, which one line says that it changes nothing, and why one is refused."""
