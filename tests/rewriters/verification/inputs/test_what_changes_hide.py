"""Wrong changes that show in what two names share, in states, at zero, in a rare call."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.calls.values import Value  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.parameters import Parameter  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.several import guess_several  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.training.losses import is_ignored  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.usage import Use  # noqa: E402 - same
from npufix.rewriters.verification.judge.randomness import tell_draws_apart  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Callable

BOARD = """
def blank(rows: int, cols: int):
    return [[0] * cols for _ in range(rows)]
"""
SYNC = """
def sync(online: torch.nn.Module, target: torch.nn.Module, tau: float = 1.0):
    with torch.no_grad():
        for o, t in zip(online.parameters(), target.parameters()):
            t.copy_(tau * o + (1 - tau) * t)
"""
NOISED = """
import math
def step(x: torch.Tensor, a: float, before: float, eta: float = 0.0):
    '''x: (B, C); a < before, both in (0, 1).'''
    sigma = eta * math.sqrt((1 - before) / (1 - a) * (1 - a / before))
    return math.sqrt(1 - before - sigma**2) * x
"""
TIMED = """
def throughput(tokens: int, seconds: float):
    try:
        return tokens / seconds
    except ZeroDivisionError:
        return 0.0
"""
LOGGED = """
EVERY = 25

class Meter:
    def __init__(self):
        self.seen, self.total = 0, 0.0

    def update(self, loss: float):
        self.seen += 1
        self.total += loss
        if self.seen % EVERY == 0:
            self.total = 0.0
        return self.total
"""
FROZEN = """
class Frozen:
    def __init__(self, seed: int = 3):
        self.seed, self.state = seed, None

    def __enter__(self):
        self.state = torch.get_rng_state()
        torch.manual_seed(self.seed)
        return self

    def __exit__(self, *args):
        torch.set_rng_state(self.state)
"""
CLIPPED = """
def finish(params: list[torch.nn.Parameter], scale: float):
    for p in params:
        p.grad.div_(scale)
    return torch.nn.utils.clip_grad_norm_(params, 1.0)
"""
NOT_SCALED = "p.grad.div_(1.0)"


RESIDUAL = """
def residual(p: torch.Tensor, q: torch.Tensor):
    '''p, q: (V,) probabilities.'''
    left = (p - q).clamp(min=0)
    return torch.where(left.sum() > 0, left, p)
"""
SCALED = """
def scaled(x, **options):
    return x * options.get("scale", 2.0)
"""
LAPLACE = """
def laplace(u, x):
    first = torch.autograd.grad(u.sum(), x, create_graph=True)[0]
    return torch.autograd.grad(first[:, 0].sum(), x)[0][:, 0]
"""
LOOKUP = """
def lookup(table: dict[str, int], key: str):
    return table[key] if key in table else -1
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (BOARD, ("[[0] * cols for _ in range(rows)]", "[[0] * cols] * rows")),
        (SYNC, ("t.copy_(tau * o + (1 - tau) * t)", "t.data = tau * o.data + (1 - tau) * t.data")),
        (NOISED, ("1 - before - sigma**2", "1 - before")),
        (TIMED, ("return 0.0", "return 1.0")),
        (LOGGED, ("EVERY == 0", "EVERY == 1")),
        (FROZEN, ("torch.set_rng_state(self.state)", "torch.manual_seed(self.seed)")),
        (RESIDUAL, ("torch.where(left.sum() > 0, left, p)", "left")),
        (LOOKUP, ("table[key] if key in table else -1", "table.get(key) or -1")),
        (CLIPPED, ("p.grad.div_(scale)", NOT_SCALED)),
        (SCALED, ('options.get("scale", 2.0)', "2.0")),
    ],
)
def test_what_few_calls_show(code: str, change: tuple[str, str]) -> None:
    found = verdict(code, change)
    assert found.status is Status.REFUTED, found
    assert found.script


def test_what_gradients_are_taken_by_is_what_they_are_of() -> None:
    assert verdict(LAPLACE, ("(first[:, 0]", "(first[:, -1]")).status is Status.REFUTED


SHARED = """
def starts(sizes: list[int]):
    found = []
    for size in sizes:
        found.append([size])
    return found
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (SHARED, ("found.append([size])", "found += [[size]]")),
        (FROZEN, ("torch.set_rng_state(self.state)", "torch.random.set_rng_state(self.state)")),
    ],
)
def test_what_is_only_said_otherwise(code: str, change: tuple[str, str]) -> None:
    found = verdict(code, change)
    assert found.status is Status.EQUIVALENT, found


def _mix(seed: int, *, alike: bool) -> CallRecord:
    x, y = torch.arange(6.0).view(3, 2).sin(), torch.eye(3)
    source = torch.Generator().manual_seed(seed)
    orders = [torch.randperm(3, generator=source) for _ in range(2)]
    return CallRecord({"result[0]": x[orders[0]], "result[1]": y[orders[0 if alike else 1]]})


def test_what_is_shuffled_goes_together() -> None:
    def shifted(alike: bool) -> Callable[[int], CallRecord]:  # noqa: FBT001 - a parameter
        return lambda seed: _mix(seed + 5000, alike=alike)

    assert not tell_draws_apart(partial(_mix, alike=True), shifted(True))  # noqa: FBT003 - same
    assert not tell_draws_apart(partial(_mix, alike=False), shifted(False))  # noqa: FBT003 - same
    found = tell_draws_apart(partial(_mix, alike=True), shifted(False))  # noqa: FBT003 - same
    assert found.startswith("results go together otherwise, over ")


@pytest.mark.parametrize(
    ("draw", "words"),
    [
        (lambda x: x < 0.5, "result is zero in 10% of the elements in the original, in 5"),
        (lambda x: (x > 0.1) * 1.5, "the mean of result at "),
        (lambda x: 0.9 + 0.01 * x, "result is zero in 10% of the elements in the original, in 0%"),
    ],
)
def test_what_many_draws_show_is_said(
    draw: Callable[[torch.Tensor], torch.Tensor], words: str
) -> None:
    def run(seed: int, draw: Callable[[torch.Tensor], torch.Tensor]) -> CallRecord:
        drawn = torch.rand(40, 50, generator=torch.Generator().manual_seed(seed))
        return CallRecord({"result": draw(drawn).float()})

    keeps = partial(run, draw=lambda x: x > 0.1)
    assert not tell_draws_apart(keeps, lambda seed: keeps(seed + 5000))
    assert words in tell_draws_apart(keeps, lambda seed: run(seed + 5000, draw))


@pytest.mark.parametrize(
    ("annotation", "lengths"),
    [
        ("list[list[int]]", [3, 1, 2]),
        ("dict[str, list[float]] | None", [5, 5]),
        ("list[tuple[str, int]]", [2, 2, 2]),
    ],
)
def test_rows_are_of_several_lengths(annotation: str, lengths: list[int]) -> None:
    first = guess_several(Parameter("rows", annotation, None), Use())[0]
    assert isinstance(first, Value)
    assert list(map(len, first.value)) == lengths  # type: ignore[call-overload] # it is a list


def test_a_label_that_is_ignored_is_called_so() -> None:
    assert all(map(is_ignored, ("ignore", "ignore_index", "void_label", "pad_token_id")))
    assert not any(map(is_ignored, ("ignored_rows", "padding", "index")))
