"""Verdicts are kept as long as they hold, and jobs run at once without getting mixed up."""

from __future__ import annotations

from dataclasses import replace as changed
from typing import TYPE_CHECKING

import pytest
from verification_snippets import REPEAT

from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification import Settings, verify
from npufix.rewriters.verification.sandbox.messages import Answer
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.workers import cache as module
from npufix.rewriters.verification.workers.backends import Backend
from npufix.rewriters.verification.workers.cache import VerdictCache, user_folder

if TYPE_CHECKING:
    from pathlib import Path

JOB = Job("/user/m.py", "/user", "a", "b", "f", (1,), (1,))
VERDICT = Verdict(Status.REFUTED, "torch", "f", "why", 3, (), "x", script="print(1)")


@pytest.fixture
def cache(tmp_path: Path) -> VerdictCache:
    module._environment.cache_clear()  # other tests may have installed something since
    made = VerdictCache(tmp_path / "verdicts")
    made.put(JOB, Backend.REFERENCE, Answer(VERDICT))
    return made


def test_the_same_job_has_the_same_verdict(cache: VerdictCache) -> None:
    assert cache.get(JOB, Backend.REFERENCE) == VERDICT


@pytest.mark.parametrize(
    "other",
    [
        {"original": "c"},
        {"patched": "c"},
        {"path": "/user/n.py"},
        {"vouched": ("same-dtype",)},
        {"torch_npu_version": "2.1.0"},
    ],
)
def test_another_job_is_another_one(cache: VerdictCache, other: dict[str, str]) -> None:
    assert cache.get(changed(JOB, **other), Backend.REFERENCE) is None  # type: ignore[arg-type]
    assert cache.get(JOB, Backend.VIRTUAL_NPU) is None


def test_another_environment_is_another_one(
    cache: VerdictCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "find_installed", lambda name: f"{name} of tomorrow")
    module._environment.cache_clear()
    assert cache.get(JOB, Backend.REFERENCE) is None
    monkeypatch.undo()
    module._environment.cache_clear()
    assert cache.get(JOB, Backend.REFERENCE) == VERDICT


def test_a_verdict_ends_with_the_files_that_it_stands_on(
    cache: VerdictCache, tmp_path: Path
) -> None:
    other = tmp_path / "other.py"
    other.write_text("A = 1\n")
    cache.put(JOB, Backend.REFERENCE, Answer(VERDICT, (str(other),)))
    assert cache.get(JOB, Backend.REFERENCE) == VERDICT
    other.write_text("A = 2\n")
    assert cache.get(JOB, Backend.REFERENCE) is None


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b'{"verdict": 1}', b"\xff\x00" * 99])
def test_a_damaged_entry_is_no_entry(cache: VerdictCache, data: bytes) -> None:
    (entry,) = cache.folder.iterdir()
    entry.write_bytes(data)
    assert cache.get(JOB, Backend.REFERENCE) is None
    cache.put(JOB, Backend.REFERENCE, Answer(VERDICT))
    assert cache.get(JOB, Backend.REFERENCE) == VERDICT


def test_what_ran_out_of_time_is_tried_again(tmp_path: Path) -> None:
    cache = VerdictCache(tmp_path)
    cache.put(JOB, Backend.REFERENCE, Answer(VERDICT, lasting=False))
    assert not list(tmp_path.iterdir())


def test_a_folder_that_cannot_be_written_is_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    cache = VerdictCache(tmp_path / "file" / "verdicts")
    cache.put(JOB, Backend.REFERENCE, Answer(VERDICT))
    assert cache.get(JOB, Backend.REFERENCE) is None


def test_old_entries_go_and_nothing_half_written_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_ENTRIES", 8)
    cache = VerdictCache(tmp_path)
    for number in range(40):
        cache.put(changed(JOB, original=str(number)), Backend.REFERENCE, Answer(VERDICT))
    left = list(tmp_path.iterdir())
    assert 4 <= len(left) <= 9
    assert {entry.suffix for entry in left} == {".json"}
    assert cache.get(changed(JOB, original="39"), Backend.REFERENCE) == VERDICT


def test_the_folder_has_a_size_that_it_does_not_outgrow(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "_MOST_BYTES", 40_000)
    cache = VerdictCache(tmp_path)
    large = changed(VERDICT, script="x" * 10_000)
    for number in range(20):
        cache.put(changed(JOB, original=str(number)), Backend.REFERENCE, Answer(large))
    assert sum(entry.stat().st_size for entry in tmp_path.iterdir()) <= 40_000
    assert cache.get(changed(JOB, original="19"), Backend.REFERENCE) == large


def test_the_folder_is_the_one_of_the_system(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_folder() == tmp_path / "npufix" / "verdicts"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert user_folder() == tmp_path / ".cache" / "npufix" / "verdicts"


def test_jobs_run_at_once_and_keep_their_order(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    good = REPEAT.job(REPEAT.right[0])
    bad = REPEAT.job(next(iter(REPEAT.wrong.values())))
    text = "import os\ndef f(x):\n    os._exit(3)\n    return x * 2\n"
    crash = Job("/user/m.py", "/user", text, text.replace("x * 2", "x + x"), "f", (4,), (4,))
    seen: list[tuple[int, int]] = []
    settings = Settings(
        cache=VerdictCache(tmp_path),
        progress=lambda done, total: seen.append((done, total)),
        children=2,
    )
    jobs = [good, bad, crash, good]
    first = verify(jobs, settings)
    said = [verdict.status.value for verdict in first]
    assert said == ["equivalent", "refuted", "not verified", "equivalent"]
    assert [v.on for v in first] == ["reference", "reference", "none", "reference"]
    assert seen == [(done, 4) for done in range(5)]
    # A crash is not remembered: it may have been the machine's.
    monkeypatch.setattr("npufix.rewriters.verification.workers.parent.answer", None)
    assert verify([good, bad], settings) == first[:2]
