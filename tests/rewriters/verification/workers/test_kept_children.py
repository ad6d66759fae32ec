"""Children stay for the next verification, as long as they are what it would start."""

from __future__ import annotations

import os
from contextlib import closing
from typing import TYPE_CHECKING, cast

import pytest

from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification.sandbox.messages import Reply
from npufix.rewriters.verification.verdict import NOTHING_RUNS
from npufix.rewriters.verification.workers import parent, pool
from npufix.rewriters.verification.workers.pool import Limits, answer, keep_children

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

LIMITS = Limits(60.0, 1 << 30)


class Pretended:
    """A pool that starts nothing."""

    def __init__(self, *_: object) -> None:
        self.usable, self.closed = True, False

    def verify(self, _jobs: Sequence[Job], wanted: Sequence[int], _s: float) -> Iterator[Reply]:
        for number in wanted:
            yield Reply(number)

    def close(self) -> None:
        assert not self.closed
        self.closed = True


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> list[Pretended]:
    """Return the pools that are made."""
    found: list[Pretended] = []

    def make(*_: object) -> Pretended:
        found.append(Pretended())
        return found[-1]

    monkeypatch.setattr(pool, "Pool", make)
    monkeypatch.setattr(pool._Kept, "pools", None)
    return found


def ask(chip: str = "A2", wanted: Sequence[int] = (0,)) -> Iterator[Reply]:
    return answer("reference", chip, "", LIMITS, 0, [], wanted)


def test_without_a_block_they_end_with_their_verification(made: list[Pretended]) -> None:
    for _ in range(2):
        assert [reply.number for reply in ask()] == [0]
    assert [one.closed for one in made] == [True, True]


def test_in_a_block_they_end_with_it(made: list[Pretended]) -> None:
    with keep_children():
        with keep_children():
            list(ask())
        list(ask())
        assert [one.closed for one in made] == [False]
    assert [one.closed for one in made] == [True]


def test_another_environment_has_children_of_its_own(
    made: list[Pretended], monkeypatch: pytest.MonkeyPatch
) -> None:
    with keep_children():
        list(ask())
        monkeypatch.syspath_prepend("/elsewhere")
        list(ask())
        list(ask("A3"))  # and of three the first ends
        assert [one.closed for one in made] == [True, False, False]
    assert [one.closed for one in made] == [True, True, True]


def test_what_was_left_in_the_middle_or_is_broken_is_not_kept(made: list[Pretended]) -> None:
    with keep_children():
        with closing(ask(wanted=(0, 1))) as left:
            next(left)
        assert made[0].closed
        for _ in ask():
            made[1].usable = False
        assert made[1].closed


def test_a_forked_process_ends_what_it_starts_and_nothing_of_its_parent(
    made: list[Pretended],
) -> None:
    with keep_children():
        list(ask())
        process = os.fork()
        if not process:
            with keep_children():
                list(ask())
            os._exit([one.closed for one in made] != [False, True])
        assert os.waitstatus_to_exitcode(os.waitpid(process, 0)[1]) == 0
        assert [one.closed for one in made] == [False]


def test_a_function_that_does_not_run_is_asked_once(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[int] = []

    def refuse(*given: object) -> Iterator[Reply]:
        for number in cast("Sequence[int]", given[-1]):
            asked.append(number)
            why = "it took too long" if number == 3 else f"{NOTHING_RUNS}; most often: TypeError"
            yield Reply(number, lost=why)

    monkeypatch.setattr(parent, "answer", refuse)
    names = ("f", "f", "g", "h", "h")
    jobs = [Job("/m.py", "/", "old", f"new {n}", f, (n,), (n,)) for n, f in enumerate(names)]
    found = parent.verify(jobs)
    assert asked == [0, 2, 3, 4]
    assert [f.reason for f in found[:2]] == [f"{NOTHING_RUNS}; most often: TypeError"] * 2
    assert found[3].reason == "it took too long"
