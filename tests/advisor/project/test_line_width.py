"""How long a line may be: what a project tells its formatters and linters."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.project.configuration import find_line_width
from npufix.advisor.project.source_tree import read_source_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("name", "text", "width"),
    [
        ("pyproject.toml", "[tool.black]\nline-length = 72\n", 72),
        ("pyproject.toml", "[tool.ruff]\nline-length = 120\n[tool.black]\nline-length = 72\n", 120),
        ("pyproject.toml", "[tool.ruff.lint]\nselect = ['E']\n", None),
        ("ruff.toml", "line-length = 140\n", 140),
        ("setup.cfg", "[flake8]\nmax-line-length = 99 \n", 99),
        (".flake8", "[flake8]\nmax-line-length = many\n", None),
        (".style.yapf", "[style]\ncolumn_limit = 100\n", 100),
        (".editorconfig", "root = true\n[*.{py,pyi}]\nmax_line_length = 100\n", 100),
        (".editorconfig", "[*]\nmax_line_length = off\n", None),
        (".editorconfig", "[*]\nmax_line_length = 4\n", None),
        ("ruff.toml", "line-length = [", None),
        ("tox.ini", "\x00[[", None),
        ("pyproject.toml", "tool = 3\n", None),
    ],
)
def test_width_of_a_project(tmp_path: Path, name: str, text: str, width: int | None) -> None:
    (tmp_path / ".git").mkdir()
    (tmp_path / name).write_text(text)
    (tmp_path / "src" / "package").mkdir(parents=True)
    assert find_line_width(tmp_path / "src" / "package") == width


def test_nothing_is_read_above_a_repository(tmp_path: Path) -> None:
    (tmp_path / "ruff.toml").write_text("line-length = 60\n")
    (tmp_path / "repository" / ".git").mkdir(parents=True)
    assert find_line_width(tmp_path / "repository") is None


@pytest.mark.parametrize(("width", "lines"), [(60, 3), (100, 1)])
def test_changes_keep_to_it(tmp_path: Path, width: int, lines: int) -> None:
    (tmp_path / "ruff.toml").write_text(f"line-length = {width}\n")
    code = "def f(hidden: torch.Tensor, lowest: float):\n    {}\n    return hidden\n"
    changed = "hidden[(hidden.abs() > lowest) & (hidden < 1.0)] = 0.0"
    (tmp_path / "m.py").write_text(f"import torch\n\n\n{code.format(changed)}")
    (found,) = scan(read_source_tree(tmp_path), cache=False).found
    assert found.site.rewrite is not None
    new = found.site.rewrite.direct
    assert new.count("\n") == 6 + lines - 1
    assert max(map(len, new.splitlines())) <= width
