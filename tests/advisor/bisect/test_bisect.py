"""The commit that made a program slower, found in a repository that stays as it is."""

from __future__ import annotations

import datetime as dt
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest

from npufix.advisor.bisect.checkouts import BisectError, Repository, find_repository
from npufix.advisor.bisect.searching import BisectRequest, Search
from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.gate import taking_turns
from npufix.advisor.gate.measuring import MeasuredRun
from npufix.advisor.gate.recording import RecordingError
from npufix.advisor.gate.taking_turns import Reading
from npufix.advisor.project.gate_settings import GateSettings
from npufix.reports.formats import Result
from npufix.reports.formats.terminal import FORMAT
from npufix.reports.measurement import MeasuredMetric, MeasuredOperator, Measurement
from npufix.reports.report import Report

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.bisect_report import BisectReport

RECORD = 'read ms < ms && [ "$ms" != 0 ] && cp ms {output}'
EMPTY = Report(
    tool="npufix", headline="", dump="", source="", environment=None, split=None, compute_ns=1,
    attributed=0.0, hot_operators=[], hot_shapes=[], findings=[], problems=[], next_steps=[],
)  # fmt: skip


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let a "dump" be a number: the milliseconds of a step. No two runs take the same time."""
    luck = iter(range(1, 1000))

    def read(dumps: Sequence[Path], *_: object, **__: object) -> list[MeasuredRun]:
        step = float((dumps[0] / "ms").read_text(encoding="utf-8")) * 1e6 + next(luck)
        add = MeasuredOperator("Add", "8 float", "AI_CORE", 1, step / 2)
        metrics = {name: MeasuredMetric(step, "ns") for name in ("step-time", "compute")}
        return [MeasuredRun(Measurement("", None, 8, metrics, [add]), EMPTY, ())]

    monkeypatch.setattr(taking_turns, "read_runs", read)


def git(folder: Path, *words: str) -> str:
    settings = ("-c", "user.name=A", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")
    return subprocess.run(
        ["git", *settings, *words],  # noqa: S607 - the git of this machine
        cwd=folder,
        check=True,
        capture_output=True,
        text=True,
    ).stdout.strip()


def make_repository(folder: Path, steps: Sequence[float]) -> Repository:
    """Return a repository of which each commit has a step of so many ms; 0 does not run."""
    git(folder, "init", "-q", "-b", "main")
    for number, step in enumerate(steps):
        (folder / "ms").write_text(f"{step}\n", encoding="utf-8")
        (folder / "number").write_text(str(number), encoding="utf-8")
        git(folder, "add", "-A")
        git(folder, "commit", "-q", "-m", f"commit {number}")
    return find_repository(folder)


def everything(folder: Path) -> Iterator[tuple[str, bytes]]:
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            yield str(path), path.read_bytes()


def search(repository: Repository, work: Path, steps: int, command: str = RECORD) -> BisectReport:
    good = f"main~{steps - 1}"
    asked = BisectRequest(
        repository, repository.commit(good), repository.candidates(good, "main"), command, Path(),
        "step-time", 3, 6, 60.0, GateSettings(), dt.date(2026, 11, 22),
    )  # fmt: skip
    work.mkdir()
    return Search(asked, Reading(Options()), work).run()


def test_the_first_slow_commit_is_found_and_nothing_is_touched(tmp_path: Path) -> None:
    top = tmp_path / "repository"
    top.mkdir()
    repository = make_repository(top, [100, 100, 101, 115, 115, 116, 115])
    (top / "ms").write_text("not committed\n", encoding="utf-8")
    (top / "untracked").write_text("stays", encoding="utf-8")
    before = dict(everything(top))
    made = search(repository, tmp_path / "work", 7)
    assert dict(everything(top)) == before
    assert [commit.subject for commit in made.found] == ["commit 3"]
    assert made.exit_status == 0
    assert len(made.steps) <= 4
    assert "+115" in made.change
    (grown,) = made.grown
    assert (grown.what, round(grown.before_ns / 1e6), round(grown.after_ns / 1e6)) == (
        "Add on 8 float", 50, 58
    )  # fmt: skip
    shown = FORMAT.render(Result(made))
    assert "commit 3" in str(shown)
    assert "Add on 8 float" in str(shown)
    assert msgspec.json.decode(msgspec.json.encode(made), type=type(made)) == made


def test_what_cannot_be_told_is_skipped_and_said(tmp_path: Path) -> None:
    # One does not run, one is beyond the tolerance by too little to be sure.
    made = search(make_repository(tmp_path, [100, 100, 0, 105.3, 120, 120]), tmp_path / "work", 6)
    assert [commit.subject for commit in made.found] == ["commit 2", "commit 3", "commit 4"]
    assert made.exit_status == 3
    steps = {step.commit.subject: step for step in made.steps}
    assert steps["commit 2"].verdict == steps["commit 3"].verdict == "skipped"
    assert "exit status" in steps["commit 2"].reason
    assert steps["commit 3"].runs == 6


def test_what_did_not_become_slower_is_no_find(tmp_path: Path) -> None:
    made = search(make_repository(tmp_path, [100, 120, 101]), tmp_path / "work", 3)
    assert (made.found, made.exit_status) == ([], 3)
    assert made.headline.startswith("nothing is slower")


def test_a_good_commit_that_does_not_run_ends_the_search(tmp_path: Path) -> None:
    with pytest.raises(RecordingError, match="good: the command ended with exit status"):
        search(make_repository(tmp_path, [0, 100, 120]), tmp_path / "work", 3)


@pytest.mark.parametrize(
    ("good", "message"), [("main", "no ancestor"), ("no-such", "no commit"), ("--all", "no commit")]
)
def test_a_search_needs_a_good_commit_before_the_bad_one(
    good: str, message: str, tmp_path: Path
) -> None:
    repository = make_repository(tmp_path, [100, 120])
    with pytest.raises(BisectError, match=message):
        repository.candidates(good, "main")


def test_nothing_of_one_commit_is_left_for_the_next(tmp_path: Path) -> None:
    top = tmp_path / "repository"
    top.mkdir()
    repository = make_repository(top, [1, 2])
    copy = repository.copy(tmp_path / "copy")
    copy.show("main")
    (copy.folder / "built").mkdir()
    (copy.folder / "built" / "x.so").touch()
    (copy.folder / ".gitignore").write_text("built\n", encoding="utf-8")
    copy.show("main~1")
    assert sorted(path.name for path in copy.folder.iterdir()) == [".git", "ms", "number"]
