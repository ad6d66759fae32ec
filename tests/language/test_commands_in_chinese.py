"""``--lang zh``: reports, help and errors are Chinese, 80 columns wide; JSON stays as it is."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

from npufix.advisor.commands import cli
from npufix.reports.language import layout

ROOT = Path(__file__).parents[2]
DUMP = next((ROOT / "examples" / "dump").glob("*_ascend_pt"))
SOURCE = ROOT / "examples" / "bert_like"
_CHINESE = re.compile(r"[\u4e00-\u9fff]")
_SENTENCE = re.compile(r"(?:\b[a-z]{2,}\b ){4}")


@pytest.fixture
def npufix(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]):  # noqa: ANN201
    def call(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["npufix", *words])
        monkeypatch.setenv("COLUMNS", "80")
        with pytest.raises(SystemExit) as end:
            cli.main()
        out, err = capsys.readouterr()
        return int(end.value.code or 0), out, err

    return call


@pytest.mark.parametrize("words", [("--lang", "zh", "-h"), ("diagnose", "-h", "--lang=zh")])
def test_help(npufix, words) -> None:  # noqa: ANN001
    status, out, _ = npufix(*words)
    assert status == 0
    assert "用法：" in out
    assert "显示本帮助并退出。" in out
    for line in out.splitlines():
        assert layout.width(line) <= 80 or line.startswith("    npufix ")
        assert _CHINESE.search(line) or not _SENTENCE.search(line), line


@pytest.mark.parametrize("rule", ["NPU101", "NPU112", "NPU214"])
def test_conditions_with_marks_in_them(npufix, rule: str) -> None:  # noqa: ANN001
    _, out, _ = npufix("--lang", "zh", "rules", "show", rule)
    conditions = out.partition("条件")[2].partition("模式")[0]
    assert "仅当" in conditions
    assert not _SENTENCE.search(conditions), conditions


def test_errors(npufix) -> None:  # noqa: ANN001
    status, _, err = npufix("--lang", "zh", "diagnose", "/no/such/dump")
    assert status == 2
    assert "/no/such/dump：没有这个文件或目录" in err
    status, _, err = npufix("--lang", "zh", "diagnose", "--frob")
    assert status == 2
    assert err == "npufix：没有选项 '--frob'。——npufix diagnose --help\n"


def test_the_environment_chooses(npufix, monkeypatch: pytest.MonkeyPatch) -> None:  # noqa: ANN001
    monkeypatch.setenv("NPUFIX_LANG", "zh")
    assert "NPU101  有条件  用小算子写出的 RMSNorm" in npufix("rules")[1]
    assert "RMSNorm written out" in npufix("--lang", "en", "rules")[1]


def test_json_is_the_same_in_every_language(npufix) -> None:  # noqa: ANN001
    english, chinese = npufix("rules", "--json")[1], npufix("rules", "--json", "--lang", "zh")[1]
    assert json.loads(english) == json.loads(chinese)


def test_a_report(npufix, tmp_path: Path) -> None:  # noqa: ANN001
    file, data = tmp_path / "report.md", tmp_path / "report.json"
    status, out, _ = npufix(
        "diagnose", str(DUMP), "--source", str(SOURCE), "--lang", "zh", "-o", str(file),
        "-o", str(data),
    )  # fmt: skip
    assert status == 0
    headline = "".join(out.splitlines()[5:8])
    assert re.match(
        r"bert_like/masking.py:30 处“通过布尔掩码赋值”每步 .*；该步耗时.*，解决 \d+ 个问题可节省约",
        headline,
    )
    _, whole, _ = npufix(
        "diagnose", str(DUMP), "--source", str(SOURCE), "--lang", "zh", "--findings", "--operators"
    )
    shown = [line for line in f"{out}{whole}".splitlines() if not line.startswith(("开始", "更多"))]
    assert max(map(layout.width, shown)) <= 80
    english = [
        line for line in [*shown, *file.read_text("utf-8").splitlines()]
        if _SENTENCE.search(line) and "#" not in line and '"""' not in line
        and not line.startswith(("仿真", "come", "- **仿真"))  # what the dump says of itself
    ]  # fmt: skip
    assert not english
    # What is said in code stays: the suggestion is the one of the JSON.
    finding = next(f for f in json.loads(data.read_text("utf-8"))["findings"] if f["replacement"])
    assert f"+ {finding['replacement']}" in whole
    assert not _CHINESE.search(data.read_text("utf-8"))
