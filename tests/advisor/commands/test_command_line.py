"""What all commands share: help, loudness, colours, encodings, pipes, completion, bad paths."""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest
from click.shell_completion import ShellComplete

from npufix.advisor.commands.cli import cli, main
from npufix.advisor.console import progress_line
from npufix.profiling_parsers.progress import advance

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

ROOT = Path(__file__).parents[3]
DUMP, SOURCE = "examples/dump", "examples/bert_like"
ESCAPE = "\x1b["


class Terminal(io.TextIOWrapper):
    """A stream that says of itself what a test wants it to say."""

    def __init__(self, encoding: str = "utf-8", *, tty: bool = False) -> None:
        self.kept, self.tty = io.BytesIO(), tty
        super().__init__(self.kept, encoding=encoding, write_through=True)

    def isatty(self) -> bool:
        return self.tty

    def text(self) -> str:
        return self.kept.getvalue().decode(self.encoding)


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> Callable[..., tuple[int, str, str]]:
    """Run the command line in this process, and return status, stdout and stderr."""
    monkeypatch.chdir(ROOT)
    for name in ("FORCE_COLOR", "NO_COLOR", "NPUFIX_LANG"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")
    monkeypatch.setenv("TERM", "xterm")

    def run(*words: object, encoding: str = "utf-8", **environment: str) -> tuple[int, str, str]:
        out, errors = Terminal(encoding), Terminal()
        with pytest.MonkeyPatch.context() as patched:
            for name, value in environment.items():
                patched.setenv(name, value)
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", errors)
            patched.setattr(sys, "argv", ["npufix", "--lang=en", *map(str, words)])
            with pytest.raises(SystemExit) as end:
                main()
        return int(end.value.code or 0), out.text(), errors.text()

    return run


def commands() -> Iterator[list[str]]:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        yield [name]
        command = cli.get_command(context, name)
        if isinstance(command, click.Group):
            yield from ([name, part] for part in command.list_commands(context))


@pytest.mark.parametrize("words", list(commands()), ids=" ".join)
def test_help_has_examples_and_what_all_commands_have(
    said: Callable[..., tuple[int, str, str]], words: list[str]
) -> None:
    status, out, errors = said(*words, "-h")
    assert (status, errors) == (0, "")
    assert "Examples:\n  " in out
    for option in ("-q, --quiet", "-v, --verbose", "--color / --no-color"):
        assert out.count(option) == 1
    examples = out.partition("Examples:")[2].splitlines()
    assert all(len(line) <= 86 for line in examples), "narrow enough for a terminal"
    assert all(f"npufix {words[0]}" in out.partition("Examples:")[2] for _ in words)


QUIET = [
    (
        ["diagnose", DUMP],
        "IndexPutV2, IndexPut, NonZero together take 17.5 ms per step (67.3% of the step",
    ),
    (["scan", SOURCE], "slow patterns in"),
    (["compare", DUMP, DUMP], "no difference"),
    (["gate", DUMP, "--budget", "step-time=1 ms"], "FAIL: step-time"),
    (["explain", f"{SOURCE}/bert_like/focal_loss.py:28"], "NPU202 gather"),
    (["rules", "show", "NPU101"], "NPU101 eager-rms-norm: "),
    (["doctor"], "verified"),
]


@pytest.mark.parametrize(("words", "line"), QUIET, ids=[words[0] for words, _ in QUIET])
def test_quiet_is_one_line(
    said: Callable[..., tuple[int, str, str]], words: list[str], line: str
) -> None:
    status, out, errors = said(*words, "-q")
    assert status == (1 if words[0] == "gate" else 0)
    assert line in out
    assert out.count("\n") == 1
    assert errors == ""


def test_quiet_says_no_more_than_the_result(
    said: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    out_file = tmp_path / "a.json"
    assert said("-q", "scan", SOURCE, "-o", out_file)[2] == "", "before the command it holds too"
    assert out_file.exists()
    status, out, errors = said("scan", SOURCE, "-q", "--json")
    assert (status, errors) == (0, "")
    assert json.loads(out)["findings"]
    assert "contradict" in said("rules", "-q", "-v")[2]
    broken = tmp_path / "torch_code.py"
    broken.write_text("import torch\nx = torch.ones(\n", encoding="utf-8")
    status, _, errors = said("scan", broken, "-q")
    assert status == 2
    assert "torch_code.py:" in errors, "why the status is not 0"


def test_colours(said: Callable[..., tuple[int, str, str]]) -> None:
    scan = ("scan", f"{SOURCE}/bert_like/masking.py")
    assert ESCAPE not in said(*scan)[1]
    assert ESCAPE in said(*scan, FORCE_COLOR="1")[1]
    assert ESCAPE in said(*scan, "--color", NO_COLOR="1")[1]
    assert ESCAPE not in said(*scan, FORCE_COLOR="1", NO_COLOR="1")[1]
    assert ESCAPE not in said("--no-color", *scan, FORCE_COLOR="1")[1]


@pytest.mark.parametrize(
    ("columns", "words"),
    [("1", ["scan", SOURCE]), ("1", ["rules"]), ("40", ["diagnose", DUMP, "--operators"]),
     ("300", ["compare", DUMP, DUMP, "-v"])],
)  # fmt: skip
def test_any_width_will_do(
    said: Callable[..., tuple[int, str, str]], columns: str, words: list[str]
) -> None:
    status, out, errors = said(*words, COLUMNS=columns)
    assert (status, errors) == (0, "")
    if columns == "40":
        assert "   AI_VECTOR_CORE  8  16.3 ms  2.04 ms" in out.splitlines()
    if columns == "300":
        assert max(map(len, out.splitlines())) <= 120


def test_a_poor_encoding_gets_plain_letters_and_programs_get_utf_8(
    said: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    code = "import torch\n\n\ndef f(x):  # \u2192\n    return torch.repeat_interleave(x, 3)\n"
    (tmp_path / "\u6a21.py").write_text(code, encoding="utf-8")
    for encoding in ("ascii", "cp1252"):
        status, out, errors = said("scan", tmp_path, encoding=encoding)
        assert (status, errors) == (0, "")
        assert "?.py:5" in out
    raw = Terminal("ascii")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(sys, "stdout", raw)
        patched.setattr(sys, "argv", ["npufix", "scan", str(tmp_path), "--json"])
        with pytest.raises(SystemExit):
            main()
    assert json.loads(raw.kept.getvalue())["findings"][0]["path"].endswith("\u6a21.py")


def test_a_reader_that_leaves_is_no_error_and_no_success() -> None:
    command = f"{Path(sys.executable).parent / 'npufix'} rules show NPU101"
    done = subprocess.run(
        ["/bin/sh", "-c", f"{{ {command}; echo $? >&2; }} | true"],
        capture_output=True, check=False, encoding="utf-8", cwd=ROOT,
    )  # fmt: skip
    assert done.stderr == "141\n"


COMPLETED = [
    (["scan"], "", "--js", {"--json"}),
    (["rules", "show"], "", "npu101", {"NPU101"}),
    (["scan", "--rule"], "", "NPU101,eager-rms", {"NPU101,eager-rms-norm"}),
    (["patch", "--allow"], "", "same-dt", {"same-dtype"}),
    (["diagnose", "-o"], "", "perf", {"perfetto=", "perfetto-findings="}),
    (["gate", "-o"], "", "x", set()),
    ([], "", "dia", {"diagnose"}),
]


@pytest.mark.parametrize(("words", "_", "begun", "expected"), COMPLETED)
def test_a_shell_completes(words: list[str], _: str, begun: str, expected: set[str]) -> None:
    found = ShellComplete(cli, {}, "npufix", "_NPUFIX_COMPLETE").get_completions(words, begun)
    assert {item.value for item in found} == expected


def test_the_script_for_a_shell(said: Callable[..., tuple[int, str, str]]) -> None:
    for shell in ("bash", "zsh", "fish"):
        status, out, _ = said("completion", shell)
        assert status == 0
        assert f"_NPUFIX_COMPLETE={shell}_complete" in out
    script = said("completion", "bash")[1]
    assert "compopt -o nospace" in script
    subprocess.run(["/bin/bash", "-n"], input=script, check=True, encoding="utf-8")


@pytest.mark.parametrize(
    "path", ["gone", "folder", "empty.json", "noise.json", "loop", "/dev/null"]
)
@pytest.mark.parametrize(
    "words",
    ["diagnose X", "compare X X", "gate X --budget step-time=1s", "baseline update X",
     "baseline show X", "patch --source X", "scan X", "explain X:1", "verify X",
     "verify --patch X --source ."],
)  # fmt: skip
def test_a_wrong_path_is_one_line(
    said: Callable[..., tuple[int, str, str]], tmp_path: Path, words: str, path: str
) -> None:
    (tmp_path / "folder").mkdir()
    (tmp_path / "empty.json").touch()
    (tmp_path / "noise.json").write_bytes(bytes(range(256)) * 9)
    (tmp_path / "loop").symlink_to("loop")
    status, _, errors = said(*words.replace("X", str(tmp_path / path)).split())
    assert "Traceback" not in errors
    if status != 0:  # an empty file holds no slow pattern
        assert status in {2, 3}
        assert errors.count("\n") <= 1 or "\nPartial:\n" in errors
    else:
        assert words.split(maxsplit=1)[0] in {"scan", "patch", "verify"}


@pytest.mark.parametrize(
    ("words", "meant"),
    [
        ("diagnos x", "No such command 'diagnos'. Did you mean diagnose? -- npufix --help"),
        ("rules show NPU1011", "Did you mean NPU101"),
        ("rules show eager-rmsnorm", "Did you mean eager-rms-norm"),
        ("scan . --rule eager-swigl", "Did you mean eager-swiglu"),
        ("scan --basline x .", "--baseline"),
        ("diagnose examples/dumb", "did you mean examples/dump?"),
        ("diagnose exmples/dump", "did you mean examples?"),
        ("scan exmples", "did you mean examples?"),
        ("explain examples/bert_like/trian.py:1", "did you mean examples/bert_like/train.py"),
        ("scan examples -o htm=x", "Did you mean html"),
        ("patch --source examples/bert_like --allow same-dtyp", "Did you mean same-dtype"),
    ],
)
def test_what_is_spelt_wrong_is_guessed(
    said: Callable[..., tuple[int, str, str]], words: str, meant: str
) -> None:
    status, out, errors = said(*words.split())
    assert (status, out) == (2, "")
    assert errors.count("\n") == 1
    assert errors.startswith("npufix: ")
    assert meant in errors


@pytest.mark.parametrize(
    "words", ["diagnose examples/dump", "scan examples/bert_like/bert_like/norm.py"]
)
def test_details_are_shown_wherever_they_are_asked_for(
    said: Callable[..., tuple[int, str, str]], words: str
) -> None:
    shown = [said(*line.split()) for line in (f"-v {words}", f"{words} -v", words)]
    assert shown[0] == shown[1] != shown[2]


def test_a_dump_one_level_below_is_found(
    said: Callable[..., tuple[int, str, str]], tmp_path: Path
) -> None:
    """``tensorboard_trace_handler("./run1_ascend_pt")`` makes HOST_ascend_pt in that folder."""
    shutil.copytree("examples/dump", tmp_path / "run1_ascend_pt")
    status, out, errors = said("diagnose", "-q", str(tmp_path / "run1_ascend_pt"))
    assert (status, errors) == (0, "")
    assert "IndexPutV2, IndexPut, NonZero together take" in out


@pytest.mark.parametrize("tty", [True, False])
def test_what_takes_long_is_told_on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, *, tty: bool
) -> None:
    monkeypatch.setattr(progress_line, "_SHOWN_AFTER_S", 0.0)
    monkeypatch.setattr(progress_line, "_BETWEEN_UPDATES_S", 0.0)
    monkeypatch.setenv("TERM", "xterm")
    errors = Terminal(tty=tty)
    monkeypatch.setattr(sys, "stderr", errors)

    def shown(words: str) -> None:
        end = time.monotonic() + (600 if tty else 0.2)
        while words not in errors.text() and time.monotonic() < end:
            time.sleep(0.01)

    with progress_line.progress("Reading") as say:
        for done in (1, 2, 3):
            advance("ranks", done, 400)
            time.sleep(0.12)
        shown("Reading: 3 of")
        say("Verifying")
        shown("Verifying")
    text = errors.text()
    assert ("Reading: 3 of 400 ranks, about" in text) == tty
    assert ("Verifying" in text) == tty
    assert tty or not text


def test_closed_streams_are_no_error(tmp_path: Path) -> None:
    """Else the first file that is opened would be the standard output."""
    run = f"{sys.executable} -m npufix.advisor undo --list <&- >&-"
    for more in ("2>err", "2>&-"):
        done = subprocess.run(f"{run} {more}", shell=True, cwd=tmp_path, check=False)  # noqa: S602
        assert done.returncode == 0
    assert (tmp_path / "err").read_text(encoding="utf-8") == ""


def test_an_interrupt_while_it_loads_is_a_word(tmp_path: Path) -> None:
    (tmp_path / "click.py").write_text("raise KeyboardInterrupt\n")
    program = "import sys; sys.path.insert(0, sys.argv.pop(1))\n"
    program += "from npufix.advisor.__main__ import main; main()"
    command = [sys.executable, "-c", program, str(tmp_path), "--help"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "npufix: interrupted\n")
