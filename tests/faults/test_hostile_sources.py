"""A source is data from anybody, and so are its settings: read, or told, whatever they hold."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.commands.cli import cli
from npufix.advisor.project.configuration import read_configuration
from npufix.advisor.project.known_names import ConfigurationError
from npufix.advisor.project.source_tree import read_source_tree
from npufix.advisor.verify.changes import DiffError

if TYPE_CHECKING:
    from pathlib import Path

F = "def f(x):\n    return x\n"


@pytest.mark.parametrize(
    "value",
    ["[" * 5000 + "]" * 5000, "{a=" * 3000 + "1" + "}" * 3000, "9" * 5000],
    ids=["lists", "tables", "digits"],
)
def test_settings_that_no_person_has_written(tmp_path: Path, value: str) -> None:
    (tmp_path / "pyproject.toml").write_text(f"[tool.npufix]\nexclude = {value}\n")
    with pytest.raises(ConfigurationError, match="not valid TOML"):
        read_configuration(tmp_path)


@pytest.mark.parametrize("coding", ["idna", "utf-7", "unicode_escape", "punycode", "hz"])
def test_an_encoding_that_changes_cannot_be_written_in(tmp_path: Path, coding: str) -> None:
    """``patch`` had a traceback for the first, and would have changed other lines for others."""
    text = f"# coding: {coding}\nx = '~+\\n'\n{F}"
    (tmp_path / "m.py").write_text(text)
    tree = read_source_tree(tmp_path)
    (problem,) = tree.problems
    assert (problem.what.split(":")[0], tree.files) == ("cannot be decoded", {})


def test_an_encoding_that_is_meant_is_read(tmp_path: Path) -> None:
    for coding, text in (("latin-1", "é"), ("gbk", "中"), ("shift_jis", "あ"), ("cp1252", "“")):
        content = f"# coding: {coding}\nx = '{text}~\\n'\n".encode(coding)
        (tmp_path / f"{coding.replace('-', '_')}.py").write_bytes(content)
    tree = read_source_tree(tmp_path)
    assert (len(tree.files), list(tree.problems)) == (4, [])


def test_a_file_that_is_too_large_is_left_out(tmp_path: Path) -> None:
    with (tmp_path / "m.py").open("wb") as file:
        file.truncate(1 << 30)
    (problem,) = read_source_tree(tmp_path).problems
    assert (problem.what, problem.remedy) == ("larger than 16 MiB", "add it to exclude")


@pytest.mark.parametrize(
    "deep", ["y = 1" + " + 1" * 20_000, "y = x" + ".a" * 2_000], ids=["sum", "attributes"]
)
def test_a_change_that_is_too_deep_is_told(tmp_path: Path, deep: str) -> None:
    (tmp_path / "old.py").write_text(F)
    (tmp_path / "m.py").write_text(F.replace("return x", f"{deep}\n    return x"))
    arguments = ["verify", str(tmp_path / "m.py"), "--against", str(tmp_path / "old.py")]
    with pytest.raises(DiffError, match="nested too deeply to be compared"):
        cli.main(arguments, standalone_mode=False)
