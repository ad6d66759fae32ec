"""Compare code that draws random numbers with code that draws others: by mean and variance.

With one seed, ``F.dropout`` of the probabilities and a fused kernel that drops them itself draw
different numbers. What they compute is then known from eval mode; that both drop as often is
known from many runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.rewriters.verification.calls.observe import CallRecord

_RUNS = 48
_SIGMAS = 6.0
_VARIANCES = (0.6, 1.7)
"""The ratio of two variances of 48 runs each, pooled over all elements, stays well within."""
_OTHER_SEED = 7919
_SEEDS = 8
"""A dropout may keep a single element under several seeds in a row."""


def is_random(first: CallRecord, run: Callable[[int], CallRecord], seed: int) -> bool:
    """Say whether another seed gives other results."""
    return any(_differs(first, run(seed + n * _OTHER_SEED)) for n in range(1, _SEEDS + 1))


def _differs(first: CallRecord, again: CallRecord) -> bool:
    return not again.error and any(
        value is not None
        and (other := again.tensors.get(name)) is not None
        and not torch.equal(value.nan_to_num(), other.nan_to_num())
        for name, value in first.tensors.items()
        if name.startswith("result")
    )


def drop_alike(original: Callable[[int], CallRecord], patched: Callable[[int], CallRecord]) -> bool:
    """Say whether results and gradients of many runs have the same mean and variance."""
    runs = [[_numbers(run(seed)) for seed in range(_RUNS)] for run in (original, patched)]
    names = set(runs[0][0])
    if any(set(numbers) != names for several in runs for numbers in several):
        return False
    return all(_alike(*([n[name] for n in several] for several in runs)) for name in names)


def _numbers(seen: CallRecord) -> Mapping[str, torch.Tensor]:
    return {
        name: value.double()
        for name, value in seen.tensors.items()
        if value is not None
        and value.is_floating_point()
        and name.startswith(("result", "gradient of "))
    }


def _alike(left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> bool:
    first, second = torch.stack(tuple(left)), torch.stack(tuple(right))
    if first.shape != second.shape:
        return False
    spread, other = first.var(0), second.var(0)
    off = (first.mean(0) - second.mean(0)).abs()
    slack = _SIGMAS * ((spread + other) / _RUNS).sqrt() + 1e-5 * (1 + first.mean(0).abs())
    low, high = _VARIANCES
    total, total_other = spread.sum().item(), other.sum().item()
    alike = low * total <= total_other <= high * total or max(total, total_other) < 1e-9  # noqa: PLR2004 - rounding
    return bool((off <= slack).all()) and alike
