"""The fuzzer runs, finds what is broken, and finds nothing in a few inputs of each cheap reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from benchmarks.fuzz import mutations
from benchmarks.fuzz.targets import TARGETS, Target
from benchmarks.fuzz.worker import Fuzzer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.xdist_group("fuzz")
CHEAP = (
    "step-trace-time", "memory-record", "l2-cache", "communication",
    "profiler-info", "summary", "diff", "baseline", "configuration",
)  # fmt: skip
_HANGING = 1800
"""Seconds; a slow machine gets through as well."""


@pytest.mark.parametrize("name", CHEAP)
def test_no_input_of_this_seed_breaks_it(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    alone = Target(name, target.path, target.mutate, target.seeds, target.quick, pack=target.pack)
    (tmp_path / "work").mkdir()
    outcome = Fuzzer(alone, tmp_path / "work", start=7).run(_HANGING, inputs=40)
    assert {where: crash.text for where, crash in outcome.crashes.items()} == {}
    assert outcome.inputs >= 40
    assert outcome.lines > outcome.lines_of_seeds > 0, "changed inputs reach nothing new"


def _reads_a_number(path: Path) -> None:
    if b"," not in path.read_bytes():
        raise ZeroDivisionError


def _writes_elsewhere(path: Path) -> None:
    Path("/sys/npufix-fuzz").write_bytes(path.read_bytes())


def _takes_memory(_path: Path) -> None:
    np.empty(4 << 30, np.uint8)  # which fills no page: the first input has no limit of memory


def _takes_forever(path: Path) -> None:
    while path:
        pass


@pytest.mark.parametrize(
    ("broken", "where", "inputs"),
    [
        (_reads_a_number, "ZeroDivisionError", 150),
        (_writes_elsewhere, "touches open '/sys/npufix-fuzz'", 1),
        (_takes_memory, "MemoryError", 2),
        (_takes_forever, "too slow in _takes_forever", 2),
    ],
)
def test_what_is_broken_is_found(
    broken: Callable[[Path], None],
    where: str,
    inputs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if broken is _takes_forever:
        monkeypatch.setattr("benchmarks.fuzz.worker.SECONDS", 0.05)
    (tmp_path / "work").mkdir()
    target = Target("x", "x.csv", mutations.of_lines, lambda: [b"a,b,c"], broken)
    outcome = Fuzzer(target, tmp_path / "work", start=1).run(_HANGING, inputs=inputs)
    (crash,) = outcome.crashes.values()
    assert where in crash.where
    if broken is not _writes_elsewhere:
        assert len(crash.data) < 2, "it is made smaller"


def test_the_same_seed_tries_the_same(tmp_path: Path) -> None:
    tried: list[list[bytes]] = []
    for folder in (tmp_path / "a", tmp_path / "b"):
        folder.mkdir()
        seen: list[bytes] = []
        target = Target(
            "x", "x.csv", mutations.of_lines, lambda: [b"a,b\n1,2\n"],
            lambda path, seen=seen: seen.append(path.read_bytes()),
        )  # fmt: skip
        Fuzzer(target, folder, start=3).run(_HANGING, inputs=30)
        tried.append(seen)
    assert tried[0] == tried[1]
    assert len(set(tried[0])) > 20


def test_what_was_kept_is_tried_again(tmp_path: Path) -> None:
    target = Target("x", "x.csv", mutations.of_lines, lambda: [b"a,b,c"], _reads_a_number)
    for name, inputs in (("first", 150), ("second", 1)):
        (tmp_path / name).mkdir()
        fuzzer = Fuzzer(target, tmp_path / name, start=1, kept=tmp_path / "kept")
        (crash,) = fuzzer.run(_HANGING, inputs=inputs).crashes.values()
    assert crash.times == 1
