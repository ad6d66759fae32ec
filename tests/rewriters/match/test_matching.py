"""Spellings that are one pattern, and look-alikes that are not."""

from __future__ import annotations

import pytest
from rewriting_snippets import direct, norm_module, sites, written

from npufix.rules.substitution import Safety

FUSED = "torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]"

SQUARES = {
    "pow method": "x.pow(2)",
    "pow float": "x.pow(2.0)",
    "pow keyword": "x.pow(exponent=2)",
    "power operator": "x**2",
    "product": "x * x",
    "mul method": "x.mul(x)",
    "torch.mul": "torch.mul(x, x)",
    "torch.multiply": "torch.multiply(x, other=x)",
    "square": "x.square()",
    "torch.square": "torch.square(x)",
    "torch.pow": "torch.pow(x, 2)",
    "input keyword": "torch.pow(input=x, exponent=2)",
}
MEANS = {
    "positional": "{}.mean(-1, True)",
    "keepdim": "{}.mean(-1, keepdim=True)",
    "dim keyword": "{}.mean(dim=-1, keepdim=True)",
    "dim tuple": "{}.mean(dim=(-1,), keepdim=True)",
    "axis": "{}.mean(axis=-1, keepdim=True)",
    "keepdims": "{}.mean(-1, keepdims=True)",
    "new axis": "{}.mean(-1)[..., None]",
    "unsqueeze": "torch.mean({}, dim=-1).unsqueeze(-1)",
    "torch.mean": "torch.mean({}, -1, True)",
    "torch.mean dim": "torch.mean({}, dim=-1, keepdim=True)",
    "torch.mean tuple": "torch.mean(input={}, dim=(-1,), keepdim=True)",
}
INVERSES = {
    "torch.rsqrt": "x * torch.rsqrt({} + self.eps)",
    "rsqrt method": "x * ({} + self.eps).rsqrt()",
    "one over sqrt": "x * (1 / torch.sqrt({} + self.eps))",
    "1.0 over sqrt": "x * (1.0 / ({} + self.eps).sqrt())",
    "divided by sqrt": "x / torch.sqrt({} + self.eps)",
    "torch.div": "torch.div(x, torch.sqrt({} + self.eps))",
    "true_divide": "x.true_divide(({} + self.eps).sqrt())",
    "reciprocal": "x * torch.sqrt({} + self.eps).reciprocal()",
    "power": "x * ({} + self.eps) ** -0.5",
    "pow": "x * torch.pow({} + self.eps, -0.5)",
    "root by power": "x / ({} + self.eps) ** 0.5",
    "eps first": "x * torch.rsqrt(self.eps + {})",
    "torch.add": "x * torch.rsqrt(torch.add({}, self.eps))",
    "add method": "x * torch.rsqrt({}.add(self.eps))",
    "operands swapped": "torch.rsqrt({} + self.eps) * x",
}
MEAN = "x.pow(2).mean(-1, keepdim=True)"


def forward(normed: str, result: str = "self.weight * ({})") -> str:
    return norm_module(f"def forward(self, x):\n    return {result.format(normed)}\n")


def spelled(options: dict[str, str], template: str) -> list[object]:
    return [pytest.param(template.format(text), id=name) for name, text in options.items()]


@pytest.mark.parametrize(
    "normed",
    [
        *spelled(SQUARES, "x * torch.rsqrt(({}).mean(-1, keepdim=True) + self.eps)"),
        *[
            pytest.param(f"x * torch.rsqrt({t.format('x.pow(2)')} + self.eps)", id=n)
            for n, t in MEANS.items()
        ],
        *[pytest.param(t.format(MEAN), id=n) for n, t in INVERSES.items()],
    ],
)
def test_spellings_of_the_norm_are_one(normed: str) -> None:
    assert FUSED in direct(forward(normed), "NPU101")


@pytest.mark.parametrize(
    "result",
    [
        "self.weight * ({})",
        "({}) * self.weight",
        "({}).mul(self.weight)",
        "torch.mul(self.weight, {})",
        "torch.mul({}, other=self.weight)",
    ],
)
def test_operands_are_unordered(result: str) -> None:
    normed = "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"
    assert FUSED in direct(forward(normed, result), "NPU101")


@pytest.mark.parametrize("up", ["x.float()", "x.to(torch.float32)", "x.to(dtype=torch.float)",
                                "x.type(torch.float32)"])  # fmt: skip
@pytest.mark.parametrize("down", ["{}.to(dtype)", "{}.to(x.dtype)", "{}.type_as(x)",
                                  "{}.type(dtype)", "{}.to(dtype=dtype)"])  # fmt: skip
def test_casts_are_one(up: str, down: str) -> None:
    code = norm_module(f"""
        def forward(self, x):
            dtype = x.dtype
            wide = {up}
            wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.eps)
            return self.weight * {down.format("wide")}
    """)
    assert FUSED in direct(code, "NPU101")


@pytest.mark.parametrize(
    ("imports", "square", "rsqrt"),
    [
        ("import torch as t", "t.square", "t.rsqrt"),
        ("import torch as F", "F.square", "F.rsqrt"),
        ("from torch import rsqrt, square", "square", "rsqrt"),
        ("from torch import rsqrt as inverse, square as sq", "sq", "inverse"),
        ("try:\n    import torch\nexcept ImportError:\n    raise", "torch.square", "torch.rsqrt"),
    ],
)
def test_imports_under_other_names(imports: str, square: str, rsqrt: str) -> None:
    code = f"def f(x, w, eps):\n    return w + x * {rsqrt}({square}(x).mean(-1, True) + eps)\n"
    assert sites(code, "NPU101", header=imports + "\n") == []
    code = f"def f(x, w, eps):\n    return w * (x * {rsqrt}({square}(x).mean(-1, True) + eps))\n"
    found = sites(code, "NPU101", header=imports + "\n")
    assert len(written(found)) == 1


@pytest.mark.parametrize(
    ("imports", "call"),
    [
        ("from torch.nn import functional as FF", "FF.one_hot(i, 8).sum(-2)"),
        ("import torch.nn.functional as nnf", "nnf.one_hot(i, 8).sum(dim=-2)"),
        ("import torch", "torch.nn.functional.one_hot(i, num_classes=8).sum((-2,))"),
        ("from torch import nn", "nn.functional.one_hot(i, 8).sum(axis=-2)"),
        ("from torch.nn.functional import one_hot", "one_hot(i, 8).sum(-2)"),
        ("import torch.nn.functional as F", "torch.sum(F.one_hot(i, 8), -2)"),
    ],
)
def test_one_hot_under_other_names(imports: str, call: str) -> None:
    header = f"import torch\n{imports}\n"
    code = f"def f(i: torch.Tensor):\n    return {call}\n"
    assert "i.new_zeros(*i.shape[:-1], 8)" in direct(code, "NPU204", header=header)


@pytest.mark.parametrize(
    "body",
    [
        (
            "square = x.pow(2)\nmean = square.mean(-1, keepdim=True)\n"
            "scale = torch.rsqrt(mean + eps)\ny = x * scale\nreturn w * y"
        ),
        "y = x\nz = y.pow(2).mean(-1, keepdim=True)\nreturn (y * torch.rsqrt(z + eps)) * w",
        "x, w = x, w\nreturn w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))",
        "v: torch.Tensor = x.pow(2).mean(-1, keepdim=True)\nreturn w * (x * torch.rsqrt(v + eps))",
        (
            "for _ in range(3):\n    v = x.pow(2).mean(-1, keepdim=True)\n"
            "    x = w * (x * torch.rsqrt(v + eps))\nreturn x"
        ),
        (
            "with torch.no_grad():\n    v = x.pow(2).mean(-1, keepdim=True)\n"
            "    y = w * (x * torch.rsqrt(v + eps))\nreturn y"
        ),
        (
            "if flag:\n    v = x.pow(2).mean(-1, keepdim=True)\n"
            "    x = w * (x * torch.rsqrt(v + eps))\nreturn x"
        ),
    ],
    ids=["temporaries", "alias", "swap", "annotated", "loop", "with", "branch"],
)
def test_temporaries_are_followed_and_go(body: str) -> None:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    after = direct(f"def f(x, w, eps, flag):\n{lines}", "NPU101")
    assert "torch_npu.npu_rms_norm(x, w, epsilon=eps)[0]" in after
    assert not any(word in after for word in ("mean(", "rsqrt", "pow("))


HELPER = "def _norm(x, eps{default}):\n    variance = x.pow(2).mean(-1, keepdim=True)\n"
HELPER += "    return x * torch.rsqrt(variance + eps)\n\n\n"


@pytest.mark.parametrize(
    ("default", "call", "eps"),
    [
        ("", "_norm(x, eps)", "eps"),
        ("", "_norm(eps=eps, x=x)", "eps"),
        ("=1e-05", "_norm(x)", "1e-05"),
    ],
)
def test_helper_functions_are_inlined(default: str, call: str, eps: str) -> None:
    code = HELPER.format(default=default) + f"def f(x, w, eps):\n    return w * {call}\n"
    assert f"return torch_npu.npu_rms_norm(x, w, epsilon={eps})[0]" in direct(code, "NPU101")


def test_helper_methods_are_inlined_through_several_levels() -> None:
    code = norm_module("""
        def _mean(self, x):
            return x.pow(2).mean(-1, keepdim=True)

        def _norm(self, x):
            return x * torch.rsqrt(self._mean(x) + self.eps)

        def forward(self, x):
            return self.weight * self._norm(x)
    """)
    assert f"return {FUSED}" in direct(code, "NPU101")


@pytest.mark.parametrize(
    "normed",
    [
        "x * torch.rsqrt(x.pow(3).mean(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.abs().mean(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.pow(2).sum(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.pow(2).mean(-2, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.pow(2).mean((-1, -2), keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.pow(2).mean(-1) + self.eps)",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) - self.eps)",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True)) + self.eps",
        "x * torch.sqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "x / torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "y * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt((x * y).mean(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.var(-1, keepdim=True) + self.eps)",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True).clamp(min=self.eps))",
        "x * torch.rsqrt(torch.add(x.pow(2).mean(-1, keepdim=True), self.eps, alpha=2))",
        "x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True, dtype=torch.float64) + self.eps)",
        "torch.div(x, (x**2).mean(-1, True).add(self.eps).sqrt(), rounding_mode='floor')",
    ],
)
def test_look_alikes_of_the_norm_are_something_else(normed: str) -> None:
    code = norm_module(f"def forward(self, x, y):\n    return self.weight * ({normed})\n")
    assert sites(code, "NPU101") == []


def test_a_decorated_function_is_not_looked_into() -> None:
    code = "@torch.no_grad()\n" + HELPER.format(default="")
    assert sites(code + "def f(x, w, eps):\n    return w * _norm(x, eps)\n", "NPU101") == []


@pytest.mark.parametrize("first", ["return x", "return -x"])
def test_the_last_definition_of_a_method_counts(first: str) -> None:
    norm = "return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps)"
    methods = "def _norm(self, x):\n    {}\n\ndef _norm(self, x):\n    {}\n\n"
    end = "def forward(self, x):\n    return self.weight * self._norm(x)\n"
    assert sites(norm_module(methods.format(norm, first) + end), "NPU101") == []
    assert FUSED in direct(norm_module(methods.format(first, norm) + end), "NPU101")


def test_a_mean_that_is_needed_without_its_axis_is_computed_anyway() -> None:
    code = """def forward(self, x):
    mean = x.pow(2).mean(-1)
    return self.weight * (x * torch.rsqrt(mean[..., None] + self.eps)), mean
"""
    assert written(sites(norm_module(code), "NPU101")) == []


@pytest.mark.parametrize(
    ("chosen", "becomes"),
    [
        ("torch.where(limit > x, limit, x)", "x.clamp(min=limit)"),
        ("torch.where(x.lt(limit), limit, x)", "x.clamp(min=limit)"),
        ("torch.where(y > x, y, x)", "torch.maximum(y, x)"),
        ("torch.where(y.le(x), y, x)", "torch.minimum(y, x)"),
    ],
)
def test_a_comparison_may_be_written_from_either_side(chosen: str, becomes: str) -> None:
    code = f"""def f(x: torch.Tensor, y: torch.Tensor, limit: int):
    x, y = x.long(), y.long()
    return {chosen}
"""
    assert f"return {becomes}" in direct(code, "NPU208")


@pytest.mark.parametrize(
    "chosen", ["torch.where(y > x, limit, x)", "torch.where(limit == x, y, x)"]
)
def test_what_is_chosen_is_what_is_compared(chosen: str) -> None:
    code = f"""def f(x: torch.Tensor, y: torch.Tensor, limit: int):
    return {chosen}
"""
    assert sites(code, "NPU208") == []


def test_the_widest_match_is_the_only_one() -> None:
    code = (
        "def f(x: torch.Tensor, i: torch.Tensor):\n    return x.gather(1, i.view(-1, 1)).view(-1)\n"
    )
    (site,) = sites(code, "NPU202")
    assert site.code.endswith(".view(-1)")
    assert site.safety is Safety.SAFE
