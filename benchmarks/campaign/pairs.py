"""From an original and what a public adaptation puts in its place to two texts of one file.

An original is a file of a source (``transformers:transformers/models/qwen2/modeling_qwen2.py``);
its changes say which of its definitions are replaced by which: ``{"Qwen2RMSNorm.forward":
"verl:verl/models/transformers/npu_patch.py:rms_norm_forward_npu"}``. A path that ends in
``.patch`` stands for what git makes of the original with it.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import tarfile
import tempfile
import textwrap
from pathlib import Path

from npufix.rewriters.verification.inputs.source.slicing import (
    IMPORTS,
    list_bound_names,
    list_used_names,
    slice_module,
)

_Definition = ast.FunctionDef | ast.ClassDef


class PairError(Exception):
    """The two texts cannot be made; the message says why."""


def unpack(source: str, checkouts: Path, work: Path) -> Path:
    """Return a folder with the code of ``owner/name@commit`` or ``package==version``.

    Raises:
        PairError: ``checkouts`` has neither ``owner+name`` nor ``package-version``.

    """
    name, _, commit = source.partition("@")
    if not commit:
        folder = checkouts / source.replace("==", "-")
        if not folder.is_dir():
            raise PairError(f"pip install --no-deps --target {folder} {source}")
        return folder
    folder = work / re.sub(r"[/@]", "-", source)
    if not folder.exists():
        git = ["git", "-C", str(checkouts / name.replace("/", "+")), "archive", commit]
        done = subprocess.run([*git, "--", "*.p[ya]*"], capture_output=True, check=False)
        if done.returncode:
            raise PairError(f"no checkout of {source}: {done.stderr.decode().strip()}")
        with tarfile.open(fileobj=io.BytesIO(done.stdout)) as archive:
            archive.extractall(folder, filter="data")
    return folder


def apply_patch(text: str, path: str, patch: Path) -> str:
    """Return the file that a patch of a whole repository makes of one of its files.

    Raises:
        PairError: it does not apply.

    """
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, path)
        file.parent.mkdir(parents=True)
        file.write_text(text, "utf-8")
        git = ["git", "apply", "--ignore-whitespace", f"--include={path}", str(patch.resolve())]
        done = subprocess.run(git, cwd=folder, capture_output=True, check=False)
        if done.returncode:
            raise PairError(f"the patch does not apply: {done.stderr.decode().strip()[:200]}")
        return file.read_text("utf-8")


def compose(old: str, name: str, new: str, new_name: str) -> str:
    """Return a file with a definition of another file in place of its own.

    It is called as the old one is: ``def f(self, x)`` in place of ``def forward(self, h)`` becomes
    ``def forward(self, h)``. What it needs of its file goes before it.

    Raises:
        PairError: there is no such definition, or two things of one name would be needed.

    """
    target, written = _find(old, name), _find(new, new_name)
    tree = ast.parse(new)
    before, top = old.splitlines(), _find(old, name.partition(".")[0])
    own = {n: s for s in ast.parse(old).body for n in list_bound_names(s) if n != top.name}
    given = {ast.dump(s) for s in own.values()}
    needs = [
        s for s in _needs(tree, written, new_name.partition(".")[0]) if ast.dump(s) not in given
    ]
    for bound in {b for s in needs if not isinstance(s, IMPORTS) for b in list_bound_names(s)}:
        if bound in own and not isinstance(own[bound], IMPORTS):
            raise PairError(f"both files define {bound}, in different ways")
    marked = written if _is_static(written) else target
    marks = [f"@{ast.unparse(d)}" for d in marked.decorator_list if "method" in ast.unparse(d)]
    segments = (ast.get_source_segment(new, statement) or "" for statement in needs)
    text = textwrap.indent("\n".join([*marks, _rename(written, target)]), " " * target.col_offset)
    return "\n".join(
        [
            *before[: _start(top) - 1],
            *segments,
            *before[_start(top) - 1 : _start(target) - 1],
            text,
            *before[target.end_lineno :],
            "",
        ]
    )


def _find(text: str, name: str) -> _Definition:
    scope: ast.AST = ast.parse(text)
    for part in name.split("."):
        inside = (n for n in ast.walk(scope) if isinstance(n, _Definition) and n.name == part)
        found = next(inside, None)
        if found is None:
            raise PairError(f"there is no {name}")
        scope = found
    assert isinstance(scope, _Definition)  # noqa: S101 - for the type
    return scope


def _start(definition: _Definition) -> int:
    return min([definition.lineno, *(d.lineno for d in definition.decorator_list)])


def _is_static(definition: _Definition) -> bool:
    return any(ast.unparse(d) == "staticmethod" for d in definition.decorator_list)


def _needs(tree: ast.Module, written: _Definition, top: str) -> list[ast.stmt]:
    """Return what a definition needs of its file, in the order of the file."""
    wanted = set[int]()
    for name in list_used_names(written) - {top}:
        wanted |= {id(s) for s in slice_module(tree, name) if top not in list_bound_names(s)}
    return [s for s in tree.body if id(s) in wanted and getattr(s, "module", "") != "__future__"]


def _rename(written: _Definition, target: _Definition) -> str:
    """Return the text of a definition under the names of another: its own and its arguments'."""
    names = {written.name: target.name} if isinstance(written, ast.ClassDef) else {}
    if isinstance(written, ast.FunctionDef) and isinstance(target, ast.FunctionDef):
        mine, theirs = written.args.args, target.args.args
        theirs = theirs[-len(mine) :] if _is_static(written) else theirs  # without cls or self
        if len(mine) == len(theirs):
            names = {a.arg: b.arg for a, b in zip(mine, theirs, strict=True)}
    for node in ast.walk(written):
        if isinstance(node, ast.Name):
            node.id = names.get(node.id, node.id)
        elif isinstance(node, ast.arg):
            node.arg = names.get(node.arg, node.arg)
    written.name, written.decorator_list = target.name, []
    return ast.unparse(written)
