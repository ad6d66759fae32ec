"""Base and head in turn: each command runs when it should, and nothing of it is left."""

from __future__ import annotations

import datetime as dt
import os
import signal
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import pytest
from click.testing import CliRunner
from gate_runs import MACHINE, MS, a_run, measured

from npufix.advisor.commands.cli import cli
from npufix.advisor.diagnose.diagnosis import Options
from npufix.advisor.gate import taking_turns
from npufix.advisor.gate.gating import gate
from npufix.advisor.gate.reading import RunError
from npufix.advisor.gate.recording import Recorder, RecordingError, in_turn, turns
from npufix.advisor.gate.taking_turns import Reading, Sides, read_sides, record_sides
from npufix.advisor.project.gate_settings import GateSettings
from npufix.reports.markdown.gate import to_comment
from npufix.reports.measurement import MeasuredFinding
from npufix.reports.wording.gate import against

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.advisor.gate.measuring import MeasuredRun
    from npufix.reports.measurement import Measurement

TODAY = dt.date(2026, 11, 22)
READING = Reading(Options())


def read_numbers(dumps: Sequence[Path], *_: object, **__: object) -> list[MeasuredRun]:
    """Read "dumps" that are a number each: the milliseconds of a step, and when it began."""
    runs = []
    for dump in dumps:
        (file,) = dump.glob("ms*")
        step, _, start = file.read_text(encoding="utf-8").partition(" ")
        run = a_run(float(step), origin=str(dump))
        runs.append(msgspec.structs.replace(run, started_ns=int(start) if start else None))
    return measured(runs)


@pytest.fixture(autouse=True)
def _numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(taking_turns, "read_runs", read_numbers)


def recorder(command: str, folder: Path, limit_s: float = 60.0, name: str = "base") -> Recorder:
    return Recorder(name, command, folder, limit_s)


def test_each_goes_first_in_every_other_pair() -> None:
    order = "".join("BH"[head] for _, head in turns(range(4)))
    assert order == "BHHBBHHB"


def test_commands_run_in_turn_and_are_compared_as_pairs(tmp_path: Path) -> None:
    # Both become slower with each run, by far more than they differ.
    count = (
        'n=$(wc -l < log); echo {} >> log; echo $((100000 + 8000 * n + {})) > "$NPUFIX_OUTPUT"/n'
    )
    step = "; awk '{print $1 / 1000}' {output}/n > {output}/ms; rm {output}/n"
    (tmp_path / "log").write_text("", encoding="utf-8")
    base, head = (
        recorder(count.replace("{}", name, 1).replace("{}", str(slower)) + step, tmp_path, 60, name)
        for name, slower in (("base", 0), ("head", 20_000))
    )
    sides = record_sides((base, head), tmp_path / "runs", range(4), READING, kept=False)
    order = (tmp_path / "log").read_text(encoding="utf-8").split()
    assert order == ["base", "head", "head", "base"] * 2
    made = gate(sides.head, sides.asked(GateSettings(), Path("base"), TODAY))
    assert (made.verdict, made.paired) == ("fail", True)
    assert against(made) == "4 runs against as many of base, in turn: compared as pairs"
    assert "in turn: compared as pairs" in to_comment(made)


@pytest.mark.parametrize(
    ("command", "message"),
    [
        ("echo no room; exit 7", "base: the command ended with exit status 7; it said: no room"),
        ("kill -9 $$", "base: the command ended with signal 9"),
        ("true", "base: the command left no dump in "),
        ("no-such-command", "exit status 127"),
    ],
)
def test_a_command_that_makes_no_dump_is_named(command: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecordingError) as caught:
        recorder(command, tmp_path).record(tmp_path / "out")
    assert message in caught.value.message


def is_ended(process: int) -> bool:
    """Tell whether a process ends; one that was killed takes a moment."""
    for _ in range(1000):
        try:
            state = Path(f"/proc/{process}/stat").read_text(encoding="utf-8").split()[2]
        except OSError:
            return True
        if state == "Z":
            return True
        time.sleep(0.01)
    return False


def test_what_takes_too_long_is_ended_with_all_it_started(tmp_path: Path) -> None:
    endless = "sleep 600 & echo $! > child; sleep 600"
    with pytest.raises(RecordingError, match=r"still running after 0\.5 s"):
        recorder(endless, tmp_path, 0.5).record(tmp_path / "out")
    assert is_ended(int((tmp_path / "child").read_text(encoding="utf-8")))


@pytest.fixture
def _interrupted() -> Iterator[None]:
    """Take interrupts as a terminal sends them; in the background of a shell they are ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("_interrupted")
def test_an_interrupt_ends_the_command_too(tmp_path: Path) -> None:
    child = tmp_path / "child"

    def interrupt() -> None:
        while not child.exists() or not child.read_text(encoding="utf-8"):
            time.sleep(0.01)
        os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    with pytest.raises(KeyboardInterrupt):
        recorder("sleep 600 & echo $! > child; wait", tmp_path).record(tmp_path / "out")
    assert is_ended(int(child.read_text(encoding="utf-8")))


def test_runs_are_pairs_where_the_clock_says_so() -> None:
    def at(*moments: int | None) -> list[Measurement]:
        return [msgspec.structs.replace(a_run(), started_ns=moment) for moment in moments]

    pairs = in_turn(at(10, 40, 50), at(20, 30, 60))
    assert [(one.started_ns, other.started_ns) for one, other in pairs] == [
        (10, 20), (40, 30), (50, 60)
    ]  # fmt: skip
    assert in_turn(at(10, 20, 30), at(40, 50, 60)) == []
    assert in_turn(at(10, 30), at(20, 40, 50)) == []
    assert in_turn(at(10, 30), at(20, None)) == []
    assert in_turn(at(10, 10), at(10, 10)) == []


def test_what_is_wrong_with_a_run_of_base_counts_too() -> None:
    other = msgspec.structs.replace(MACHINE, chip="Ascend910B3")
    head = measured([a_run(step) for step in (100, 101, 102)])
    for wrong, said in (
        ({"environment": other}, "another environment"),
        ({"partial": ["half of it"]}, "not whole"),
    ):
        base = measured([a_run(103), a_run(104), a_run(105, **wrong)])
        for paired in (True, False):
            made = gate(head, Sides(base, head, paired).asked(GateSettings(), Path("base"), TODAY))
            assert made.exit_status == 3
            assert said in made.headline


def test_folders_of_dumps(tmp_path: Path) -> None:
    taken = {"base": ("100 1", "110 4", "120 5"), "head": ("120 2", "132 3", "144 6")}
    for side, numbers in taken.items():
        for number, text in enumerate(numbers):
            folder = tmp_path / side / str(number)
            folder.mkdir(parents=True)
            (folder / "ms").write_text(text, encoding="utf-8")
    sides = read_sides(tmp_path / "base", tmp_path / "head", READING)
    assert sides.paired
    (tmp_path / "empty").mkdir()
    with pytest.raises(RunError, match="holds no dump"):
        read_sides(tmp_path / "empty", tmp_path / "head", READING)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ([], "or --base and --head"),
        (["--base", "true"], "belong together"),
        (["run", "--base", "true", "--head", "false"], "leave out DUMP"),
        (["--base", "true", "--head", "false", "--baseline", "b.json"], "leave out --baseline"),
        (["--base", "true", "--head", "true"], "nothing would be compared"),
        (["--base", ".", "--head", "true"], "give two, or two commands"),
        (["--base", ".", "--head", "..", "--runs", "3"], "--runs is for commands"),
        (["--base", "a", "--head", "b", "--keep", "."], "is not empty"),
        (["run", "--base-source", "."], "belongs together with --source"),
    ],
)
def test_what_belongs_to_something_else_is_refused(
    words: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").touch()
    done = CliRunner().invoke(cli, ["gate", *words])
    assert done.exit_code == 2
    assert message in " ".join(done.output.split())


def test_what_is_gone_of_base_is_held_against_what_it_was_to_save() -> None:
    gone = MeasuredFinding("f" * 16, "NPU201", "", "a.py", 3, kernels_save_ns=(9 * MS, 11 * MS))
    slowest = MeasuredFinding("e" * 16, "NPU310", "", "a.py", 3)  # goes with any change
    findings = [gone, slowest]
    base = measured([a_run(step, findings=findings, source="src") for step in (100, 101, 102)])
    head = measured([a_run(step, source="src") for step in (83, 84, 85)])
    made = gate(head, Sides(base, head, paired=True).asked(GateSettings(), Path("base"), TODAY))
    assert made.made is not None
    assert (made.made.rules, made.made.verdict) == (["NPU201"], "held")
