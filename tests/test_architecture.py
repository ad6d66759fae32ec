"""The house keeps its shape: imports run one way, files stay small, libraries load late."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "profiling_parsers": set(),
    "rules": {"profiling_parsers"},
    "rewriters": {"rules"},
    "reports": {"profiling_parsers", "rules", "rewriters"},
    "advisor": {"profiling_parsers", "rules", "rewriters", "reports"},
}
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
_LONGEST_FILE = 400
_LONGEST_FUNCTION = 60


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


@pytest.mark.parametrize("path", FILES, ids=names)
def test_imports_run_one_way(path: Path) -> None:
    package = path.relative_to(ROOT).parts[0]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("npufix."):
            other = str(node.module).split(".")[1]
            assert other == package or other in MAY_IMPORT[package], f"{node.module}:{node.lineno}"


@pytest.mark.parametrize("path", FILES, ids=names)
def test_files_and_functions_stay_small(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= _LONGEST_FILE
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef):
            assert (node.end_lineno or 0) - node.lineno < _LONGEST_FUNCTION + 10, node.name


def test_every_package_is_installed() -> None:
    listed = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for path in FILES:
        assert f'"npufix.{".".join(path.relative_to(ROOT).parent.parts)}"' in listed
