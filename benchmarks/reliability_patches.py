"""Patches that npufix emits, and what git makes of them."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.reliability_running import command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from benchmarks.reliability_inputs import Place

    Faults = Iterator[str]

_EXAMPLES = Path(__file__).parents[1] / "examples"
NORM = """\
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, size: int, eps: float = 1e-6) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))
        self.eps = eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        kind = x.dtype
        x = x.to(torch.float32)
        variance = x.pow(2).mean(-1, keepdim=True)
        x = x * torch.rsqrt(variance + self.eps)
        return self.weight * x.to(kind)
"""
_SHAPES: dict[str, Callable[[bytes], bytes]] = {
    "plain": lambda text: text,
    "CRLF": lambda text: text.replace(b"\n", b"\r\n"),
    "CR LF and LF": lambda text: text.replace(b"\n", b"\r\n", 3),
    "no newline at the end": lambda text: text.rstrip(b"\n"),
    "byte order mark": lambda text: b"\xef\xbb\xbf" + text,
    "Latin-1": lambda text: b"# coding: latin-1\n# \xe9\xff\n" + text,
    "form feed": lambda text: b"# a\x0cb\x0b\x1c\n\x0c\n" + text,
    "line separators": lambda text: "# a\u2028b\u0085c\n".encode() + text,
    "tabs": lambda text: text.replace(b"    ", b"\t"),
}
_NAMES = (
    "m.py", "a b.py", "tab\there.py", 'quo"te.py', "it's.py", "new\nline.py", "back\\slash.py",
    "\u6a21\u578b.py", "\udcff\udcfe.py", "-n.py", "b/c d/m.py", "a/b/b/a.py", "dev/null.py",
    "%41.py",
)  # fmt: skip


def patches(place: Place) -> Faults:
    """``git apply --check`` takes every patch, whatever the text, the name and the folder."""
    from npufix.rewriters.write.patch import FileChange, unified_diff  # noqa: PLC0415 - once it is loaded

    texts = _examples()
    for shape in _SHAPES.values():
        for number in range(0, len(texts), 40):
            some = texts[number : number + 40]
            top, changes = place.folder(), []
            for one, (before, after) in enumerate(some):
                name = f"{one}/{_NAMES[one % len(_NAMES)]}"
                old, new = shape(before), shape(after)
                changes.append(FileChange(top / name, name, old, new))
                _write(top / name, old)
            fault = _applied(unified_diff(changes), top, ["apply"], "")
            wrong = [c.relative for c in changes if (top / c.relative).read_bytes() != c.after]
            fault = fault or (f"{wrong[0]!r} differs" if wrong else "")
            yield from (fault for _ in some)
            shutil.rmtree(top)
    yield from _whole_commands(place)


def _examples() -> list[tuple[bytes, bytes]]:
    """Return all examples of the rules, before and after."""
    from npufix.rules.registry import all_rules  # noqa: PLC0415 - once it is loaded

    return [
        (example.before.encode(), example.after.encode())
        for rule in all_rules()
        for example in getattr(rule, "rewritten", ())
    ]


def _whole_commands(place: Place) -> Faults:
    """Apply what ``patch -o`` writes: the result is that of ``patch --write``."""
    top = place.folder()
    source = top / "sub folder" / "src"
    for number, (shape, name) in enumerate(zip((*_SHAPES,) * 2, _NAMES, strict=False)):
        _write(source / str(number) / name, _SHAPES[shape](NORM.encode()))
    shutil.copytree(_EXAMPLES / "bert_like", source / "example")
    allow = ["--on", "reference", "--allow", "same-dtype"]
    for below in (source, source / "example", source / "0" / "m.py"):
        there = below if below.is_dir() else below.parent
        patch = place.folder() / "a.patch"
        ended = command(["patch", "--source", below, *allow, "-o", patch], place.root)
        before = {file: file.read_bytes() for file in source.rglob("*.py")}
        text = patch.read_bytes().decode("utf-8", "surrogateescape") if patch.exists() else ""
        directory = there.relative_to(top).as_posix()
        fault = ended.fault(expected=frozenset({0})) or ("" if text else "an empty patch")
        fault = fault or _applied(text, top, ["apply", f"--directory={directory}"], "below")
        by_git = {file: file.read_bytes() for file in before}
        for file, data in before.items():
            file.write_bytes(data)
        command(["patch", "--source", below, *allow, "--write"], place.root)
        same = by_git == {file: file.read_bytes() for file in before} != before
        command(["undo", "--source", there], place.root)
        back = before == {file: file.read_bytes() for file in before}
        changed = text.count("diff --git ")
        fault = fault or ("" if same else "git makes another text of it") or (
            "" if back else "undo does not bring it back"
        )  # fmt: skip
        yield from (fault for _ in range(max(1, changed)))


def _write(path: Path, data: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)


def _applied(diff: str, top: Path, words: Sequence[str], what: str) -> str:
    """Apply a patch, checked first; return what git says against it."""
    git = ["git", "-C", str(top), "-c", "core.autocrlf=false"]
    if not (top / ".git").exists():
        subprocess.run([*git, "init", "-q"], check=True)
    for more in (["--check"], []):
        done = subprocess.run(
            [*git, *words, "--whitespace=nowarn", *more],
            input=diff.encode("utf-8", "surrogateescape"),
            capture_output=True,
            check=False,
        )
        if done.returncode:
            return f"{what} git: {done.stderr.decode(errors='replace')[-200:]}".strip()
    return ""
