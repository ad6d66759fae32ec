"""Generators are gone through; samplers and planners of plain numbers are asked for much."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.advisor.verify.changed_functions import find_touched  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

WINDOWS = '''
def windows(x: torch.Tensor, size: int = 2):
    """x (B, T)"""
    for start in range(0, x.shape[1] - size + 1):
        yield x[:, start : start + size] * 2
'''
SAMPLER = """
class Sampler:
    def __init__(self, length: int, replicas: int = 2, rank: int = 0, seed: int = 0):
        self.length, self.replicas, self.rank, self.seed = length, replicas, rank, seed
        self.epoch = 0

    def set_epoch(self, epoch: int) -> None:
        self.epoch = epoch

    def __iter__(self):
        source = torch.Generator()
        source.manual_seed(self.seed + self.epoch)
        indices = torch.randperm(self.length, generator=source).tolist()
        total = -(-self.length // self.replicas) * self.replicas
        indices += indices[: total - len(indices)]
        return iter(indices[self.rank : total : self.replicas])
"""
PACK = """
def pack(lengths: list[int], most: int) -> list[list[int]]:
    bins: list[list[int]] = []
    room: list[int] = []
    for i in sorted(range(len(lengths)), key=lambda i: -lengths[i]):
        for b in range(len(bins)):
            if lengths[i] <= room[b]:
                bins[b].append(i)
                room[b] -= lengths[i]
                break
        else:
            bins.append([i])
            room.append(most - lengths[i])
    return bins
"""
NOISY = '''
def step(x: torch.Tensor, eta: float = 0.0, generator: torch.Generator | None = None):
    """x (B, D)"""
    if eta > 0:
        x = x + eta * torch.randn(x.shape, generator=generator, dtype=x.dtype)
    return x * 2
'''
MANAGER = """
import contextlib


@contextlib.contextmanager
def scaled(x: torch.Tensor):
    yield x * 2
"""
EVALUATING = """
import contextlib


@contextlib.contextmanager
def evaluating(model: torch.nn.Module):
    was = model.training
    model.eval()
    try:
        yield model
    finally:
        model.train(was)
"""
COROUTINE = "async def scaled(x):\n    return x * 2\n"


@pytest.mark.parametrize(
    ("original", "change"),
    [
        (WINDOWS, ("* 2", "* 3")),
        (WINDOWS, ("- size + 1)", "- size)")),
        (SAMPLER, ("self.seed + self.epoch", "self.seed")),
        (SAMPLER, ("indices[: total - len(indices)]", "indices[-1:] * (total - len(indices))")),
        (PACK, ("for b in range(len(bins))", "for b in reversed(range(len(bins)))")),
        (NOISY, ("x.shape, generator=generator, dtype", "x.shape, dtype")),
    ],
)
def test_what_is_given_one_by_one_is_compared(original: str, change: tuple[str, str]) -> None:
    found = verdict(original, change)
    assert found.status is Status.REFUTED, found
    assert found.script, found


def test_another_way_to_give_the_same_is_equivalent() -> None:
    whole = (
        "-(-self.length // self.replicas)",
        "((self.length + self.replicas - 1) // self.replicas)",
    )
    for original, change in (
        (WINDOWS, ("x[:, start : start + size]", "x.narrow(1, start, size)")),
        (SAMPLER, whole),
        (PACK, ("for b in range(len(bins)):", "for b, left in enumerate(room):")),
    ):
        found = verdict(original, change)
        assert found.status is Status.EQUIVALENT, found


def test_a_list_is_no_generator() -> None:
    both = "yield x[:, start : start + size] * 2", "parts.append(x[:, start : start + size] * 2)"
    first = "    for start", "    parts = []\n    for start"
    listed = WINDOWS.replace(*both).replace(*first) + "    return parts\n"
    found = verdict(WINDOWS, (WINDOWS, listed))
    assert found.status is Status.REFUTED, found
    assert "type of result" in found.reason


@pytest.mark.parametrize(
    ("original", "right", "wrong"),
    [
        (MANAGER, ("x * 2", "2 * x"), ("x * 2", "x * 3")),
        (EVALUATING, ("train(was)", "train(mode=was)"), ("train(was)", "train()")),
        (
            EVALUATING,
            ("was = model.training", "was = bool(model.training)"),
            ("    try:\n        yield model\n    finally:\n    ", "    yield model\n"),
        ),
    ],
)
def test_a_context_manager_is_entered_and_left(
    original: str, right: tuple[str, str], wrong: tuple[str, str]
) -> None:
    found = verdict(original, wrong)
    assert found.status is Status.REFUTED, found
    found = verdict(original, right)
    assert found.status is Status.EQUIVALENT, found


def test_a_coroutine_is_not_run() -> None:
    (touched,) = find_touched(COROUTINE, COROUTINE.replace("* 2", "* 3"))
    assert touched.reason == "a coroutine: calling it does not run it"
