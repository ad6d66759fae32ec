"""What flows through branches, loops, closures and side effects is left alone or right."""

from __future__ import annotations

import pytest
from rewriting_snippets import NORM_OF, norm_module, program, sites, written

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Safety

TEMPORARY = "v = x.pow(2).mean(-1, keepdim=True)"
RESULT = "w * (x * torch.rsqrt(v + eps))"
OF_Y = "w * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))"


def function(body: str, parameters: str = "x, w, eps, flag, other") -> str:
    return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in body.splitlines())


LEFT_ALONE = {
    "another value in one branch": f"""
if flag:
    {TEMPORARY}
else:
    v = x.abs()
return {RESULT}""",
    "another value before the branch": f"""
v = other
if flag:
    {TEMPORARY}
return {RESULT}""",
    "carried into the next round": f"""
{TEMPORARY}
for _ in range(3):
    x = {RESULT}
    {TEMPORARY}
return x""",
    "read in the next round": f"""
v = other
for _ in range(3):
    print(v)
    {TEMPORARY}
    x = {RESULT}
return x""",
    "changed in a while loop": f"""
{TEMPORARY}
while flag:
    x = x + 1
    flag = other(x)
return {RESULT}""",
    "computed in try": f"""
try:
    {TEMPORARY}
except RuntimeError:
    v = other
return {RESULT}""",
    "computed without gradients": f"""
with torch.no_grad():
    {TEMPORARY}
return {RESULT}""",
    "returned early": f"""
{TEMPORARY}
if flag:
    return v
return {RESULT}""",
    "used afterwards": f"""
{TEMPORARY}
y = {RESULT}
return y + v""",
    "kept on an object": f"""
{TEMPORARY}
other.variance = v
return {RESULT}""",
    "captured by a function": f"""
{TEMPORARY}
def later():
    return v
other(later)
return {RESULT}""",
    "captured by a function defined before": f"""
def later():
    return v
{TEMPORARY}
y = {RESULT}
return y, later()""",
    "captured by a lambda": f"""
{TEMPORARY}
other.hook = lambda: v
return {RESULT}""",
    "captured by a lambda defined before": f"""
later = lambda: v
{TEMPORARY}
y = {RESULT}
return y, later()""",
    "captured by a generator made before": f"""
later = (v for _ in [0])
{TEMPORARY}
y = {RESULT}
return y, next(later)""",
    "read through locals": f"""
{TEMPORARY}
y = {RESULT}
return y, locals()""",
    "deleted": f"""
{TEMPORARY}
y = {RESULT}
del v
return y""",
    "assigned with a walrus": """
y = w * (x * torch.rsqrt((v := x.pow(2).mean(-1, keepdim=True)) + eps))
return y, v""",
    "added to in place": f"""
{TEMPORARY}
v += eps
return w * (x * torch.rsqrt(v))""",
    "tensor added to in place": f"""
{TEMPORARY}
x += 1
return {RESULT}""",
    "method in place": f"""
{TEMPORARY}
x.mul_(2)
return {RESULT}""",
    "function in place": f"""
{TEMPORARY}
F.relu(x, inplace=True)
return {RESULT}""",
    "through an alias": f"""
view = x.view(-1)
{TEMPORARY}
view[0] = 1
return {RESULT}""",
    "new data": f"""
{TEMPORARY}
x.data = x * 2
return {RESULT}""",
    "an unknown call between": f"""
{TEMPORARY}
other(x)
return {RESULT}""",
    "two rounds of dropout": """
return w * (F.dropout(x) * torch.rsqrt(F.dropout(x).pow(2).mean(-1, keepdim=True) + eps))""",
    "suspended between": f"""
{TEMPORARY}
yield x
yield {RESULT}""",
    "rebound by a nested function": f"""
def change():
    nonlocal x
    x = x + 1
y = x
change()
return {OF_Y}""",
    "rebound in a comprehension": f"""
y = x
_ = [y := value for value in other]
return {OF_Y}""",
    "rebound behind and": f"""
y = x + 1
flag and (y := x)
return {OF_Y}""",
    "rebound in one arm": f"""
y = x + 1
z = (y := x) if flag else x
return {OF_Y}""",
    "rebound in a loop": f"""
y = x
for y in other:
    pass
return {OF_Y}""",
    "rebound by with": f"""
y = x
with other as y:
    return {OF_Y}""",
    "rebound by except": f"""
y = x
try:
    other()
except ValueError as y:
    pass
return {OF_Y}""",
    "rebound by import": f"""
y = x
import math as y
return {OF_Y}""",
    "global": f"""
global v
{TEMPORARY}
return {RESULT}""",
    "match": f"""
{TEMPORARY}
match flag:
    case 1:
        x = other
return {RESULT}""",
}


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_these_are_left_alone(body: str) -> None:
    assert written(sites(function(body.strip()), "NPU101")) == []


@pytest.mark.parametrize(
    "between",
    ["self.advance()", "advance(self)", "self.state = x", "for _ in x: self.advance()"],
)
def test_an_attribute_may_be_another_one_later(between: str) -> None:
    code = norm_module(f"""
        def forward(self, x):
            a = self.state
            {between}
            b = self.state
            return self.weight * (b * torch.rsqrt(a.pow(2).mean(-1, keepdim=True) + self.eps))
    """)
    assert written(sites(code, "NPU101")) == []


@pytest.mark.parametrize("first", ["F.one_hot", "torch.nn.functional.one_hot", "one_hot"])
@pytest.mark.parametrize(
    "rebound",
    ["F = torch = one_hot = object()", "def one_hot(i, n): return i\nF = torch = np",
     "class one_hot: ...\nclass F: ...\nclass torch: ..."],
    ids=["assigned", "function", "class"],
)  # fmt: skip
def test_a_name_of_the_module_may_be_something_else(first: str, rebound: str) -> None:
    head = f"from torch.nn.functional import one_hot\n{rebound}\n"
    code = f"def f(i):\n    return {first}(i, 4).sum(-2)\n"
    assert sites(head + code, "NPU204") == []


@pytest.mark.parametrize("shadow", ["F", "torch"])
def test_a_local_name_may_be_something_else(shadow: str) -> None:
    code = f"def f(i, {shadow}):\n    return F.one_hot(i, 4).sum(-2) + torch.ones(1)\n"
    found = sites(code, "NPU204")
    assert written(found) == [] or shadow == "torch"
    assert all(site.safety is not Safety.SAFE or "torch." not in site.rewrite.text
               for site in found if site.rewrite)  # fmt: skip


@pytest.mark.parametrize(
    "decorator",
    ["torch.jit.script", "torch.jit.script_if_tracing", "triton.jit", "jit_fuser", "numba.njit"],
)
def test_compiled_functions_are_off_limits(decorator: str) -> None:
    code = f"@{decorator}\ndef f(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n"
    assert sites(code) == []


def test_what_a_compiled_function_calls_is_compiled_along() -> None:
    code = "def f(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n\n\n"
    user = "def g(x):\n    return f(x)\n\n\n@torch.jit.script\ndef h(x):\n    return g(x)\n"
    assert sites(code + user) == []
    assert sites(code + user.replace("@torch.jit.script\n", ""))


@pytest.mark.parametrize("base", ["torch.autograd.Function", "Function", "torch.jit.ScriptModule"])
def test_classes_with_a_backward_of_their_own_are_off_limits(base: str) -> None:
    code = f"from torch.autograd import Function\n\nclass C({base}):\n    @staticmethod\n"
    code += "    def forward(ctx, x: torch.Tensor):\n        x[x < 0] = 0\n        return x\n"
    assert sites(code) == []


_SOUGHT = """def {}(x: torch.Tensor):
    def f(x):
        x = x + 0
        x[x < 0] = 0
        return x
    return f(x)
"""


@pytest.mark.parametrize(
    ("name", "after", "expected"),
    [
        ("pattern", "", 1),
        ("pattern", "\n\ndef replacement(x):\n    return x.relu()\n", 0),
        ("g", "\n\nregister_replacement(g, torch.relu, [])\n", 0),
        ("g", "\n\nregister_replacement(h, torch.relu, [])\n", 1),
    ],
)
def test_what_a_compiler_seeks_in_a_graph_is_off_limits(
    name: str, after: str, expected: int
) -> None:
    assert len(sites(_SOUGHT.format(name) + after)) == expected


def test_code_that_already_branches_on_the_npu_is_left_alone() -> None:
    code = NORM_OF.replace("return", "if torch_npu.npu.is_available():\n            pass\n"
                           "        return")  # fmt: skip
    assert sites(code, "NPU101") == []


CONDITIONAL_OPERANDS = [
    "return x.gather(1, t.view(-1, 1)) if t is not None else None",
    "return t is not None and x.gather(1, t.view(-1, 1))",
    "return x.sum() > 0 or x.gather(1, t.view(-1, 1)).any()",
    "assert x.sum() > 0, x.gather(1, t.view(-1, 1))",
]


@pytest.mark.parametrize("line", CONDITIONAL_OPERANDS)
def test_operands_are_not_computed_where_they_were_not(line: str) -> None:
    code = f"def f(x: torch.Tensor, t: torch.Tensor):\n    {line}\n"
    assert written(sites(code, "NPU202")) == []


@pytest.mark.parametrize("method", ["unsqueeze_(0)", "squeeze_()", "resize_(2, 3, 4)", "t_()"])
def test_a_shape_that_is_changed_in_place_proves_nothing(method: str) -> None:
    code = function(f"n, d = x.shape\nx.{method}\nreturn F.linear(x, w, torch.zeros(4))")
    assert [s for s in sites(code, "NPU205") if s.safety is Safety.SAFE] == []


@pytest.mark.parametrize(
    "body", ["return " + " + ".join(["x"] * 900), "x = x + 1\n" * 1500 + "return x"]
)
def test_very_long_functions_do_not_stop_the_search(body: str) -> None:
    text = program(function("x[x < 0] = 0\n" + body, "x: torch.Tensor"))
    text += "\ndef g(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n"
    assert "g" in {site.function for site in find_sites(text, all_rules())}


@pytest.mark.parametrize(
    "binding",
    [
        "match cfg:\n        case [F, *_]:\n            pass",
        "match cfg:\n        case {'a': 1, **F}:\n            pass",
        "try:\n        pass\n    except ValueError as F:\n        pass",
    ],
)
def test_a_name_that_a_pattern_or_an_exception_binds_is_not_the_import(binding: str) -> None:
    head = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    code = f"def f(x, cfg):\n    {binding}\n    return x * torch.sigmoid(x)\n"
    (site,) = sites(head + code, "NPU206")
    assert site.rewrite is not None
    assert site.rewrite.text == "nn.functional.silu(x)"
