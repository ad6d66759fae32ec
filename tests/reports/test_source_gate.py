"""``npufix scan --baseline``: only new slow patterns fail, whatever moved."""

from __future__ import annotations

import json
import re
import textwrap
from typing import TYPE_CHECKING, Any

import click
import pytest

from npufix.advisor.gate.known_findings import read
from npufix.reports.code_digest import normal_form
from npufix.reports.report import ReportError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from click.testing import Result

REPEAT = """
    import torch

    def twice(x: torch.Tensor):
        return torch.repeat_interleave(x, 2)
"""
FILL = """
    def fill(x, mask):
        y = torch.zeros_like(x)
        y[x > 0] = 0.0
        return y
"""


@pytest.fixture
def project(tmp_path: Path) -> Path:
    (tmp_path / ".git").mkdir()
    (tmp_path / "src").mkdir()
    put(tmp_path / "src" / "a.py", REPEAT)
    put(tmp_path / "src" / "b.py", REPEAT)
    return tmp_path


def put(path: Path, text: str) -> None:
    path.write_text(textwrap.dedent(text), encoding="utf-8")


@pytest.fixture
def gate(npufix_in: Callable[..., Result], project: Path) -> Callable[..., tuple[int, Any]]:
    """Write the baseline of a project; return what compares with it."""
    assert npufix_in(project, "scan", "src", "--write-baseline", "b.json").return_value == 0

    def run(*words: str) -> tuple[int, Any]:
        done = npufix_in(project, "scan", *words, "--baseline", "b.json", "-o", "json=-")
        assert done.exception is None, done.exception
        return done.return_value, json.loads(done.stdout)

    return run


def test_what_is_known_passes(gate: Callable[..., Any], project: Path) -> None:
    lines = json.loads((project / "b.json").read_text(encoding="utf-8"))["findings"]
    assert [line.rpartition(":")[0] for line in lines] == [
        "NPU203:src/a.py:twice",
        "NPU203:src/b.py:twice",
    ]
    status, made = gate("src")
    assert (status, made["verdict"], made["known"]) == (0, "pass", 2)
    assert gate("src/b.py")[0] == gate(".")[0] == gate("src/a.py", "src/b.py")[0] == 0


def test_a_new_pattern_fails_and_says_what_next(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", REPEAT + FILL)
    status, made = gate("src")
    assert (status, made["verdict"]) == (1, "fail")
    assert [f["rule"] for f in made["new_findings"]] == ["NPU201"]
    assert made["headline"] == "1 new slow pattern in 1 file; 2 known."
    assert any("--write-baseline b.json" in step for step in made["next_steps"])
    assert gate("src", "--exit-zero")[0] == 0
    assert gate("src", "--fail-on", "NPU101")[0] == 0
    assert gate("src", "--fail-on", "NPU101,masked-assignment")[0] == 1
    assert gate("src", "--rule", "NPU203")[0] == 0


def test_moved_lines_and_renamed_files_are_not_new(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", "# moved\n\n\n" + textwrap.dedent(REPEAT))
    (project / "src" / "b.py").rename(project / "src" / "c.py")
    status, made = gate("src")
    assert (status, made["gone"], made["new_findings"]) == (0, [], [])
    assert gate("src/c.py")[0] == 0, "the file that it came from is gone"


def test_a_renamed_function_is_not_new(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", REPEAT.replace("def twice", "def doubled"))
    status, made = gate("src")
    assert (status, made["gone"], made["new_findings"]) == (0, [], [])
    put(project / "src" / "a.py", REPEAT.replace("def twice", "def one") + REPEAT.replace(
        "import torch", "").replace("def twice", "def two"))  # fmt: skip
    assert gate("src")[0] == 1, "nobody knows which of both it was"


MASKS = """
    import torch
    import torch.nn.functional as F

    def scale(x, mask, gate, up):
        x[~mask] = -1e9
        probs = F.silu(gate(x)) * up(x)
        return torch.repeat_interleave(probs, repeats=2, dim=1).gather(1, mask).view(-1)

    def pad(x: torch.Tensor, lengths):
        rows = torch.repeat_interleave(lengths, x.shape[1])
        x[x > 0] = 0.0
        return x, rows
"""


@pytest.mark.parametrize(
    "renamed",
    [
        (("mask", "valid"), ("probs", "p"), ("lengths", "valid_lens"), ("x", "hidden_states")),
        (("x[~mask] = -1e9", "x[(~mask)] = (\n            -1E9  # padding\n        )"),),
        (("(probs, repeats=2, dim=1)", "(\n     probs,\n     repeats=2,\n     dim=1,\n  )"),),
        (("F.silu(gate(x)) * up(x)", "(F.silu(gate(x))\n            * up(x))"), ("F", "fn")),
        (("scale", "scaled"), ("pad", "padded"), ("mask", "keep"), ("x", "y")),
    ],
)  # fmt: skip
@pytest.mark.parametrize("path", ["a.py", "deep/er/other.py"])
def test_what_means_the_same_is_not_new(
    npufix_in: Callable[..., Result], project: Path, renamed: Any, path: str
) -> None:
    put(project / "src" / "a.py", MASKS)
    assert npufix_in(project, "scan", "src", "--write-baseline", "b.json").return_value == 0
    text = textwrap.dedent(MASKS)
    for old, new in renamed:
        text = re.sub(rf"(?<!\w){re.escape(old)}(?!\w)", lambda _, new=new: new, text)
    (project / "src" / "a.py").unlink()
    (project / "src" / path).parent.mkdir(parents=True, exist_ok=True)
    put(project / "src" / path, text)
    done = npufix_in(project, "scan", "src", "--baseline", "b.json", "-o", "json=-")
    made = json.loads(done.stdout)
    assert (made["new_findings"], made["gone"], done.return_value) == ([], [], 0)
    assert made["known"] > 3


def test_a_mended_function_pays_for_no_new_one(gate: Callable[..., Any], project: Path) -> None:
    put(
        project / "src" / "a.py",
        """
        import torch

        def twice(x: torch.Tensor):
            return x
    """,
    )
    put(project / "src" / "c.py", REPEAT.replace("def twice", "def other"))
    assert gate("src")[0] == 1


@pytest.mark.parametrize("code", ["x" + " + x" * 5000, "else:", "'", "with a as b:", ""])
def test_any_code_has_a_form(code: str) -> None:
    assert normal_form(code) == normal_form(code.replace("x", "y"))
    assert normal_form("a.b(c)") != normal_form("a.b(a)")


def test_attributes_of_ones_own_may_be_renamed() -> None:
    assert normal_form("x * self.weight") == normal_form("h * self.gamma")
    assert normal_form("x * other.weight") != normal_form("x * other.gamma")
    assert normal_form("self.a * self.a") != normal_form("self.a * self.b")


def test_another_meaning_is_new(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", REPEAT.replace("(x, 2)", "(x, 3)"))
    assert gate("src")[0] == 1


def test_a_copy_is_new(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "c.py", REPEAT)
    status, made = gate("src")
    assert [f["path"] for f in made["new_findings"]] == ["c.py"]
    assert status == 1
    # The file that it was copied from is not looked at, but it is still there.
    assert gate("src/c.py")[0] == 1
    put(project / "src" / "a.py", REPEAT + "    \n" + REPEAT.replace("import torch", ""))
    assert gate("src/a.py")[0] == 1, "as often as the baseline holds it"


def test_what_is_gone_is_named_where_it_was_looked_for(
    gate: Callable[..., Any], project: Path
) -> None:
    put(project / "src" / "a.py", "import torch\n")
    status, made = gate("src")
    assert (status, made["gone"]) == (0, ["NPU203 src/a.py in twice"])
    assert gate("src/b.py")[1]["gone"] == []
    assert gate("src", "--rule", "NPU201")[1]["gone"] == []


def test_a_comment_hides_a_new_pattern(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", REPEAT + FILL.replace("0.0", "0.0  # npufix: ignore[NPU201]"))
    assert gate("src")[0] == 0


def test_a_file_that_cannot_be_read_is_never_green(gate: Callable[..., Any], project: Path) -> None:
    put(project / "src" / "a.py", "import torch\n\ndef f(:\n")
    status, made = gate("src")
    assert (status, made["verdict"], made["gone"]) == (2, "inconclusive", [])


def test_a_baseline_is_updated_in_part(npufix_in: Callable[..., Result], project: Path) -> None:
    npufix_in(project, "scan", "src", "--write-baseline", "b.json")
    before = (project / "b.json").read_bytes()
    put(project / "src" / "a.py", REPEAT + FILL)
    (project / "src" / "b.py").unlink()
    npufix_in(project, "scan", "src/a.py", "--rule", "NPU201", "--write-baseline", "b.json")
    assert [(k.rule, k.path) for k in read(project / "b.json")] == [
        ("NPU201", "src/a.py"), ("NPU203", "src/a.py"), ("NPU203", "src/b.py")
    ]  # fmt: skip
    put(project / "src" / "a.py", REPEAT)
    put(project / "src" / "b.py", REPEAT)
    npufix_in(project, "scan", "src", "--write-baseline", "b.json")
    assert (project / "b.json").read_bytes() == before


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "not a baseline"),
        ('{"schema": 2, "tool": "npufix 0", "findings": ["NPU2', "not a baseline"),
        ('{"schema": 1, "tool": "npufix 0", "findings": []}', "baseline schema 1"),
        ('{"schema": 3, "tool": "npufix 9", "findings": []}', "baseline schema 3"),
        ('{"schema": 2, "tool": "npufix 0", "findings": ["x"]}', "not RULE:path:function:digest"),
    ],
)
def test_a_broken_baseline_is_no_green_light(
    npufix_in: Callable[..., Result], project: Path, text: str, said: str
) -> None:
    (project / "b.json").write_text(text, encoding="utf-8")
    done = npufix_in(project, "scan", "src", "--baseline", "b.json")
    assert isinstance(done.exception, ReportError)
    assert said in str(done.exception)
    assert " -- write it anew with npufix scan" in str(done.exception)


def test_wrong_options_are_named(npufix_in: Callable[..., Result], project: Path) -> None:
    missing = npufix_in(project, "scan", "src", "--baseline", "none.json").exception
    assert "none.json: No such file" in str(missing)
    for words, said in (
        (("--fail-on", "NPU999"), "--fail-on NPU999: neither one of safe, conditional, advice nor"),
        (("--baseline", "b", "--write-baseline", "b"), "give one of them"),
    ):
        wrong = npufix_in(project, "scan", "src", *words).exception
        assert isinstance(wrong, click.UsageError)
        assert said in wrong.message


def test_without_a_baseline_everything_is_new(
    npufix_in: Callable[..., Result], project: Path
) -> None:
    assert npufix_in(project, "scan", "src").return_value == 0
    assert npufix_in(project, "scan", "src", "--fail-on", "safe").return_value == 1
    put(project / "npufix.toml", 'exclude = ["src/a.py", "src/b.py"]')
    named = ("scan", "src/a.py", "src/b.py", "--fail-on", "safe")
    assert npufix_in(project, *named).return_value == 1
    assert npufix_in(project, *named, "--force-exclude").return_value == 0


def test_a_baseline_of_runs_is_read(npufix_in: Callable[..., Result], project: Path) -> None:
    found = json.loads(npufix_in(project, "scan", "src", "--everywhere", "--json").stdout)[
        "findings"
    ]
    entries = [f"{f['rule']}:{f['path']}:{f['fingerprint']}" for f in found]
    runs = {"schema": 1, "tool": "npufix 0", "commit": "", "environment": {}, "run_count": 1,
            "metrics": {"step-time": {"unit": "us", "runs": [1]}}, "hot_ops": {},
            "findings": entries}  # fmt: skip
    (project / "b.json").write_text(json.dumps(runs), encoding="utf-8")
    assert npufix_in(project, "scan", "src", "--baseline", "b.json").return_value == 0
    put(project / "src" / "a.py", REPEAT + FILL)
    assert npufix_in(project, "scan", "src", "--baseline", "b.json").return_value == 1
    refused = npufix_in(project, "scan", "src", "--write-baseline", "b.json").exception
    assert "is a baseline of runs" in str(refused)
