"""``npufix explain``: which rules match at a line, which nearly do, and where they part."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.diagnose.explaining import explain
from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.project.source_tree import read_source_tree
from npufix.advisor.rules_test.substitutions import explanations
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Form

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

MODEL = """\
import torch
from torch import nn


class Norm(nn.Module):
    def __init__(self, dim: int, eps: float = 1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x: torch.Tensor):
        v = x.float().pow(2).mean(-1, keepdim=True)
        y = (x.float() * torch.rsqrt(v + self.eps)).to(x.dtype)
        return self.weight * y

    def without_eps(self, x: torch.Tensor):
        v = x.float().pow(2).mean(-1, keepdim=True)
        y = (x.float() * torch.rsqrt(v)).to(x.dtype)
        return self.weight * y

    def without_weight(self, x: torch.Tensor):
        v = x.float().pow(2).mean(-1, keepdim=True)
        return (x.float() * torch.rsqrt(v + self.eps)).to(x.dtype)


@torch.jit.script
def compiled(x: torch.Tensor, n: int):
    return x.repeat_interleave(n, dim=1)


def numbers(x: torch.Tensor, sizes: torch.Tensor):
    a = x.repeat_interleave(3, dim=1)  # npufix: ignore[NPU203]
    return a, torch.repeat_interleave(x, sizes, dim=1), x.sin()
"""


def line_of(code: str, after: str = "") -> int:
    lines = MODEL.splitlines()
    start = next(n for n, line in enumerate(lines) if after in line)
    return next(n for n in range(start, len(lines)) if code in lines[n]) + 1


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.py"
    path.write_text(MODEL, encoding="utf-8")
    return path


def explained(inside: Npufix, model: Path, line: int, *options: str) -> dict[str, list[dict]]:
    done = inside("explain", f"{model}:{line}", "--json", *options)
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def test_a_match_is_shown_from_every_line_that_takes_part(inside: Npufix, model: Path) -> None:
    for code in ("v = x.float()", "y = (x", "return self.weight"):
        found = explained(inside, model, line_of(code, "def forward"))
        (norm,) = (m for m in found["matches"] if m["rule"] == "NPU101")
        bases = {c["name"]: c["basis"] for c in norm["conditions"]}
        assert bases["number-eps"] == "source"
        assert bases["same-dtype"] == "open"
        assert "npu_rms_norm" in norm["replacement"]
    shown = inside("explain", f"{model}:{line_of('v = x', 'def forward')}").stdout
    assert "--allow same-dtype" in " ".join(shown.split())


def test_a_near_miss_says_where_the_pattern_and_the_code_part(inside: Npufix, model: Path) -> None:
    found = explained(inside, model, line_of("y =", "def without_eps"), "--rule", "NPU101")
    (near,) = found["near"]
    (reason,) = near["reasons"]
    mean = "x.float().pow(2).mean(-1, keepdim=True)"
    assert reason.startswith(f"line {line_of('v =', 'def without_eps')}: expected ")
    assert reason.endswith(f"+ eps: here {mean} is not part of one")
    assert near["agreeing"] < near["operations"]


def test_what_the_pattern_has_around_the_code_is_said(inside: Npufix, model: Path) -> None:
    found = explained(inside, model, line_of("return", "def without_weight"), "--rule", "NPU101")
    assert any("weight" in reason for near in found["near"] for reason in near["reasons"])


def test_compiled_and_ignored_code_say_so(inside: Npufix, model: Path) -> None:
    found = explained(inside, model, line_of("return", "def compiled"))
    assert "compiled: @torch.jit.script" in str(found["remark"])
    assert found["matches"] == []
    ignored = explained(inside, model, line_of("a = x.repeat"), "--rule", "NPU203")
    (match,) = ignored["matches"]
    assert "npufix: ignore[NPU203]" in match["not_written"]


def test_a_condition_that_fails_is_named(inside: Npufix, model: Path) -> None:
    line = line_of("return a, torch")
    found = explained(inside, model, line, "--rule", "NPU203")
    (refused,) = found["refused"]
    assert refused["reasons"][0].startswith("int-repeats: ")


def test_the_line_of_a_definition_means_all_of_it(inside: Npufix, model: Path) -> None:
    found = explained(inside, model, line_of("class Norm"), "--rule", "NPU101")
    assert [m["line"] for m in found["matches"]] == [line_of("return", "def forward")]
    head = explained(inside, model, line_of("def without_eps"), "--rule", "NPU101")
    assert head["matches"] == []
    assert [n["line"] for n in head["near"]] == [line_of("return", "def without_eps")]


def test_a_line_that_looks_like_no_rule(inside: Npufix, model: Path) -> None:
    done = inside("explain", f"{model}:{line_of('super().__init__')}")
    assert done.returncode == 0
    assert "No rule looks like this code." in done.stdout


def test_bad_places(inside: Npufix, model: Path) -> None:
    broken = model.with_name("broken.py")
    broken.write_text("import torch\nx = = 1\n", encoding="utf-8")
    for place, words in (
        (f"{model}:999", "has no line 999"),
        (f"{model}:0", "has no line 0"),
        (str(model), "is not FILE:LINE"),
        (f"{model.parent}:3", "is a folder"),
        (f"{model.with_name('gone.py')}:3", "no file"),
        (f"{broken}:1", "broken.py:2: not valid Python"),
    ):
        done = inside("explain", place)
        assert done.returncode == 2, place
        assert done.stdout == ""
        assert words in " ".join(done.stderr.split())


PLAIN = """\
import torch


def plain(x: torch.Tensor, rows: list, i, scores: torch.Tensor):
    first = rows[0]
    some = x[i]
    best = scores.view(-1).argsort()
    return first, some, x[best], x[1:]
"""


def test_what_is_unproven_is_not_said_to_be_false(tmp_path: Path) -> None:
    path = tmp_path / "plain.py"
    path.write_text(PLAIN, encoding="utf-8")
    (file,) = read_source_tree(path).files.values()
    rules = [rule for rule in all_rules() if rule.id in {"NPU210", "NPU103"}]
    subscript, unknown, sure = (explain(file, line, rules, EVERYTHING) for line in (5, 6, 8))
    assert subscript.refused == []
    assert [r.reasons for r in unknown.refused] == [
        ["integer-vector: it could not be proven that the index is a vector of integers"]
    ]
    assert ["only a dump tells" in m.not_written for m in sure.matches] == [True]


def test_a_loop_over_what_a_loader_yields_is_no_loop_over_rows(tmp_path: Path) -> None:
    code = "def train(model, loader):\n    for x, m in loader:\n        y = model(x)\n"
    path = tmp_path / "train.py"
    path.write_text(f"import torch\n\n\n{code}        y[m] = 0.0\n", encoding="utf-8")
    (file,) = read_source_tree(path).files.values()
    rules = [rule for rule in all_rules() if rule.id == "NPU250"]
    assert explain(file, 6, rules, EVERYTHING).refused == []


def differences(x: Any) -> Any:
    return x[..., 1:] - x[..., :-1]


@pytest.mark.parametrize(("end", "near"), [("-2", True), ("-1", False)])
def test_a_pattern_of_arithmetic_alone_has_near_misses(end: str, near: bool) -> None:  # noqa: FBT001
    rule = next(rule for rule in all_rules() if not rule.search)
    rule = replace(rule, forms=(Form(differences, differences, lambda _: {}),))
    code = f"def f(x: torch.Tensor):\n    return x[..., 1:] - x[..., :{end}]\n"
    assert any("-2" in said for said in explanations(rule, code)) == near


@pytest.mark.parametrize("test", ["x > y", "y < x", "y.lt(x)"])
def test_a_comparison_is_explained_from_either_side(test: str) -> None:
    rule = next(rule for rule in all_rules() if rule.id == "NPU208")
    code = f"def f(x: torch.Tensor, y: torch.Tensor, z):\n    return torch.where({test}, z, y)\n"
    assert any("another value at this place: z" in said for said in explanations(rule, code))


SILENT = """import torch


class Net(torch.nn.Module):
    def forward(self, x: torch.Tensor, config):
        if config.wait_sync:
            torch.cuda.synchronize()
        return x

    def ends_text(self, x: torch.Tensor):
        x[x > 0] = 0

    def validation_step(self, x: torch.Tensor):
        x[x > 0] = 0
        return x.sum().item()


def load_table(x: torch.Tensor):
    return x.double()
"""


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (7, "it runs only as `if config.wait_sync` decides"),
        (8, ""),
        (11, ""),
        (14, "A scan of the folder leaves this out or ranks it last: no step runs it"),
        (15, "no step runs it"),
        (19, "no step runs it"),
    ],
)
def test_why_nothing_is_said_is_explained(tmp_path: Path, line: int, said: str) -> None:
    path = tmp_path / "net.py"
    path.write_text(SILENT, encoding="utf-8")
    (file,) = read_source_tree(path).files.values()
    remark = explain(file, line, all_rules(), EVERYTHING).remark
    assert (said in remark) if said else not remark
