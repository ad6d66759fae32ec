"""``npufix --help``, ``rules`` and ``scan``."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import TYPE_CHECKING

from npufix.rules.registry import all_diagnostics, all_rules, every_rule

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]


def test_help_names_every_command(npufix: Npufix) -> None:
    done = npufix("-h")
    assert done.returncode == 0
    for name in ("diagnose", "explain", "patch", "rules", "scan", "Examples"):
        assert name in done.stdout


def test_every_command_has_help_with_examples(inside: Npufix) -> None:
    for name in ("diagnose", "explain", "patch", "rules", "scan"):
        done = inside(name, "-h")
        assert done.returncode == 0
        assert f"npufix {name} " in done.stdout.split("Examples:")[1]


def test_nothing_heavy_is_imported_for_help_and_no_torch_for_a_diagnosis() -> None:
    code = """
import sys
from click.testing import CliRunner
from npufix.advisor.commands.cli import cli
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


def test_rules_lists_and_explains_each(inside: Npufix) -> None:
    listed = inside("rules").stdout
    assert max(map(len, listed.splitlines())) <= 80
    for rule in all_rules():
        assert rule.id in listed
        shown = inside("rules", "show", rule.id)
        assert shown.returncode == 0
        for heading in ("Why it is slow", "Safety:", "References:", "Pattern", "Replacement"):
            assert heading in shown.stdout, rule.id
        assert ("After" in shown.stdout) is bool(rule.rewritten)
        assert ("Never written:" in shown.stdout) is bool(rule.advice)
        assert ("Silent in other runs:" in shown.stdout) is bool(rule.silent)
        assert inside("rules", "show", rule.name).stdout == shown.stdout
    assert len(json.loads(inside("rules", "--json").stdout)) == len(every_rule())


def test_rules_about_the_run_are_listed_and_explained(inside: Npufix) -> None:
    listed = inside("rules").stdout
    for rule in all_diagnostics():
        assert rule.id in listed
        shown = inside("rules", "show", rule.name)
        assert shown.returncode == 0
        assert "Do:" in shown.stdout
        assert ("Needs " in shown.stdout) is bool(rule.requires)


def test_the_list_of_rules_says_what_the_tool_does(inside: Npufix) -> None:
    lines = inside("rules").stdout.splitlines()
    titles = [n for n, s in enumerate(lines) if s.startswith(("Fusion:", "Affinity:", "Settings:"))]
    assert len(titles) == 3
    (norm,) = (n for n, s in enumerate(lines) if s.startswith("NPU101"))
    assert titles[0] < norm < titles[1]
    assert "conditional" in lines[norm]


def test_scan_finds_the_patterns_without_a_dump(inside: Npufix) -> None:
    report = json.loads(inside("scan", "examples/bert_like", "--json").stdout)
    found = {f["rule"] for f in report["findings"]}
    assert {"NPU101", "NPU201", "NPU202", "NPU203", "NPU204"} <= found
    assert "NPU205" not in found  # a linear layer in two kernels is visible only in a dump
    places = {(f["path"], f["line"], f["code"]) for f in report["findings"]}
    assert len(places) == len(report["findings"])
    files = {f["path"] for f in report["findings"]}
    assert report["headline"].startswith(f"{len(places)} slow patterns in {len(files)} files.")


def test_a_closed_pipe_is_no_error() -> None:
    done = subprocess.run(  # noqa: S602 - the pipe is the point
        f"{sys.executable} -m npufix.advisor rules | head -1",
        shell=True,
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert "Traceback" not in done.stderr


def test_scan_reads_calls_that_raise_and_loops_that_compute_nothing(
    inside: Npufix, tmp_path: Path
) -> None:
    code = (
        "import torch\nimport torch.nn.functional as F\n\n\ndef step(x, names: list[int]):\n"
        "    act = F.silu()\n    for name in names:\n        pass\n"
        "    while True:\n        try:\n            break\n        except StopIteration:\n"
        "            continue\n    x[x > 0] = 0.0\n    return act(x)\n"
    )
    (tmp_path / "odd.py").write_text(code, encoding="utf-8")
    found = json.loads(inside("scan", tmp_path, "--json").stdout)
    assert found["problems"] == []


def test_scan_says_how_a_loop_over_parts_is_written(inside: Npufix, tmp_path: Path) -> None:
    code = (
        "import torch\nfrom torch import nn\n\n\nclass Pool(nn.Module):\n"
        "    def forward(self, x: torch.Tensor, ends: torch.Tensor):\n        means = []\n"
        "        for i in range(len(ends) - 1):\n"
        "            means.append(x[ends[i] : ends[i + 1]].mean(0))\n"
        "        return torch.stack(means)\n"
    )
    (tmp_path / "pool.py").write_text(code, encoding="utf-8")
    finding, read = json.loads(inside("scan", tmp_path, "--json").stdout)["findings"]
    assert (finding["rule"], finding["line"]) == ("NPU250", 8)
    assert "repeat_interleave" in finding["problem"] + finding["advice"]
    # what the rounds read is said beside it, as it can be written
    assert (read["rule"], read["replacement"]) == ("NPU214", "ends_list = ends.flatten().tolist()")
