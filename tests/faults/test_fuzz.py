"""The fuzzer runs, finds what is broken, and finds nothing in a few inputs of each cheap reader."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.fuzz import mutations
from benchmarks.fuzz.targets import TARGETS, Target
from benchmarks.fuzz.worker import Fuzzer

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.xdist_group("fuzz")
CHEAP = (
    "step-trace-time", "memory-record", "data-preprocess", "communication",
    "profiler-info", "summary", "diff", "baseline", "configuration",
)  # fmt: skip


@pytest.mark.parametrize("name", CHEAP)
def test_no_input_of_this_seed_breaks_it(name: str, tmp_path: Path) -> None:
    target = TARGETS[name]
    alone = Target(name, target.path, target.mutate, target.seeds, target.quick, pack=target.pack)
    (tmp_path / "work").mkdir()
    outcome = Fuzzer(alone, tmp_path / "work", seed=7).run(60, inputs=40)
    assert {where: crash.text for where, crash in outcome.crashes.items()} == {}
    assert outcome.inputs >= 40
    assert outcome.lines > outcome.lines_of_seeds > 0, "changed inputs reach nothing new"


def _reads_a_number(path: Path) -> None:
    if b"," not in path.read_bytes():
        raise ZeroDivisionError


def _writes_elsewhere(path: Path) -> None:
    Path("/sys/npufix-fuzz").write_bytes(path.read_bytes())


def _takes_forever(path: Path) -> None:
    while path:
        pass


@pytest.mark.parametrize(
    ("broken", "where", "inputs"),
    [
        (_reads_a_number, "ZeroDivisionError", 150),
        (_writes_elsewhere, "touches open '/sys/npufix-fuzz'", 1),
        (_takes_forever, "too slow in _takes_forever", 1),
    ],
)
def test_what_is_broken_is_found(
    broken: Callable[[Path], None],
    where: str,
    inputs: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("benchmarks.fuzz.worker.SECONDS", 0.05)
    (tmp_path / "work").mkdir()
    target = Target("x", "x.csv", mutations.of_lines, lambda: [b"a,b,c"], broken)
    outcome = Fuzzer(target, tmp_path / "work", seed=1).run(60, inputs=inputs)
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
        Fuzzer(target, folder, seed=3).run(60, inputs=30)
        tried.append(seen)
    assert tried[0] == tried[1]
    assert len(set(tried[0])) > 20
