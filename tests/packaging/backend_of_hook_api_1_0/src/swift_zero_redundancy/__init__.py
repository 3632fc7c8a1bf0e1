"""A backend for swift: data parallel, with the optimizer's state dealt out over the processes."""
