"""`import swift` has no side effects: it installs no import hooks, replaces no modules, and starts no threads."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import gc, sys, threading

modules, finders, hooks = dict(sys.modules), list(sys.meta_path), list(sys.path_hooks)
import swift

assert sys.meta_path == finders and sys.path_hooks == hooks, "import hooks"
assert all(sys.modules.get(name) is module for name, module in modules.items()), "replaced modules"
added = {name.partition(".")[0] for name in sys.modules.keys() - modules.keys()} - sys.stdlib_module_names
assert added == {"swift"}, added
assert threading.enumerate() == [threading.main_thread()], "threads"
assert gc.isenabled(), "garbage collector"
"""


def test_import_swift_has_no_side_effects() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
