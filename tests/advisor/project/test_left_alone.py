"""Code that the user, the project or a generator says is to be left alone."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.project.configuration import read_configuration
from npufix.advisor.project.generated import find_origin
from npufix.advisor.project.known_names import ConfigurationError
from npufix.rewriters.find import find_sites
from npufix.rewriters.match.suppressions import read_suppressions
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

RULES = {rule.id: rule for rule in all_rules()}
SITE = "x.repeat_interleave(2, dim=-1)"


def found(inside: Npufix, source: Path, *options: str) -> list[str]:
    report = json.loads(inside("scan", source, "--json", *options).stdout)
    return [f"{f['path']}:{f['line']}" for f in report["findings"]]


def hidden(text: str) -> list[bool]:
    source = "import torch\n" + textwrap.dedent(text)
    comments = read_suppressions(source)
    sites = list(find_sites(source, [RULES["NPU203"]]))
    assert sites
    return [any(comment.hides(site.rule, site.own_lines) for comment in comments) for site in sites]


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("# npufix: ignore", True),
        ("# npufix: ignore[NPU203]", True),
        ("#npufix:ignore[npu101, NPU203]", True),
        ("# npufix: ignore[repeat-interleave-int]", True),
        ("# for speed  # npufix: ignore[NPU203]", True),
        ("# npufix: ignore[NPU101]", False),
        ("# npufix: ignored", False),
        ("# npufix: ignore-file", False),  # not above the code
    ],
)
def test_a_comment_on_the_line(comment: str, *, expected: bool) -> None:
    assert hidden(f"def f(x: torch.Tensor):\n    return {SITE}  {comment}\n") == [expected]


def test_a_comment_on_any_line_of_the_statement_or_on_the_definition() -> None:
    below = f"def f(x: torch.Tensor):\n    y = g(\n        {SITE},\n    )  # npufix: ignore\n"
    assert hidden(f"{below}    z = {SITE}\n    return y, z\n") == [True, False]
    head = f"(x: torch.Tensor):\n    return {SITE}\n"
    function = head.replace(":\n", ":  # npufix: ignore[NPU203]\n", 1)
    assert hidden(f"def f{function}\n\ndef g{head}") == [True, False]
    method = textwrap.indent(f"def f{head}".replace("(x", "(self, x"), "    ")
    assert hidden(f"class A:  # npufix: ignore\n{method}") == [True]
    assert hidden(f"def f(\n    x: torch.Tensor,  # npufix: ignore\n):\n    return {SITE}\n") == [
        True
    ]


def test_the_same_text_in_a_string_hides_nothing() -> None:
    assert hidden(f'def f(x: torch.Tensor):\n    return {SITE}, "# npufix: ignore"\n') == [False]


def test_a_comment_above_the_code_holds_for_the_file() -> None:
    source = f"# npufix: ignore-file[NPU203]\nimport torch\n\n\ndef f(x):\n    return {SITE}\n"
    (comment,) = read_suppressions(source)
    assert 6 in comment.covers
    assert comment.names_rule("NPU203", "")
    assert not comment.names_rule("NPU101", "")


def write(folder: Path, comment: str = "", name: str = "model.py") -> Path:
    path = folder / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(
        f"import torch\n\n\ndef forward(x: torch.Tensor):\n    return {SITE}{comment}\n",
        encoding="utf-8",
    )
    return path


@pytest.mark.usefixtures("proven")
def test_ignored_sites_are_neither_reported_nor_written(inside: Npufix, tmp_path: Path) -> None:
    write(tmp_path, "  # npufix: ignore[NPU203]")
    assert found(inside, tmp_path) == []
    assert inside("patch", "--source", tmp_path, "--unverified").stdout == ""


def test_comments_that_hide_nothing_or_name_no_rule_are_said(
    inside: Npufix, tmp_path: Path
) -> None:
    write(tmp_path, "  # npufix: ignore[NPU203, NPU999]")
    done = inside("scan", tmp_path)
    assert "model.py: line 5: no rule is called npu999" in done.stderr
    assert "hides nothing" not in done.stderr
    write(tmp_path, "  # npufix: ignore[NPU101]")
    assert (
        "model.py: line 5: '# npufix: ignore[NPU101]' hides nothing"
        in inside("scan", tmp_path).stderr
    )
    # The rule was not looked for, so nobody can tell.
    assert inside("scan", tmp_path, "--rule", "NPU203").stderr == ""


def test_the_configuration_selects_rules_and_files(inside: Npufix, tmp_path: Path) -> None:
    for name in ("model.py", "extra/other.py", "old/model.py"):
        write(tmp_path, name=name)
    assert len(found(inside, tmp_path)) == 3
    (tmp_path / "pyproject.toml").write_text(
        '[tool.npufix]\nexclude = ["old"]\nper-file-ignores = {"extra/*" = ["NPU203"]}\n',
        encoding="utf-8",
    )
    assert found(inside, tmp_path) == ["model.py:5"]
    assert found(inside, tmp_path / "extra") == []  # the file above the source counts
    assert found(inside, tmp_path / "old" / "model.py") == ["model.py:5"]  # named itself
    (tmp_path / "npufix.toml").write_text('ignore = ["repeat-interleave-int"]\n', encoding="utf-8")
    assert found(inside, tmp_path) == []
    assert len(found(inside, tmp_path, "--rule", "NPU203")) == 3  # the command line wins


@pytest.mark.usefixtures("proven")
def test_conditions_that_the_project_vouches_for(inside: Npufix, tmp_path: Path) -> None:
    path = tmp_path / "model.py"
    path.write_text(
        "import torch\n\n\ndef f(k: torch.Tensor, n):\n    return k.repeat_interleave(n, dim=1)\n",
        encoding="utf-8",
    )
    assert inside("patch", "--source", tmp_path, "--unverified").stdout == ""
    (tmp_path / "npufix.toml").write_text('allow = ["int-repeats"]\n', encoding="utf-8")
    assert ".expand(*k.shape[:2], " in inside("patch", "--source", tmp_path, "--unverified").stdout


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("selects = []", "unknown key selects"),
        ('select = "NPU101"', "select is 'NPU101', not a list of strings"),
        ("exclude = [1]", "exclude is [1], not a list of strings"),
        ('ignore = ["NPU999"]', "ignore names no rule NPU999"),
        ('per-file-ignores = ["a"]', "per-file-ignores is ['a'], not a table of patterns"),
        ('per-file-ignores = {"a" = ["NPU9"]}', 'per-file-ignores."a" names no rule NPU9'),
        ('allow = ["sure"]', "allow names no condition sure"),
        ("select = [", "not valid TOML"),
    ],
)
def test_a_wrong_configuration_names_file_and_key(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "pyproject.toml"
    path.write_text(f"[tool.npufix]\n{text}\n", encoding="utf-8")
    with pytest.raises(ConfigurationError) as error:
        read_configuration(tmp_path)
    assert str(path) in error.value.message
    assert message in error.value.message
    assert error.value.remedy


def test_a_wrong_configuration_is_one_line(inside: Npufix, tmp_path: Path) -> None:
    write(tmp_path)
    (tmp_path / "npufix.toml").write_text("colour = 1\n", encoding="utf-8")
    done = inside("scan", tmp_path)
    assert done.returncode == 2
    assert done.stdout == ""
    assert "unknown key colour -- there are select, ignore" in done.stderr


@pytest.mark.parametrize(
    ("header", "source"),
    [
        (
            "# This file was automatically generated from models/x/modular_x.py.\n# Do NOT edit it",
            "models/x/modular_x.py",
        ),
        ("# @generated by codegen", ""),
        ("# Code generated by protoc. DO NOT EDIT.", ""),
        ("# -*- coding: utf-8 -*-\n# Autogenerated, do not change", ""),
        ("# Copyright 2024. Text is generated from the prompt.", None),
        ('"""Code generated by x. DO NOT EDIT."""', None),
        ("", None),
    ],
)
def test_headers_of_generated_files(header: str, source: str | None) -> None:
    assert find_origin(f"{header}\nimport torch\n") == source


@pytest.mark.usefixtures("proven")
def test_a_generated_file_is_written_only_on_request(inside: Npufix, tmp_path: Path) -> None:
    path = write(tmp_path)
    header = "# This file was automatically generated from models/modular_model.py.\n"
    path.write_text(header + path.read_text(encoding="utf-8"), encoding="utf-8")
    report = json.loads(inside("scan", tmp_path, "--json").stdout)
    (finding,) = report["findings"]
    assert finding["safety"] == "conditional"
    (condition,) = (c for c in finding["conditions"] if c["basis"] == "open")
    assert condition["name"] == "generated-file"
    assert "change models/modular_model.py instead" in condition["text"]
    assert inside("patch", "--source", tmp_path, "--unverified").stdout == ""
    done = inside("patch", "--source", tmp_path, "--unverified", "--allow", "generated-file")
    assert "torch.stack((x, x), dim=-1)" in done.stdout
