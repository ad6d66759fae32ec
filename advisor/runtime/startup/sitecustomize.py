"""Imported by Python when it starts, in the processes that a program of ``npufix run`` starts."""

from __future__ import annotations

import contextlib
import os
import sys
from importlib.machinery import PathFinder
from importlib.util import module_from_spec


def _own() -> None:
    """Import the ``sitecustomize`` that this one stands before, if there is one."""
    here = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - at start-up: no more imports
    sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != here]  # noqa: PTH100 - same
    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


if __name__ == "sitecustomize":
    if os.environ.get("NPUFIX_RUNNING"):
        with contextlib.suppress(ImportError):  # another Python, without npufix
            from npufix.advisor.runtime.children import start

            start()
    _own()
