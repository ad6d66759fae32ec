"""Functions of released packages, out of their wheels: nothing of them is installed."""

from __future__ import annotations

import ast
import random
import re
import subprocess
import sys
import zipfile
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

PACKAGES = (
    "transformers==4.57.1", "x-transformers==2.31.10", "litgpt==0.5.13", "timm==1.0.22",
    "diffusers==0.35.2",
)  # fmt: skip
_LINES = range(3, 60)
_HINTS = ("torch.", ".view(", ".sum(", ".mean(", "matmul", "F.", "nn.functional", "softmax", ".to(")
_MODELS = r"^modeling_(?!tf_|flax_)|^activations|^pytorch_utils"
"""Where a large package keeps what computes."""
_DRIVERS = r"^pipeline_"
"""What only calls models with prompts and images: no arguments can be made for most of it."""


@dataclass(frozen=True)
class Function:
    """A function of a file, with its lines."""

    path: Path
    root: Path
    qualname: str
    first: int
    body: int
    last: int

    @property
    def name(self) -> str:
        """What it is called in the results."""
        return f"{self.path.relative_to(self.root)}:{self.first} {self.qualname}"


def download(folder: Path, packages: Sequence[str] = PACKAGES) -> list[Path]:
    """Return the unpacked packages; those that cannot be had are left out."""
    found = []
    for package in packages:
        place = folder / package
        if not place.is_dir():
            command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps"]
            command += ["--only-binary", ":all:", "-d", str(folder), package]
            if subprocess.run(command, check=False).returncode:
                print(f"left out: {package}", file=sys.stderr)
                continue
            start = package.partition("==")[0].replace("-", "_")
            (wheel,) = folder.glob(f"{start}-*.whl")
            zipfile.ZipFile(wheel).extractall(place)
        found.append(place)
    return found


def find_functions(roots: Sequence[Path], seed: int = 0) -> Iterator[Function]:
    """Yield the functions that compute with tensors, one of each file in turn.

    A model copied from another one has the same functions: of equal texts there is one.
    """
    seen: set[str] = set()
    files = [
        (root, path)
        for root in roots
        for path in sorted(root.rglob("*.py"))
        if re.search(_MODELS if (root / "transformers").is_dir() else "", path.name)
        and not re.search(_DRIVERS, path.name)
    ]
    random.Random(seed).shuffle(files)  # noqa: S311 - the same each time
    left = [_of_file(root, path, seen, seed) for root, path in files]
    while left:
        for functions in list(left):
            function = next(functions, None)
            if function is None:
                left.remove(functions)
            else:
                yield function


def _of_file(root: Path, path: Path, seen: set[str], seed: int) -> Iterator[Function]:
    try:
        tree = ast.parse(path.read_text("utf-8", "replace"))
    except SyntaxError:
        return
    for scope in [tree, *(n for n in tree.body if isinstance(n, ast.ClassDef))]:
        for node in random.Random(f"{seed} {path.name}").sample(scope.body, len(scope.body)):  # noqa: S311 - the same each time
            if not isinstance(node, ast.FunctionDef) or node.name.startswith("__"):
                continue
            last = node.end_lineno or node.lineno
            body = ast.unparse(node)
            if last - node.lineno + 1 not in _LINES or body in seen:
                continue
            if any(hint in body for hint in _HINTS):
                seen.add(body)
                name = node.name if scope is tree else f"{scope.name}.{node.name}"  # type: ignore[attr-defined] # a class
                yield Function(path, root, name, node.lineno, node.body[0].lineno, last)
