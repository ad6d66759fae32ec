"""What the tests of single rules share: a mistake must be refuted by the rule's own inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from npufix.rewriters.verification.judge.verify_rule import verify_rule
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.substitution import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Mistake: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
    """A pattern, its inputs, and a replacement that is wrong."""

_FEW, _ALL = 6, 24
"""Rounds; what a rule is verified with is the larger number."""


def each_mistake(mistakes: Sequence[Mistake]) -> pytest.MarkDecorator:
    """Run a test with each ``mistake``, under the names of the pattern and what replaces it."""
    cases = [pytest.param(m, id=f"{m[0].__name__}-{m[2].__name__}") for m in mistakes]
    return pytest.mark.parametrize("mistake", cases)


def refuted(
    pattern: Callable[..., Any],
    inputs: Callable[..., Any],
    mistake: Callable[..., Any],
    seed: int = 0,
) -> Verdict:
    """Return the verdict on a wrong replacement: a refutation, for most after a few rounds."""
    form = Form(pattern, mistake, inputs)
    verdict = verify_rule(form, seed, _FEW)
    if verdict.status is not Status.REFUTED:
        verdict = verify_rule(form, seed, _ALL)
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.counterexample
    return verdict
