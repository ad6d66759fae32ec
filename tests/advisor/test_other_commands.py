"""``npufix --help``, ``rules`` and ``scan``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from npufix.rules.registry import all_diagnostics, all_rules, every_rule

if TYPE_CHECKING:
    from collections.abc import Callable

    Npufix = Callable[..., subprocess.CompletedProcess[str]]


def test_help_names_every_command(npufix: Npufix) -> None:
    done = npufix("-h")
    assert done.returncode == 0
    for name in ("diagnose", "patch", "rules", "scan", "Examples"):
        assert name in done.stdout


def test_every_command_has_help_with_examples(npufix: Npufix) -> None:
    for name in ("diagnose", "patch", "rules", "scan"):
        done = npufix(name, "-h")
        assert done.returncode == 0
        assert f"npufix {name} " in done.stdout.split("Examples:")[1]


def test_nothing_heavy_is_imported_for_help_and_no_torch_for_a_diagnosis() -> None:
    code = """
import sys
from click.testing import CliRunner
from npufix.advisor.cli import cli
assert CliRunner().invoke(cli, ["--help"]).exit_code == 0
heavy = {"pandas", "pyarrow", "rich", "libcst", "msgspec", "torch"} & set(sys.modules)
assert not heavy, heavy
done = CliRunner().invoke(
    cli, ["diagnose", "examples/dump", "--source", "examples/bert_like", "--json"],
    standalone_mode=False)
assert done.return_value == 0, done
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_rules_lists_and_explains_each(npufix: Npufix) -> None:
    listed = npufix("rules").stdout
    for rule in all_rules():
        assert rule.id in listed
        shown = npufix("rules", "show", rule.id)
        assert shown.returncode == 0
        for heading in ("Why it is slow", "Safety:", "References:", "Before", "After"):
            assert heading in shown.stdout
        assert npufix("rules", "show", rule.name).stdout == shown.stdout
    assert len(json.loads(npufix("rules", "--json").stdout)) == len(every_rule())


def test_rules_about_the_run_are_listed_and_explained(npufix: Npufix) -> None:
    listed = npufix("rules").stdout
    for rule in all_diagnostics():
        assert rule.id in listed
        shown = npufix("rules", "show", rule.name)
        assert shown.returncode == 0
        assert "Do:" in shown.stdout


def test_scan_finds_the_patterns_without_a_dump(npufix: Npufix) -> None:
    report = json.loads(npufix("scan", "examples/bert_like", "--json").stdout)
    found = {f["rule"] for f in report["findings"]}
    # A linear layer in two kernels is visible only in a dump.
    assert found == {"NPU101", "NPU201", "NPU202", "NPU203", "NPU204"}
    assert report["headline"] == "9 slow patterns in 5 files."


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(  # noqa: S602 - the pipe is the point
        f"{sys.executable} -m npufix.advisor rules | head -1",
        shell=True,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr
