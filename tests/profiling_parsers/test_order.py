"""The folders of the parsers have an order, and no arrow runs back."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from npufix import profiling_parsers

ROOT = Path(__file__).parents[2] / "profiling_parsers"
ORDER = [
    ["profile", "signals", "remedies", "progress"],
    ["special_files", "dump_folder"],
    ["tables", "profiler_info"],
    ["schema", "kernels", "trace"],
    ["attribution"],
    ["text", "database", "kineto"],
    ["msprof"],
    ["formats"],
    ["discover"],
    ["reader"],
    ["cluster"],
]
FLOOR = {name: floor for floor, names in enumerate(ORDER) for name in names}
FILES = sorted(ROOT.rglob("*.py"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_a_folder_uses_only_those_below_it(path: Path) -> None:
    own = path.relative_to(ROOT).with_suffix("").parts[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("npufix."):
            part = str(node.module).split(".")[2:]
            for other in part[:1] or [alias.name for alias in node.names]:
                # A type in the annotations of the other, on either side.
                lower = FLOOR[other] < FLOOR[own] or {own, other} == {"signals", "profile"}
                assert other == own or lower, f"{node.module}:{node.lineno}"


def test_the_order_is_told_where_a_reader_begins() -> None:
    folders = [name for names in ORDER for name in names if (ROOT / name).is_dir()]
    told = str(profiling_parsers.__doc__)
    assert folders == sorted(folders, key=lambda name: told.index(f"``{name}``"))
