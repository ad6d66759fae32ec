"""How many calls it takes: few where nothing can explain what differs, all where something may."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.judge.allowances import Further, Kept, Spread  # noqa: E402 - same
from npufix.rewriters.verification.judge.enough import list_runs  # noqa: E402 - same
from npufix.rewriters.verification.judge.judge import Judge  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Iterator

SCALED = '''
def scaled(x):
    """x (batch, seq, dim)."""
    return x * 2
'''
ATTENDED = '''
def attended(x):
    """x (batch, seq, dim)."""
    return (x @ x.transpose(1, 2)).softmax(-1)
'''
SUMMED = """
def summed(model, loader):
    total = 0.0
    for x, y in loader:
        total += F.mse_loss(model(x), y).item()
    return total
"""
COUNTING = '''
import itertools
NUMBERS = itertools.count()

def scaled(x):
    """x (batch, seq, dim)."""
    return x * 2 + next(NUMBERS)
'''


# of an order that is no permutation, some rows are left as they are in memory
UNPERMUTED = '''
def unpermute(expert_out, order):
    """expert_out: (N, D), order: (N,) long permutation of 0 to N - 1"""
    out = torch.empty_like(expert_out)
    out[order] = expert_out
    return out
'''


@pytest.mark.parametrize(
    ("text", "old", "same", "other", "times"),
    [
        (SCALED, "x * 2", "x + x", "x * 3", 2),
        (SUMMED, "total +=", "total = total +", "total =", 1.5),  # no argument is a tensor
    ],
)
def test_what_no_case_explains_is_not_looked_at_in_all_of_them(
    text: str, old: str, same: str, other: str, times: float
) -> None:
    right, wrong = (verdict(text, (old, new)) for new in (same, other))
    assert (right.status, wrong.status) == (Status.EQUIVALENT, Status.REFUTED)
    assert wrong.cases * times < right.cases


def test_what_differs_in_few_cases_is_found_behind_all_that_agree() -> None:
    found = verdict(SCALED, ("x * 2", "x * 2 if len(x) > 1 else x * 3"))
    assert found.status is Status.REFUTED


def test_of_what_float32_has_refuted_no_half_is_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    dtypes = torch.float32, torch.bfloat16, torch.float16
    enough = "npufix.rewriters.verification.judge.enough.choose_dtypes"
    monkeypatch.setattr(enough, lambda case, _: dtypes[:1] if case == 9 else dtypes)
    refuted, others = (list(list_runs(range(10), None, lambda r=r: r)) for r in (True, False))  # type: ignore[arg-type]
    assert refuted == [*((n, dtypes) for n in range(8)), (8, dtypes[:1]), (9, dtypes[:1])]
    assert others == [*refuted, (8, dtypes[1:])]


def test_numbers_that_the_original_does_not_repeat_end_nothing() -> None:
    found = verdict(COUNTING, ("x * 2 + next(NUMBERS)", "x + x + next(NUMBERS) * 3"))
    assert found.status is not Status.EQUIVALENT


def test_memory_that_nobody_has_written_to_refutes_nothing() -> None:
    changed = "    return expert_out[torch.argsort(order)]\n"
    found = verdict(UNPERMUTED, (UNPERMUTED.partition('"""\n')[2], changed))
    assert found.status is not Status.REFUTED, found


def test_sizes_that_are_equal_by_chance_become_small_one_by_one() -> None:
    # Of one key, the weights are 1 either way: a batch of one has to have two of them.
    found = verdict(ATTENDED, (".softmax(-1)", ".mul(0.1).softmax(-1)"))
    assert "for x=float[1, 2, 1]" in found.reason


@pytest.mark.parametrize(
    ("dtype", "off", "certain", "times"),
    [
        (torch.float32, 1e-6, False, 1),
        (torch.float32, 1.0, True, 1),
        (torch.float32, 1.0, False, 1 << 16),  # of much, the end is soon enough
        (torch.bfloat16, 1.0, False, 1),  # half dtypes may overflow, or cancel
    ],
)
def test_what_other_cases_may_excuse_is_not_certain(
    dtype: torch.dtype,
    off: float,
    certain: bool,  # noqa: FBT001 - a parameter of the test
    times: int,
) -> None:
    judge, value = Judge(), torch.tensor([1.0, 2.0] * times, dtype=dtype)
    seen = (value, value + off, value.double())
    before, after, exact = (CallRecord(tensors={"result": one}) for one in seen)
    judge.add("x", 2, before, after, lambda: exact)
    assert bool(judge.find_certain()) is certain
    judge.decide()
    assert judge.differences


@pytest.mark.parametrize(
    ("off", "spread", "certain", "questions"),
    [
        (0.5, 0.0, True, 1),  # and the others beside it are asked of nothing
        (0.5, 0.5, False, 2),  # rounding alone: two are enough to leave it to the end
        (0.001, 0.0, False, 0),  # of the largest gradient, no share
    ],
)
def test_gradients_that_are_far_off_are_certain(
    off: float,
    spread: float,
    certain: bool,  # noqa: FBT001 - a parameter of the test
    questions: int,
) -> None:
    judge, asked = Judge(), []

    def seen(*values: float) -> CallRecord:
        return CallRecord(tensors={"gradient of x": torch.tensor(values)})

    def other() -> Spread:
        asked.append(1)
        return Spread(seen(1.0, 2.0), [seen(1.0 + spread, 2.0)])

    exact = CallRecord(tensors={"gradient of x": torch.tensor([1.0, 2.0], dtype=torch.float64)})
    for case in "abc":
        before, after = seen(1.0, 2.0), seen(1.0 + off, 2.0)
        judge.add(case, 2, before, after, lambda: exact, further=Further(other))
    assert bool(judge.find_certain()) is certain
    assert len(asked) == questions


@pytest.mark.parametrize(
    ("patched", "asks", "differs"),
    [
        (1.0, False, False),
        (1.0391, True, False),  # as far off as the original is in the other case
        (3.0, False, True),
    ],
)
def test_same_numbers_are_held_against_float64_where_that_is_decisive(
    patched: float,
    asks: bool,  # noqa: FBT001 - a parameter of the test
    differs: bool,  # noqa: FBT001 - same
) -> None:
    judge, asked = Judge(), []

    def seen(value: float, dtype: torch.dtype = torch.bfloat16) -> CallRecord:
        return CallRecord(tensors={"result": torch.tensor([value], dtype=dtype)})

    def exact() -> CallRecord:
        asked.append(1)
        return seen(1.03, torch.float64)

    judge.add("same", 1, seen(1.0), seen(1.0), exact)
    judge.add("other", 1, seen(1.0), seen(patched), lambda: seen(1.0, torch.float64))
    judge.decide()
    assert bool(judge.differences) is differs
    assert bool(asked) is asks
    (measure,) = judge.measures(set())
    if not (asks or differs):  # of what is the same everywhere, one case tells how far off it is
        assert measure.error_original == measure.error_patched == pytest.approx(0.03 / 1.03)


@pytest.mark.parametrize(("noises", "rounded"), [((0.25, 9.0), 1), ((0.0, 0.25), 2)])
def test_no_more_roundings_are_tried_than_explain_a_difference(
    noises: tuple[float, ...], rounded: int
) -> None:
    asked = list[float]()

    def seen(value: float) -> CallRecord:
        return CallRecord(tensors={"result": torch.tensor([value])})

    def round_otherwise() -> Iterator[CallRecord]:
        for noise in noises:
            asked.append(noise)
            yield seen(1.0 + noise)

    spread, judge = Spread(seen(1.0), Kept(round_otherwise())), Judge()
    for case in "ab":
        judge.add(case, 1, seen(1.0), seen(1.5), lambda: seen(1.0), further=Further(lambda: spread))
    judge.decide()
    assert judge.differences == []
    assert len(asked) == rounded  # of both


@pytest.mark.parametrize("sure", [torch.float32, torch.int64])
@pytest.mark.parametrize("refutes", [True, False])
def test_halves_are_asked_of_no_rounding_where_other_results_refute(
    sure: torch.dtype,
    refutes: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    judge, asked = Judge(), list[str]()
    for dtype in (torch.float16, sure, sure):

        def seen(value: float, kind: torch.dtype = dtype) -> CallRecord:
            return CallRecord(tensors={"result": torch.tensor([value], dtype=kind)})

        further = Further(lambda name=str(dtype): asked.append(name))  # type: ignore[misc] # a default binds it
        judge.add("a", 1, seen(1.0), seen(4.0), lambda: seen(1.0, torch.float64), further=further)
    judge.decide(refutes=lambda: refutes)
    assert [d.what for d in judge.differences] == ["result"] * 3
    assert asked == ([str(sure)] if refutes else [str(sure), str(sure), "torch.float16"])


def test_what_is_beyond_noise_a_few_times_is_not_asked_again() -> None:
    judge, asked = Judge(), list[float]()

    def seen(value: float, dtype: torch.dtype = torch.bfloat16) -> CallRecord:
        return CallRecord(tensors={"result": torch.tensor([1.0, value], dtype=dtype)})

    def other(off: float) -> Spread:
        asked.append(off)
        return Spread(seen(2.0), [seen(2.0)])

    for off in (0.25, 0.5, 1.0, 2.0, 4.0):
        further = Further(lambda off=off: other(off))  # type: ignore[misc] # a default binds it
        exact = lambda: seen(2.0, torch.float64)  # noqa: E731 - one expression
        judge.add(str(off), 2, seen(2.0), seen(2.0 + off), exact, further=further)
    judge.decide()
    assert asked == [4.0, 2.0, 1.0]  # the worst first
    assert len(judge.differences) == 5
