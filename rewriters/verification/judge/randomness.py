"""Compare code that draws random numbers with code that draws others: by mean and variance.

With one seed, ``F.dropout`` of the probabilities and a fused kernel that drops them itself draw
different numbers. What they compute is then known from eval mode; that both drop as often is
known from many runs.
"""

from __future__ import annotations

import itertools
import re
import time
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.inputs.source.slicing import find_changed

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.calls.observe import CallRecord

_DRAWS = re.compile(r"\b(rand\w*|\w*bernoulli\w*|(?:normal|uniform)_?|multinomial|\w*[Dd]rop\w*)\(")
_RUNS = 48
_MORE_RUNS = 768
_MORE_S = 2.0
"""Of processor time: a coin of 0.4 is told from a fair one by many runs, which are often short."""
_MOST_NUMBERS = 20_000_000
"""Of all runs together: of what gives more, a few say enough, and memory is not for the others."""
_SIGMAS = 6.0
_VARIANCES = (0.6, 1.7)
"""The ratio of two variances of 48 runs each, pooled over all elements, stays well within."""
_ERRORS = 5.0
"""Where whole samples are dropped, few elements are independent: then variances vary as much."""
_TOGETHER = 1.7
"""What drops whole samples of n elements has n times the correlation of what drops elements; of two
samples of 48 runs of the same code one had 1.43 times that of the other at most, in 20,000."""
_BY_CHANCE = 0.005
_OFTEN = 3
"""Runs on either side of the mean: what happens once or twice goes together by chance."""
_CORNER = 4
"""Elements of each axis of which that is asked."""
_MOST_PAIRS = 6
_APART = 25.0
"""The square of the correlation of what is independent, times the runs: once in two million."""
_SEEN = 0.05
"""What two shares of zeros differ by where a person sees it."""
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


def draws_by_others(job: Job) -> bool:
    """Say whether the changed lines draw by other functions: ``rand`` for ``bernoulli_``."""
    before, after = find_changed(_DRAWS, job)
    return before != after


def tell_draws_apart(
    original: Callable[[int], CallRecord], patched: Callable[[int], CallRecord]
) -> str:
    """Return in what results and gradients of many runs do not vary alike, each and together."""
    until = time.process_time() + _MORE_S
    runs: list[list[Mapping[str, torch.Tensor]]] = [[], []]
    for count in (_RUNS, _MORE_RUNS):
        for seed in range(len(runs[0]), count):
            if seed >= _RUNS and time.process_time() > until:
                break
            for several, run in zip(runs, (original, patched), strict=True):
                several.append(_numbers(run(seed)))
        names = list(runs[0][0])
        if any(numbers.keys() != runs[0][0].keys() for several in runs for numbers in several):
            return "results or gradients are missing in some draws, of one version alone"
        for name in names:
            both = [[n[name] for n in several] for several in runs]
            if not _alike(*both):
                return _describe(name, *both)
        if not _vary_together(*runs):
            return f"results go together otherwise, over {len(runs[0])} draws"
        if _MORE_RUNS * sum(numbers.numel() for numbers in runs[0][0].values()) > _MOST_NUMBERS:
            return ""
    return ""


def _describe(name: str, left: Sequence[torch.Tensor], right: Sequence[torch.Tensor]) -> str:
    """Say what many draws show: how often there is a zero, the mean, the variance."""
    if {t.shape for t in left} != {t.shape for t in right} or len({t.shape for t in left}) > 1:
        return f"{name} is of other sizes in some draws"
    first, second = torch.stack(tuple(left)), torch.stack(tuple(right))
    over = f"over {len(first)} draws"
    zeros = [(side == 0).double().mean().item() for side in (first, second)]
    if abs(zeros[0] - zeros[1]) > _SEEN:
        return (
            f"{name} is zero in {zeros[0]:.0%} of the elements in the original, in {zeros[1]:.0%} "
            f"in the patched code, {over}"
        )
    means, variances = [s.mean(0) for s in (first, second)], [s.var(0) for s in (first, second)]
    error = ((variances[0] + variances[1]) / len(first)).sqrt() + 1e-5 * (1 + means[0].abs())
    sigmas = (means[0] - means[1]).abs() / error
    at = tuple((sigmas == sigmas.max()).nonzero()[0].tolist()) if sigmas.numel() else ()
    if sigmas.numel() and sigmas.max() > _SIGMAS:
        where = f" at {list(at)}" if at else ""
        mean, other = (side[at].item() for side in means)
        return (
            f"the mean of {name}{where} is {mean:.4g} in the original, {other:.4g} in the patched "
            f"code, {over}"
        )
    if not _vary_alike(first, second):
        spread, other = (side.mean().item() for side in variances)
        return (
            f"the variance of {name} is {spread:.4g} in the original, {other:.4g} in the patched "
            f"code, {over}"
        )
    return f"elements of {name} go together otherwise, {over}"


def _vary_together(*versions: Sequence[Mapping[str, torch.Tensor]]) -> bool:
    """Say whether two results of a call go together as much: inputs and labels in one new order.

    By the correlations of the signs of all their elements, which are by chance what few runs make.
    """
    names = sorted(n for n in versions[0][0] if n.startswith("result"))
    for one, other in itertools.islice(itertools.combinations(names, 2), _MOST_PAIRS):
        found: list[float] = []
        for runs in versions:
            sides = [_find_signs(torch.stack([r[name] for r in runs])) for name in (one, other)]
            if not all(side.numel() for side in sides):
                return True
            found.append((sides[0].T @ sides[1]).square().mean().item())
        if max(found) > _TOGETHER * min(found) + _APART / len(versions[0]):
            return False
    return True


def _find_signs(runs: torch.Tensor) -> torch.Tensor:
    """Return on which side of their means the elements that vary are, normalised."""
    corner = (slice(None), *[slice(_CORNER)] * (runs.dim() - 1))
    few = runs[corner].reshape(len(runs), -1)
    few = few[:, few.std(0) > 1e-5 * (1 + few.mean(0).abs())]
    above = (few - few.mean(0)).sign()
    above = above[:, ((above > 0).sum(0) - len(runs) / 2).abs() <= len(runs) / 2 - _OFTEN]
    return torch.nn.functional.normalize(above - above.mean(0), dim=0)


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
    slack = _SIGMAS * ((spread + other) / len(first)).sqrt() + 1e-5 * (1 + first.mean(0).abs())
    return bool((off <= slack).all() and _vary_alike(first, second)) and _go_together_alike(
        first, second
    )


def _vary_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether two variances are of one size, as far as so many runs can tell.

    Both variances are means over runs, of which the runs themselves say how far off they may be.
    """
    squares = [((runs - runs.mean(0)) ** 2).flatten(1).sum(1) for runs in (first, second)]
    total, other = (of_runs.mean().item() for of_runs in squares)
    error = sum(of_runs.var().item() / len(first) for of_runs in squares) ** 0.5
    low, high = _VARIANCES
    return low * total <= other <= high * total or abs(total - other) <= _ERRORS * error + 1e-9


def _go_together_alike(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Say whether elements are above their means together as often: whole samples, or each alone.

    By the mean of the squares of the correlations of all pairs; of signs, as outliers say little.
    Of a corner: among many samples, few pairs are of one.
    """
    corner = (slice(None), *[slice(_CORNER)] * (first.dim() - 1))
    first, second = (runs[corner].reshape(len(runs), -1) for runs in (first, second))
    varying = torch.ones(first.shape[1], dtype=torch.bool)
    for runs in (first, second):
        above = (runs > runs.mean(0)).sum(0)
        varying &= (above >= _OFTEN) & (above <= len(runs) - _OFTEN)
        varying &= runs.std(0) > 1e-5 * (1 + runs.mean(0).abs())
    if not bool(varying.any()):
        return True
    found: list[float] = []
    for runs in (first, second):
        above = (runs - runs.mean(0))[:, varying].sign()
        above = torch.nn.functional.normalize(above - above.mean(0), dim=0)
        squares = (above @ above.T).square().sum() / above.shape[1] ** 2
        found.append(squares.item() - 1 / (len(runs) - 1))  # what those have that are independent
    return max(found) <= _TOGETHER * min(found) + _BY_CHANCE
