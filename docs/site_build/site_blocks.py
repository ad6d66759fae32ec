"""Parts of pages that are made from code and files: a line ``{{ name argument }}`` in a page."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]
_BLOCK = re.compile(r"^( *)\{\{ ([a-z-]+)((?: [^\s}]+)*) \}\}$", re.MULTILINE)


class BlockError(Exception):
    """A page asks for a part that cannot be made."""


def filled(markdown: str, blocks: Mapping[str, Callable[..., str]]) -> str:
    """Return a page with all its parts.

    Raises:
        BlockError: there is no such part, or it cannot be made.

    """

    def part(match: re.Match[str]) -> str:
        indent, name, arguments = match.groups()
        if name not in blocks:
            raise BlockError(f"no part {name}; there are {', '.join(blocks)}")
        text = blocks[name](*arguments.split())
        return "\n".join(f"{indent}{line}".rstrip() for line in text.splitlines())

    return _BLOCK.sub(part, markdown)


def cell(text: str) -> str:
    """Return text for a cell of a table."""
    return escaped(" ".join(text.split())).replace("|", "\\|")


def escaped(text: str) -> str:
    """Return plain text with code in backquotes as Markdown: nothing else in it is markup."""
    parts = re.split(r"(``.+?``|`[^`]+`)", text, flags=re.DOTALL)
    return "".join(_code(part) if part.startswith("`") else _plain(part) for part in parts)


def _code(part: str) -> str:
    return "`" + part.strip("`").strip() + "`"


def _plain(part: str) -> str:
    part = part.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    return re.sub(r"([*\[\]{}\\])|(?<!\w)_|_(?!\w)", lambda match: "\\" + match[0], part)


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Return a table; its cells are Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "\n".join("| " + " | ".join(row) + " |" for row in lines)


def fenced(text: str, language: str = "") -> str:
    """Return a block of code."""
    fence = "````" if "```" in text else "```"
    lines = text.strip("\n").rstrip()
    return f"{fence}{language}\n{lines}\n{fence}"


def formats() -> str:
    """Return the table of the formats of ``--output``, each with the commands that write it."""
    from site_commands import commands  # noqa: PLC0415 - which needs this module

    from npufix.reports.formats import formats as every  # noqa: PLC0415 - only for this part

    takers: dict[str, list[str]] = {name: [] for name in every()}
    for command, described, _ in commands():
        for option in described.params:
            listed = re.search(r"FORMAT: ([^.]*)\.", getattr(option, "help", None) or "")
            for name in listed[1].split(", ") if listed else ():
                takers[name].append(command.removeprefix("npufix "))
    rows = [(f"`{name}`", made.about, ", ".join(takers[name])) for name, made in every().items()]
    return table(["FORMAT", "", "Commands"], rows)


def gate_power() -> str:
    """Return the measured table of how often the gate is wrong, from the benchmarks."""
    text = (ROOT / "benchmarks/README.md").read_text(encoding="utf-8")
    found = re.search(r"^\| noise.*?\n\n(.*?)(?=\n## |\Z)", text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise BlockError("benchmarks/README.md has no table of noise")
    return found[0]


def profiler_code() -> str:
    """Return the code that collects a dump, as the README has it."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    wanted = r"^    with torch_npu\.profiler\.profile\(.*?\n\n"
    found = re.search(wanted, text, re.MULTILINE | re.DOTALL)
    if found is None:
        raise BlockError("README.md has no code that collects a dump")
    code = re.sub(r"^    ", "", found[0], flags=re.MULTILINE)
    return fenced(f"import torch_npu\n\n{code}", "python")


def example_file(name: str) -> str:
    """Return a file of ``examples/``."""
    path = ROOT / "examples" / name
    if not path.is_file():
        raise BlockError(f"no file {path}")
    language = path.suffix.removeprefix(".").replace("yml", "yaml")
    return fenced(path.read_text(encoding="utf-8"), language)
