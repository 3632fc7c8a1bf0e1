"""Runs a module as `python -m` does, with further flags that stand in an environment variable.

A command line can be read by everybody on the machine, the environment of a process only by its owner. Started by its
path, with nothing but the standard library: `secret.py MODULE FLAGS...`.
"""

from __future__ import annotations

import json
import os
import runpy
import sys

VARIABLE = "SWIFT_SECRET_FLAGS"

if __name__ == "__main__":
    module, *flags = sys.argv[1:]
    del sys.path[0]  # of this file, where `-m` has the current folder
    sys.argv[1:] = [*flags, *json.loads(os.environ.pop(VARIABLE, "[]"))]
    runpy.run_module(module, run_name="__main__", alter_sys=True)
