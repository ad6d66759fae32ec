"""Methods that read what other methods of their class have written."""

from __future__ import annotations

from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from npufix.advisor.verify.changed_functions import find_touched  # noqa: E402 - needs torch
from npufix.rewriters.edit.job import Job  # noqa: E402 - same
from npufix.rewriters.verification.judge.verify_function import verify_function  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

if TYPE_CHECKING:
    from npufix.rewriters.verification.verdict import Verdict


def verdict(original: str, old: str, new: str) -> Verdict:
    before = "import torch\n" + dedent(original)
    assert old in before
    after = before.replace(old, new)
    (touched,) = [t for t in find_touched(before, after) if not t.reason]
    lines = touched.lines_original, touched.lines_changed
    job = Job("/user/m.py", "/user", before, after, touched.qualname, *lines, by_hand=True)
    return verify_function(job).verdict


RING = """
class Ring:
    def __init__(self, room: int, dim: int):
        self.rows = torch.zeros(room, dim)
        self.head = 0

    def push(self, row):
        self.rows[self.head] = row
        self.head = (self.head + 1) % self.rows.shape[0]

    def latest(self, n: int):
        at = (self.head - n + torch.arange(n)) % self.rows.shape[0]
        return self.rows[at]
"""


def test_what_others_have_written_is_read() -> None:
    found = verdict(RING, "(self.head - n + torch.arange(n))", "(torch.arange(n) - n)")
    assert found.status is Status.REFUTED, found
    assert "calls of push(row=float[8])" in found.reason
    assert "'push'" in found.script  # the program makes the calls as well
    assert "getattr(made, name)(**given)" in found.script


def test_another_way_to_read_it_is_equivalent() -> None:
    found = verdict(RING, "return self.rows[at]", "return self.rows.index_select(0, at)")
    assert found.status is Status.EQUIVALENT, found


def test_a_ring_is_filled_by_the_changed_method_itself() -> None:
    wraps = "(self.head + 1) % self.rows.shape[0]"
    found = verdict(RING, wraps, "min(self.head + 1, self.rows.shape[0] - 1)")
    assert found.status is Status.REFUTED, found


WINDOW = """
class Window:
    def __init__(self, size: int = 4):
        self.size = size
        self.items = []

    @property
    def full(self) -> bool:
        return len(self.items) >= self.size

    def add(self, loss: torch.Tensor):
        if self.full:
            self.items.pop(0)
        self.items.append(loss.detach())
"""


def test_a_property_is_read_when_it_is_just_full() -> None:
    test = "len(self.items) >= self.size"
    found = verdict(WINDOW, test, "len(self.items) > self.size")
    assert found.status is Status.REFUTED, found
    assert verdict(WINDOW, test, "not len(self.items) < self.size").status is Status.EQUIVALENT


MEAN = """
class Mean:
    def __init__(self, dim: int):
        self.total = torch.zeros(dim)
        self.count = 0

    def update(self, rows):
        self.total = self.total + rows.sum(0)
        self.count += rows.shape[0]

    def value(self):
        if self.count == 0:
            raise ValueError("nothing was counted")
        return self.total / self.count
"""


def test_what_is_refused_before_the_first_call_is_compared_after_it() -> None:
    found = verdict(MEAN, "self.total / self.count", "self.total / (self.count + 1)")
    assert found.status is Status.REFUTED, found
    assert verdict(MEAN, "self.total / self.count", "self.total.div(self.count)").status is (
        Status.EQUIVALENT
    )


def test_other_roundings_of_earlier_calls_refute_nothing() -> None:
    found = verdict(MEAN, "self.total + rows.sum(0)", "rows.flip(0).sum(0) + self.total")
    assert found.status is Status.EQUIVALENT, found
