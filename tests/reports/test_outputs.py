"""``--output FORMAT=FILE``: several at once, all or none, and clear words about what is wrong."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from gate_samples import finding, gated

from npufix.advisor.commands import outputs
from npufix.advisor.console import written
from npufix.reports.data.sources import Sources
from npufix.reports.formats.github import LARGEST_SUMMARY
from npufix.reports.gate_report import GateReport
from npufix.reports.markdown.gate import MARKER

if TYPE_CHECKING:
    from collections.abc import Callable

    from click.testing import Result

FORMATS = outputs.formats_of(GateReport)
EVERY = tuple((name, Path(f"out.{name}")) for name in FORMATS)
parse = outputs.parser_of(list(outputs.formats()))
SOURCE = "import torch\n\n\ndef f(x, m: torch.Tensor):\n    return torch.repeat_interleave(x, 3)\n"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GITHUB_STEP_SUMMARY", raising=False)
    (tmp_path / "a.py").write_text(SOURCE, encoding="utf-8")
    return tmp_path


def test_every_format_at_once(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    outputs.write(EVERY, outputs.Result(gated(), Sources(here)))
    assert {path.name for path in here.iterdir()} == {"a.py", *(str(path) for _, path in EVERY)}
    assert all(path.read_text(encoding="utf-8") for _, path in EVERY)
    said = capsys.readouterr()
    assert said.out.startswith("FAIL: The step takes"), "the terminal gets it too"
    assert said.err.count("Wrote ") == len(EVERY)
    assert not list(here.glob(".*"))


def test_the_standard_output_holds_what_goes_there_and_nothing_else(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs.write(
        [("json", outputs.STDOUT), ("markdown", Path("a.md"))],
        outputs.Result(gated(), Sources(here)),
    )
    assert json.loads(capsys.readouterr().out)["verdict"] == "fail"
    outputs.write([("terminal", outputs.STDOUT)], outputs.Result(gated(), Sources(here)))
    assert capsys.readouterr().out.startswith("FAIL")


def test_nothing_is_half_written(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (here / "old.md").write_text("old", encoding="utf-8")
    asked = [("markdown", Path("old.md")), ("sarif", Path("new.sarif"))]
    as_bytes = written._bytes

    def full(path: Path, content: str) -> bytes:
        if content.startswith("{"):
            raise OSError(28, "No space left on device")
        return as_bytes(path, content)

    monkeypatch.setattr(written, "_bytes", full)
    with pytest.raises(outputs.OutputError) as caught:
        outputs.write(asked, outputs.Result(gated(), Sources(here)))
    assert "new.sarif: No space left on device; nothing was written" in caught.value.message
    assert {path.name for path in here.iterdir()} == {"a.py", "old.md"}
    assert (here / "old.md").read_text(encoding="utf-8") == "old"


def test_what_is_replaced_is_as_readable_as_it_was_and_links_stay(here: Path) -> None:
    (here / "real.md").write_text("old", encoding="utf-8")
    (here / "real.md").chmod(0o640)
    (here / "link.md").symlink_to("real.md")
    written.replace_all([(here / "link.md", "new"), (here / "tables" / "a.csv", b"1")])
    assert (here / "link.md").is_symlink()
    assert (here / "real.md").read_text(encoding="utf-8") == "new"
    assert (here / "real.md").stat().st_mode & 0o777 == 0o640
    if os.geteuid():
        (here / "real.md").chmod(0o440)
        with pytest.raises(outputs.OutputError, match="Permission denied; nothing was written"):
            written.replace_all([(here / "real.md", "newer")])


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["pdf=x.pdf"], "there is no format 'pdf'; there are csv, "),
        (["csv=-"], "csv does not go to the standard output"),
        (["csv=a.py"], "a.py is a file; csv writes several, name a folder"),
        (["x.txt"], "is not FORMAT=FILE"),
        (["sarif="], "names no file"),
        (["sarif=x", "json=./x"], "two outputs go to x"),
        (["sarif=-", "json=-"], "only one output can go to the standard output"),
        (["sarif=nowhere/x.sarif"], "there is no folder nowhere; create it first"),
        (["sarif=."], "is a folder"),
    ],
)
def test_what_cannot_work_is_said_before_the_work(here: Path, values: list[str], said: str) -> None:
    assert here
    with pytest.raises(click.BadParameter) as caught:
        parse(None, None, tuple(values))  # type: ignore[arg-type]
    assert said in caught.value.message


def test_the_ending_names_the_format() -> None:
    assert parse(None, None, ("a.md", "b.json", "c.sarif")) == (  # type: ignore[arg-type]
        ("markdown", Path("a.md")),
        ("json", Path("b.json")),
        ("sarif", Path("c.sarif")),
    )


def test_a_step_summary_is_added_to_and_stays_below_its_limit(
    here: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    summary = here / "summary.md"
    summary.write_text("earlier\n" * 1000, encoding="utf-8")
    monkeypatch.setenv("GITHUB_STEP_SUMMARY", str(summary))
    many = [finding(number=n, code="x" * 400) for n in range(3_000)]
    outputs.write(
        [("github", outputs.STDOUT)], outputs.Result(gated(new_findings=many), Sources(here))
    )
    text = summary.read_text(encoding="utf-8")
    assert text.startswith("earlier\n")
    assert text.count(MARKER) == 1
    assert len(text.encode()) < LARGEST_SUMMARY
    assert "Cut here" in text
    assert capsys.readouterr().out.count("::error ") == 10
    # Named as an output of its own it is written once.
    summary.unlink()
    outputs.write(
        [("github", Path("gh")), ("markdown", summary)], outputs.Result(gated(), Sources(here))
    )
    assert summary.read_text(encoding="utf-8").count(MARKER) == 1


def test_a_file_whose_name_is_no_text_is_in_every_format(
    npufix_in: Callable[..., Result], here: Path
) -> None:
    try:
        (here / os.fsdecode(b"\xff.py")).write_text(SOURCE, encoding="utf-8")
    except OSError:
        pytest.skip("this file system takes no such name")
    wanted = [word for name in FORMATS for word in ("-o", f"{name}=out.{name}")]
    done = npufix_in(here, "scan", ".", "--write-baseline", "b.json", *wanted)
    assert done.exception is None
    assert done.return_value == 0
    for name in ("json", "gitlab", "sarif"):
        assert json.loads((here / f"out.{name}").read_bytes())
    known = npufix_in(here, "scan", ".", "--baseline", "b.json", "--json")
    assert (known.return_value, json.loads(known.stdout)["known"]) == (0, 2)


def test_scan_and_diagnose_take_it(npufix_in: Callable[..., Result], here: Path) -> None:
    done = npufix_in(here, "scan", "a.py", "-o", "github=-", "-o", "junit=a.xml", "-o", "a.md")
    assert done.return_value == 0
    assert done.stdout.startswith("::warning file=a.py,line=5,title=NPU203")
    assert (here / "a.md").read_text(encoding="utf-8").startswith("# 1 slow pattern in 1 file")
    assert 'failures="0"' in (here / "a.xml").read_text(encoding="utf-8"), "no gate, no failure"
    assert isinstance(npufix_in(here, "diagnose", ".", "-o", "x=y").exception, click.UsageError)
    both = npufix_in(here, "scan", "a.py", "--json", "-o", "sarif=-").exception
    assert isinstance(both, click.UsageError)
