"""Limits count what code computes, not how long a busy machine takes to let it."""

from __future__ import annotations

import itertools
import subprocess
import sys
import time

import pytest

pytest.importorskip("torch", reason="torch is needed to verify changes")

from npufix.rewriters.verification import Job, Settings, verify
from npufix.rewriters.verification.sandbox import limits
from npufix.rewriters.verification.sandbox.job_processes import JobProcesses
from npufix.rewriters.verification.sandbox.limits import ExpiredError, alarm
from npufix.rewriters.verification.sandbox.messages import Answer, Reply
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers import parent
from npufix.rewriters.verification.workers.backends import Backend

ONLY_LINUX = pytest.mark.skipif(sys.platform != "linux", reason="needs a process for each job")
JOB = Job("/user/m.py", "/user", "a", "b", "f", (1,), (1,))


def test_code_that_computes_is_stopped_by_its_own_clock() -> None:
    with pytest.raises(ExpiredError, match=r"within 0\.2 s"), alarm(0.2):
        for _ in itertools.count():
            pass


def test_code_that_waits_is_stopped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_LOOK_S", 0.02)
    with pytest.raises(ExpiredError), alarm(0.1):
        time.sleep(60)


def test_a_machine_that_lets_others_run_stops_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """A process that gets a little of every second is not one that waits."""
    monkeypatch.setattr(limits, "_LOOK_S", 0.02)
    clock = iter(n * 0.005 for n in range(1, 1_000_000))
    monkeypatch.setattr(limits.time, "process_time", lambda: next(clock))
    with alarm(0.1):  # five times as long by the wall's clock
        time.sleep(0.5)


@ONLY_LINUX
@pytest.mark.parametrize(("code", "wants"), [("while True: pass", True), ("input()", False)])
def test_only_code_that_could_not_compute_waits(code: str, *, wants: bool) -> None:
    """One that would compute is not to blame for a machine that gives it nothing."""
    with subprocess.Popen([sys.executable, "-c", code], stdin=subprocess.PIPE) as process:
        one = JobProcesses(None, None, None, processes=[process.pid])  # type: ignore[arg-type]
        until = time.monotonic() + 60
        while one.wants_processor is not wants and time.monotonic() < until:
            time.sleep(0.05)
        seen = one.wants_processor
        process.kill()
    assert seen is wants


@ONLY_LINUX
def test_an_endless_loop_costs_its_limit_once(monkeypatch: pytest.MonkeyPatch) -> None:
    text = (
        "def f(n: int):\n    while True:\n        try:\n            while True:\n"
        "                pass\n        except BaseException:\n            pass\n    return n + 1\n"
    )
    job = Job("/user/m.py", "/user", text, text.replace("n + 1", "1 + n"), "f", (2,), (2,))
    asked: list[Backend] = []
    real = parent._verify

    def note(jobs: object, settings: Settings, *rest: object) -> list[Verdict]:
        asked.append(settings.ground)
        return real(jobs, settings, *rest)  # type: ignore[arg-type]

    monkeypatch.setattr(parent, "_verify", note)
    (verdict,) = verify([job], Settings(), timeout_s=3)
    assert verdict.status is Status.NOT_VERIFIED
    assert "no verdict within 3 s of processor time" in verdict.reason
    assert asked == [Backend.REFERENCE]


@pytest.mark.parametrize("late", [True, False])
def test_another_ground_is_asked_for_what_broke_and_not_for_what_took_long(
    monkeypatch: pytest.MonkeyPatch, *, late: bool
) -> None:
    asked = []

    def replies(_jobs: object, left: list[int], settings: Settings, _limits: object) -> list[Reply]:
        asked.append(settings.ground)
        if settings.ground is Backend.VIRTUAL_NPU:
            return [Reply(number, lost="why", late=late) for number in left]
        found = Verdict(Status.EQUIVALENT, "torch", "f", cases=3, on="reference")
        return [Reply(number, Answer(found)) for number in left]

    monkeypatch.setattr(parent, "_replies", replies)
    told: list[str] = []
    settings = Settings(
        ground=Backend.VIRTUAL_NPU,
        fallback=Backend.REFERENCE,
        decided=lambda _job, verdict, total: told.append(f"{verdict.status.value} of {total}"),
    )
    (verdict,) = verify([JOB], settings)
    grounds = [Backend.VIRTUAL_NPU] if late else [Backend.VIRTUAL_NPU, Backend.REFERENCE]
    assert asked == grounds
    assert verdict.status is (Status.NOT_VERIFIED if late else Status.EQUIVALENT)
    assert told == [f"{verdict.status.value} of 1"]  # each is told once, when it is settled
