"""What a user knows of a changed program: conditions, a dump, and the other files of the change."""

from __future__ import annotations

import difflib
import json
import runpy
import shutil
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.verify.changes import from_patch
from npufix.advisor.verify.recorded_inputs import read_recording

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("torch", reason="torch is needed to verify changes")
EXAMPLES = Path(__file__).parents[3] / "examples"
HIDDEN = """\
import torch


def hide(x: torch.Tensor, mask: torch.Tensor):
    x = x.clone()
    x[mask > 0] = 0.0
    return x
"""
FILLED = HIDDEN.replace("x[mask > 0] = 0.0", "x.masked_fill_(mask > 0, 0.0)")


def diff(before: str, after: str, name: str) -> str:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}"))


def statuses(done: subprocess.CompletedProcess[str]) -> dict[str, str]:
    assert done.stdout, done.stderr
    found = json.loads(done.stdout)["functions"]
    return {f["function"]: f["verdict"]["status"] for f in found}


def test_calls_that_break_a_vouched_condition_say_nothing(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text(HIDDEN, encoding="utf-8")
    (tmp_path / "new.py").write_text(FILLED, encoding="utf-8")
    asked = ("verify", tmp_path / "new.py", "--against", tmp_path / "old.py", "--json")
    assert statuses(inside(*asked)) == {"hide": "not verified"}
    assert statuses(inside(*asked, "--allow", "same-rank-mask")) == {"hide": "equivalent"}
    (tmp_path / "new.py").write_text(FILLED.replace("> 0,", "< 1,"), encoding="utf-8")
    (tmp_path / "npufix.toml").write_text('allow = ["same-rank-mask"]\n', encoding="utf-8")
    found = json.loads(inside(*asked).stdout)["functions"][0]["verdict"]
    assert found["status"] == "refuted"
    assert "raises" not in found["counterexample"]


def test_a_dump_says_what_to_try_and_what_holds(inside: Npufix, tmp_path: Path) -> None:
    shutil.copytree(EXAMPLES / "bert_like", tmp_path / "src")
    text = (tmp_path / "src" / "bert_like" / "lengths.py").read_text("utf-8")
    later = text.replace("x[~mask] = value", "x.masked_fill_(~mask, value)")
    change = tmp_path / "change.diff"
    change.write_text(diff(text, later, "bert_like/lengths.py"), encoding="utf-8")
    asked = ("verify", "--patch", change, "--source", tmp_path / "src", "--json")
    assert statuses(inside(*asked)) == {"sequence_mask": "refuted"}
    done = inside(*asked, "--dump", EXAMPLES / "dump")
    assert statuses(done) == {"sequence_mask": "equivalent"}
    assert not done.stderr
    changes = from_patch(change.read_bytes(), "change.diff", tmp_path / "src")
    recording = read_recording(EXAMPLES / "dump", changes, EVERYTHING)
    assert recording.proves
    assert recording.of(changes.files[0], "sequence_mask")
    (tmp_path / "src" / "train.py").write_text("", encoding="utf-8")
    elsewhere = read_recording(EXAMPLES / "dump", changes, EVERYTHING)
    assert not elsewhere.proves
    assert "the dump proves no condition" in elsewhere.warnings[0]


OPS = "def less(x, by):\n    return x - by\n"
MODEL = """\
import torch


def f(x: torch.Tensor):
    from pkg.between import less

    return less(x, 2.0)


def g(x: torch.Tensor):
    from pkg.between import less

    return less(x, 2.0) * 2
"""


def test_files_between_the_changed_ones_see_the_right_version(
    inside: Npufix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "pkg"
    package.mkdir()
    texts = {"__init__": "", "between": "from .ops import less\n", "ops": OPS, "model": MODEL}
    for name, text in texts.items():
        (package / f"{name}.py").write_text(text, encoding="utf-8")
    turned = OPS.replace("x, by):", "by, x):")
    called = MODEL.replace("less(x, 2.0)\n", "less(2.0, x)\n")
    called = called.replace("less(x, 2.0) * 2", "2 * less(x, 2.0)")
    change = diff(OPS, turned, "pkg/ops.py") + diff(MODEL, called, "pkg/model.py")
    (tmp_path / "change.diff").write_text(change, encoding="utf-8")
    script = tmp_path / "wrong.py"
    options = ("--source", tmp_path, "--counterexample", script, "--json")
    done = inside("verify", "--patch", tmp_path / "change.diff", *options)
    assert statuses(done) == {"f": "equivalent", "g": "refuted", "less": "refuted"}, done.stdout
    scripts = [p for p in sorted(tmp_path.glob("wrong*.py")) if "def g(" in p.read_text("utf-8")]
    monkeypatch.setattr(sys, "path", sys.path[:])
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(scripts[0]), run_name="__main__")
    assert end.value.code == 1


def test_what_the_configuration_excludes_is_left_out_unless_it_is_named(
    inside: Npufix, tmp_path: Path
) -> None:
    text = "def f(x):\n    return x\n"
    (tmp_path / "npufix.toml").write_text('exclude = ["old/*"]\n', encoding="utf-8")
    (tmp_path / "old").mkdir()
    (tmp_path / "old" / "model.py").write_text(text, encoding="utf-8")
    change = diff(text, text.replace("return x", "return  x"), "old/model.py")
    (tmp_path / "change.diff").write_text(change, encoding="utf-8")
    done = inside("verify", "--patch", tmp_path / "change.diff", "--source", tmp_path)
    assert done.returncode == 0
    assert "excludes 1 changed file" in done.stderr
