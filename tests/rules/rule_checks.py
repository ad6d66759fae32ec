"""What the tests of single rules share: a mistake must be refuted by the rule's own inputs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

import pytest

from npufix.advisor.rules_test.computing import refute
from npufix.rules.substitution import Form

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from npufix.rewriters.verification.verdict import Verdict

    Mistake: TypeAlias = tuple[Callable[..., Any], Callable[..., Any], Callable[..., Any]]
    """A pattern, its inputs, and a replacement that is wrong."""


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
    verdict = refute(Form(pattern, mistake, inputs), seed)
    assert verdict is not None
    assert verdict.counterexample
    return verdict
