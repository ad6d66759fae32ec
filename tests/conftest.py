"""One thread per process: two workers on two cores, and sums that do not depend on either."""

from __future__ import annotations

import gc
import io
import os
import runpy
import sys
from contextlib import redirect_stdout
from typing import TYPE_CHECKING

import pytest
from hypothesis import HealthCheck, settings
from xdist.scheduler import LoadGroupScheduling

from npufix.rewriters.verification.sandbox.no_compiler import leave_out_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from xdist.remote import Producer

# Read by torch when it is imported; tensors of tests are too small to share out anyway.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# What is verified in the process of a test does without it too, as in a child: a tenth of the time.
leave_out_compiler()
# Tests read English, whatever the locale of whoever runs them.
os.environ["NPUFIX_LANG"] = "en"
# What one test measures corrects no prediction of another, and none of the user's.
os.environ["NPUFIX_CALIBRATION"] = "off"

_NEW_OBJECTS_BETWEEN_COLLECTIONS = 100_000
# Next to nothing of what is imported and made while tests are collected is garbage.
gc.disable()

# What a machine with other work takes says nothing, and no test remembers another run's examples.
settings.register_profile(
    "npufix",
    max_examples=50,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("npufix")


def pytest_collection_finish() -> None:
    """Have the collector look at what tests make, in forks of this process too, and at no test.

    And that seldom, as in the command: the trees of one file are more objects than Python's 700.
    """
    gc.enable()
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)
    gc.collect()
    gc.freeze()


class _Forgetting(LoadGroupScheduling):
    """Forgets what is done: xdist counts through all of it again after every test."""

    def _pending_of(self, workload: dict[str, dict[str, bool]]) -> int:
        for done in [scope for scope, unit in workload.items() if all(unit.values())]:
            del workload[done]
        return super()._pending_of(workload)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> _Forgetting | None:
    """Hand out tests by their groups, as ``--dist loadgroup`` does."""
    return _Forgetting(config, log) if config.getoption("dist") == "loadgroup" else None


@pytest.fixture(scope="session", autouse=True)
def _children() -> Iterator[None]:
    """Start what verifies once for all tests: each job has processes of its own all the same."""
    from npufix.rewriters.verification.workers.pool import keep_children

    with keep_children():
        yield


@pytest.fixture
def train(monkeypatch: pytest.MonkeyPatch) -> Callable[..., str]:
    """Return what runs the example program, or a changed copy, and returns what it prints.

    In this process: torch, and the compiler that its optimizers load, are there already.
    """

    def run(program: Path, *arguments: str) -> str:
        said = io.StringIO()
        with monkeypatch.context() as patched, redirect_stdout(said):
            patched.syspath_prepend(program)
            patched.setattr(sys, "argv", ["train.py", *arguments])
            try:
                runpy.run_path(str(program / "train.py"), run_name="__main__")
            finally:
                for name in [n for n in sys.modules if n.partition(".")[0] == "bert_like"]:
                    del sys.modules[name]
        return said.getvalue()

    return run
