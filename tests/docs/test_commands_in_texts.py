"""Every command that a text shows exists, with the options that it is shown with."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import TYPE_CHECKING

import click
import pytest

from npufix.advisor.commands.cli import cli
from npufix.advisor.project.configuration import read_configuration
from npufix.reports.formats import formats

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[2]
TEXTS = [
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted(ROOT.glob("*.md")),
    ROOT / "examples/README.md",
    ROOT / "benchmarks/README.md",
]
BLOCK = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```$", re.MULTILINE | re.DOTALL)
RUN = re.compile(r"^```(?:run|output).*?^```$", re.MULTILINE | re.DOTALL)
INDENTED = re.compile(r"^    (?!\s)(.*)$", re.MULTILINE)
INLINE = re.compile(r"`(npufix [^`\n]+)`")
FILE = re.compile(r"\b(?:tests|benchmarks|advisor|rewriters|profiling_parsers)/[\w./-]*\w")
OPTION = re.compile(r"(?<![\w-])--?[a-zA-Z][\w-]*")


def name_of(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def commands(text: str) -> Iterator[str]:
    """Yield the command lines of npufix in blocks of code."""
    shell = [body for language, body in BLOCK.findall(text) if language in {"sh", "run", "console"}]
    shell.append("\n".join(INDENTED.findall(BLOCK.sub("", text))))
    for line in "\n".join(shell).replace("\\\n", " ").splitlines():
        found = re.search(r"(?:^|\| )(?:\$ )?(npufix .*)$", line.strip())
        if found:
            yield found[1]


def words(line: str) -> list[str]:
    """Return the arguments of a command, without what the shell does."""
    without = re.sub(r"\$\([^)]*\)", "X", line)
    parts = shlex.split(without, comments=True)[1:]
    ends = [parts.index(sign) for sign in (">", "|", "||", ";", "&&") if sign in parts]
    return parts[: min(ends, default=len(parts))]


def resolved(arguments: list[str]) -> tuple[click.Command, click.Context, list[str]]:
    """Return the command that is meant, its context and what is left for it."""
    command: click.Command = cli
    # Commands keep the option for help of the context that first asks for it.
    context = click.Context(command, info_name="npufix", **command.context_settings)
    while isinstance(command, click.Group) and arguments and not arguments[0].startswith("-"):
        inner = command.get_command(context, arguments[0])
        assert inner is not None, f"no command {arguments[0]}"
        command, context = inner, click.Context(inner, parent=context, info_name=arguments[0])
        arguments = arguments[1:]
    return command, context, arguments


def check(line: str) -> None:
    """Parse a whole command line as click does, without running it."""
    command, context, arguments = resolved(words(line))
    given, _, _ = command.make_parser(context).parse_args(list(arguments))
    for parameter in command.params:
        value = given.get(str(parameter.name))
        values = value if isinstance(value, (list, tuple)) else [value]
        for each in values:
            if isinstance(each, str) and isinstance(parameter.type, click.Choice):
                parameter.type.convert(each, parameter, context)
            if isinstance(each, str) and parameter.name in {"outputs", "reports"} and "=" in each:
                assert each.partition("=")[0] in formats()


def check_mentioned(line: str) -> None:
    """Check the command and the options of a command that is only mentioned."""
    command, _, arguments = resolved([word for word in words(line) if word != "…"])
    known = {name for p in command.params for name in (*p.opts, *p.secondary_opts)}
    for word in arguments:
        option = OPTION.match(word)
        assert not option or option[0] in {*known, "--help", "-h"}, f"no option {word}: {line}"


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_shown_commands_parse(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    for line in commands(text):
        print(line)  # noqa: T201 - the last one is what a failure is about
        check(line)
    for line in INLINE.findall(BLOCK.sub("", text)):
        check_mentioned(line)


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_named_files_exist(path: Path) -> None:
    found = set(FILE.findall(path.read_text(encoding="utf-8")))
    assert [name for name in sorted(found) if not (ROOT / name).exists()] == []


def test_there_are_commands_to_check() -> None:
    found = [line for path in TEXTS for line in commands(path.read_text(encoding="utf-8"))]
    assert len(found) > 60
    assert any(line.startswith("npufix verify --patch -") for line in found), "behind a pipe"


@pytest.mark.parametrize(
    "line",
    ["npufix diagnos x", "npufix scan src --basline f", "npufix gate x --fail-on nothing",
     "npufix diagnose x -o pdf=x.pdf", "npufix baseline upgrade x"],
)  # fmt: skip
def test_a_command_that_does_not_exist_is_noticed(line: str) -> None:
    with pytest.raises((click.UsageError, AssertionError)):
        check(line)


@pytest.mark.parametrize("path", TEXTS, ids=name_of)
def test_shown_configurations_are_accepted(path: Path, tmp_path: Path) -> None:
    blocks = [body for kind, body in BLOCK.findall(path.read_text(encoding="utf-8"))
              if kind == "toml" and "[tool.npufix" in body]  # fmt: skip
    for body in blocks:
        (tmp_path / "pyproject.toml").write_text(body, encoding="utf-8")
        assert read_configuration(tmp_path).folder == tmp_path.resolve()


def test_both_languages_of_a_page_run_the_same_commands() -> None:
    english, chinese = (
        [found[0] for found in RUN.finditer(path.read_text(encoding="utf-8"))]
        for path in (ROOT / "docs/tutorial.md", ROOT / "docs/zh/tutorial.md")
    )
    assert english == chinese
