"""What tests of which calls are made do without: those of the judge are of what halves round."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture
def few_in_halves(monkeypatch: pytest.MonkeyPatch) -> None:
    """Leave out the calls that are made again in halves, where all of them agree in float32.

    The first cases run in every dtype, and those of a dtype of their own do. Of a right change the
    others would take half the time, to ask once more whether such calls are sensible.
    """
    from npufix.rewriters.verification.judge import compare_versions, enough

    def list_runs(*asked: Any) -> Iterator[Any]:
        cases, original, _ = asked
        return enough.list_runs(cases, original, lambda: True)

    monkeypatch.setattr(compare_versions, "list_runs", list_runs)
