"""``npufix rules test`` on a file outside the project: a good rule passes, each defect is named."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from click.testing import CliRunner

from npufix.advisor.commands.cli import cli
from npufix.rules.substitution import Form

if TYPE_CHECKING:
    from click.testing import Result

    from npufix.rules.substitution import Draw

GUIDE = Path(__file__).parents[2] / "docs" / "howto" / "add-rule.md"
GOOD = GUIDE.read_text(encoding="utf-8").split("```python\n")[1].split("```")[0]
"""What the guide tells a newcomer to write."""


def outcomes_of(folder: Path, text: str, *options: str) -> Result:
    path = folder / "hard_swish.py"
    path.write_text(text, encoding="utf-8")
    return CliRunner().invoke(cli, ["rules", "test", str(path), "--json", *options])


def problems(result: Result) -> dict[str, list[str]]:
    assert result.exit_code in {0, 1}, result.output
    outcomes = json.loads(result.stdout)
    found = {each["check"]: each["problems"] for each in outcomes if each["problems"]}
    assert result.exit_code == bool(found)
    return found


def test_a_good_rule_passes(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    assert problems(outcomes_of(tmp_path, GOOD)) == {}


@pytest.mark.parametrize(
    ("before", "after", "check", "words"),
    [
        ('id="ACME001"', 'id="NPU101"', "identifiers", "the same id"),
        ("Safety:", "Dangers:", "documentation", "'Safety:'"),
        ('requires="torch_npu>=2.1"', 'requires="torch_npu"', "versions", "not a requirement"),
        ('becomes=("HardSwish"', 'becomes=("aclnnMul"', "kernels", "spelled Mul"),
        ("def one_kernel(x: Tensor)", "def one_kernel(y: Tensor)", "forms", "same parameters"),
        ("    return F.hardswish(y)", "    return F.hardswish(y) + 0", "examples", "it becomes"),
        ("x * F.relu6(x + 2) / 6", "x * F.relu6(x + 3) / 6", "look-alikes", "is changed by"),
    ],
)
def test_a_defect_is_named(tmp_path: Path, before: str, after: str, check: str, words: str) -> None:
    assert GOOD.count(before) >= 1
    found = problems(outcomes_of(tmp_path, GOOD.replace(before, after), "--no-run"))
    assert words in " ".join(found[check])


@pytest.mark.parametrize(
    ("before", "after", "check", "words"),
    [
        ("    return F.hardswish(x)", "    return F.hardtanh(x)", "equivalence", "refuted"),
        ('"x": draw.floats', '"y": draw.floats', "inputs", "no value to x"),
        (
            "    return F.hardswish(x)",
            "    return F.hardswish(x.to(x.dtype))",
            "mistakes",
            "nobody would notice if .to(...) is left out",
        ),
    ],
)
def test_what_does_not_compute_the_same_is_named(
    tmp_path: Path, before: str, after: str, check: str, words: str
) -> None:
    pytest.importorskip("torch")
    found = problems(outcomes_of(tmp_path, GOOD.replace(before, after)))
    assert words in " ".join(found[check])


def test_a_slip_that_ends_or_stops_its_process_leaves_the_others_theirs(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    torch = pytest.importorskip("torch")
    from npufix.advisor.rules_test import computing

    monkeypatch.setattr(computing, "_HANGING", 20)

    def pattern(x: Any) -> Any:
        return x.exp()

    def wrong(x: Any) -> Any:
        return x.exp() + 1

    def crashes(_x: Any) -> Any:
        os.kill(os.getpid(), signal.SIGKILL)

    def stops(_x: Any) -> Any:
        signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGPROF, signal.SIGALRM})
        signal.pause()

    def inputs(draw: Draw) -> dict[str, object]:
        return {"x": draw.floats(2, 3, dtype=torch.float32)}

    slips = [[Form(pattern, slip, inputs)] for slip in (crashes, pattern, stops, wrong)]
    assert computing.find_stages(slips) == [0, 3, 0, 0]


@pytest.mark.parametrize("text", ["RULE = 1\n", "import nothing_of_this_name\n", "def f(:\n"])
def test_a_file_that_is_no_rule_is_an_input_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "no_rule.py"
    path.write_text(text, encoding="utf-8")
    from npufix.rules.registry import RuleError

    result = CliRunner().invoke(cli, ["rules", "test", str(path)])
    assert isinstance(result.exception, RuleError)
    assert "no_rule.py" in str(result.exception)


def test_a_rule_that_shares_the_pattern_of_another_is_itself() -> None:
    path = Path(__file__).parents[2] / "rules" / "substitutions" / "yaml_settings.py"
    result = CliRunner().invoke(cli, ["rules", "test", str(path), "--json", "--no-run"])
    assert problems(result) == {}
    assert "dataloader_num_workers" in CliRunner().invoke(cli, ["rules", "show", "NPU178"]).output


def test_a_rule_without_kernels_that_take_over_prints_no_empty_line() -> None:
    shown = CliRunner().invoke(cli, ["rules", "show", "NPU324"]).output
    assert "become:" not in shown
    assert "Needs torch_npu>=2.1" in shown
