"""How long verifying will take, as it is said while it runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.console.progress_line import Countdown
from npufix.advisor.verify.settings import VerdictLines
from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification import Settings
from npufix.rewriters.verification.sandbox.messages import Answer, Reply
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers import parent
from npufix.rewriters.verification.workers.backends import Backend
from npufix.rewriters.verification.workers.cache import VerdictCache

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_the_rest_is_estimated_from_what_was_not_remembered() -> None:
    times = iter([0.0, 10.0, 30.0, 310.0])
    said: list[str] = []
    countdown = Countdown(said.append, lambda: next(times))
    for done in (4, 5, 6, 8):
        countdown(done, 8)
    assert said == [
        "Verifying: 4 of 8",
        "Verifying: 5 of 8, about 60 s left",
        "Verifying: 6 of 8, about 5 min left",
        "Verifying: 8 of 8",
    ]


def job(line: int) -> Job:
    return Job("/src/pkg/norm.py", "/src", "", "", "Norm.forward", (line,), (line,))


def test_each_of_several_verdicts_is_a_line_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    lines = VerdictLines(kept=True)
    lines(job(12), Verdict(Status.EQUIVALENT, "torch", "f", cases=9), 2)
    assert capsys.readouterr() == ("", "equivalent: pkg/norm.py:12 Norm.forward\n")
    lines(job(30), Verdict(Status.REFUTED, "torch", "f\x1b[2J", "why"), 2)
    assert capsys.readouterr().err == "refuted: pkg/norm.py:30 Norm.forward\n"
    lines(job(12), Verdict(Status.EQUIVALENT, "torch", "f", cases=9), 1)
    assert capsys.readouterr() == ("", "")  # the answer itself follows


@pytest.mark.parametrize(("kept", "said"), [(True, "1 verdict kept: the same"), (False, "")])
def test_an_interrupt_says_what_is_kept(
    capsys: pytest.CaptureFixture[str], *, kept: bool, said: str
) -> None:
    def interrupted() -> None:
        with VerdictLines(kept=kept) as lines:
            lines(job(1), Verdict(Status.EQUIVALENT, "torch", "f", cases=9), 1)
            lines(job(2), Verdict(Status.NOT_VERIFIED, "nothing ran", "f", "lost", on="none"), 1)
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        interrupted()
    assert said in capsys.readouterr().err


def test_what_is_decided_is_in_the_cache_when_the_next_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def replies(*_: object) -> Iterator[Reply]:
        yield Reply(0, Answer(Verdict(Status.EQUIVALENT, "torch", "f", cases=9)))
        raise KeyboardInterrupt

    pytest.importorskip("torch")
    monkeypatch.setattr(parent, "_replies", replies)
    settings = Settings(cache=VerdictCache(tmp_path))
    with pytest.raises(KeyboardInterrupt):
        parent.verify([job(1), job(2)], settings)
    assert settings.cache is not None
    assert settings.cache.get(job(1), Backend.REFERENCE, "A2") is not None
    assert settings.cache.get(job(2), Backend.REFERENCE, "A2") is None
