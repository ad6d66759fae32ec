"""A file of a dump is missing, empty, cut or short of a column: a message, never a wrong total."""

from __future__ import annotations

import json
import shutil
import sys
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path

import pandas as pd
import pytest
from benchmarks.generator.dump import write_dump
from benchmarks.generator.parameters import Parameters
from benchmarks.generator.run import simulate
from benchmarks.generator.truth import kernel_truths
from dump_damage import KINDS, Damage, columns, damaged_copy, damages, drop_column
from hypothesis import example, given, settings
from logical_runs import SETTINGS, kernel_rows

from npufix.advisor.commands.cli import main
from npufix.profiling_parsers.discover import find_dumps
from npufix.profiling_parsers.profile import DumpError, Profile
from npufix.profiling_parsers.reader import read_profile

pytestmark = pytest.mark.xdist_group("damaged dumps")  # they share one dear fixture
_RUN = Parameters(kernels=160, steps=2)
_STEP_TIMES = ["computing_ns", "communication_ns", "communication_exposed_ns", "free_ns"]


@dataclass(frozen=True)
class Sound:
    """A dump that nothing is wrong with, and what it says of its kernels."""

    profile: Profile
    rows: pd.DataFrame


@pytest.fixture(scope="session")
def whole(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Return small dumps that differ in what they hold."""
    folder = tmp_path_factory.mktemp("dumps")
    runs = {
        "text": _RUN,
        "text of cann8.3": replace(_RUN, version="cann8.3", line_end="\n", outlier=1),
        "text without stacks": replace(_RUN, stacks=False),
        "text without schedule": replace(_RUN, schedule=False),
    }
    dumps = {name: write_dump(own, folder / name) for name, own in runs.items()}
    dumps["db"] = write_dump(_RUN, folder / "db", "db")
    dumps["db of newest"] = write_dump(replace(_RUN, version="newest"), folder / "new", "db")
    return dumps | {"both": write_dump(_RUN, folder / "both", "both")}


@pytest.fixture(scope="session")
def read(whole: dict[str, Path]) -> dict[str, Sound]:
    """Return what the sound dumps say."""
    profiles = {name: read_profile(dump) for name, dump in whole.items()}
    return {name: Sound(profile, known(profile)) for name, profile in profiles.items()}


@given(damage=damages)
@settings(SETTINGS, max_examples=8)
@example(damage=Damage("missing", 0.0, 0.0))
@pytest.mark.parametrize(
    "name",
    ["text", "text of cann8.3", "text without stacks", "text without schedule", "db",
     "db of newest", "both"],
)  # fmt: skip
def test_a_damaged_file_gives_no_wrong_answer(
    whole: dict[str, Path], read: dict[str, Sound], name: str, damage: Damage
) -> None:
    with tempfile.TemporaryDirectory() as folder:
        copy, _ = damaged_copy(whole[name], Path(folder), damage)
        profile = read_or_refusal(copy)
    if profile is not None and not any(problem.damaged for problem in profile.problems):
        check_same(profile, read[name])


@pytest.mark.parametrize("name", ["text", "db"])
def test_every_column_is_known_told_or_not_needed(
    whole: dict[str, Path], read: dict[str, Sound], tmp_path: Path, name: str
) -> None:
    copy = Path(shutil.copytree(whole[name], tmp_path / whole[name].name))
    wrong = []
    for file, column, where in columns(copy):
        path = copy / "ASCEND_PROFILER_OUTPUT" / file
        content = path.read_bytes()
        drop_column(path, where)
        try:
            profile = read_or_refusal(copy)
            if profile is not None and not any(problem.damaged for problem in profile.problems):
                check_same(profile, read[name])
        except (AssertionError, KeyError, ValueError, TypeError) as error:
            wrong.append(f"{file}: {column}: {error!r:.60}")
        path.write_bytes(content)
    assert not wrong


def read_or_refusal(dump: Path) -> Profile | None:
    """Return None if the dump is refused, with a message and a remedy."""
    try:
        return read_profile(find_dumps(dump)[0])
    except DumpError as error:
        if not (error.message and error.remedy):
            raise
        return None


def check_same(profile: Profile, sound: Sound) -> None:
    """What is known is as in the whole dump; less may be known, and then a problem says so."""
    rows, expected = known(profile), sound.rows
    assert rows["start_ns"].tolist() == expected["start_ns"].tolist()
    assert rows["duration_ns"].tolist() == expected["duration_ns"].tolist()
    for column in ("type", "core", "frame", "module"):
        for found, right in zip(rows[column], expected[column], strict=True):
            assert found in {"", right} or not right, column
    assert rows.equals(expected) or profile.problems
    if len(profile.steps) and not any("begins with its first" in p.what for p in profile.problems):
        pd.testing.assert_frame_equal(profile.steps[_STEP_TIMES], sound.profile.steps[_STEP_TIMES])
    if len(profile.op_statistic):
        kernels = sound.profile.kernels
        expected_ns = kernels.loc[~kernels["communication"], "duration_ns"].sum()
        assert profile.op_statistic["total_ns"].sum() == expected_ns


def known(profile: Profile) -> pd.DataFrame:
    rows = kernel_rows(profile).sort_values(["start_ns", "name"], ignore_index=True)
    # What a collective is said to run on is a matter of the version.
    core = rows["core"].replace({"COMMUNICATION": "HCCL", "N/A": ""})
    return rows.assign(core=core)[["start_ns", "duration_ns", "type", "core", "frame", "module"]]


@pytest.mark.parametrize("export", ["text", "db"])
def test_totals_are_those_that_were_run(whole: dict[str, Path], export: str) -> None:
    truths = kernel_truths(simulate(_RUN))
    profile = read_profile(whole[export])
    assert profile.kernels["duration_ns"].sum() == sum(t.duration_ns for t in truths)
    compute = ~profile.kernels["communication"]
    if export == "text":
        stated = profile.op_statistic["total_ns"].sum()
        assert stated == profile.kernels.loc[compute, "duration_ns"].sum()


@pytest.mark.parametrize(("export", "file"), [("text", 0.3), ("text", 0.8), ("db", 0.3)])
@pytest.mark.parametrize("kind", KINDS)
def test_the_command_answers_or_refuses(  # noqa: PLR0913, PLR0917 - what and where
    whole: dict[str, Path],
    tmp_path: Path,
    export: str,
    kind: str,
    file: float,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    copy, name = damaged_copy(whole[export], tmp_path, Damage(kind, file, 0.5))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "argv", ["npufix", "diagnose", str(copy), "--json"])
    with pytest.raises(SystemExit) as end:
        main()
    said = capsys.readouterr()
    assert "Traceback" not in said.err, name
    status = end.value.code or 0
    assert status in {0, 2}, name
    if said.out:
        report = json.loads(said.out)
        assert report["hot_operators"], name
        broken = any(problem["damaged"] for problem in report["problems"])
        assert status == (2 if broken else 0), name
    else:
        assert status == 2
        assert said.err.strip(), name
