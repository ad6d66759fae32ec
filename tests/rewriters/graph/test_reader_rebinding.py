"""Names that other functions bind, and statements with several ways through them."""

from __future__ import annotations

import pytest
from rewriting_snippets import HEADER, direct, sites, written

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

OF_Y = "return w * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))"
NORM = "w * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))"


def function(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.strip().splitlines())
    return f"def f(x, w, eps, flag, other):\n{lines}"


LEFT_ALONE = {
    "a global that is set": f"global y\ny = x\nother()\n{OF_Y}",
    "a global that a call may set": f"global y\na = y\nother()\nx = y\ny = a\n{OF_Y}",
    "a global that a loop binds": f"global y\nfor y in other:\n    pass\nx = y\nother()\n{OF_Y}",
    "a global that a context binds": f"""
global y
with other as y:
    pass
x = y
other()
{OF_Y}""",
    "a global that a walrus binds": f"global y\n(y := x)\nother()\nx = y\nother()\n{OF_Y}",
    "a name that an inner function binds": f"""
y = x
def change():
    nonlocal y
    y = other
change()
{OF_Y}""",
    "a name that an inner function of an inner function binds": f"""
y = x
def outer():
    def change():
        nonlocal y
        y = other
    change()
outer()
{OF_Y}""",
    "a name that the method of an inner class binds": f"""
y = x
class Changer:
    def change(self):
        nonlocal y
        y = other
Changer().change()
{OF_Y}""",
    "an argument that an inner function binds": f"""
y = x
def change():
    nonlocal x
    x = other
change()
{OF_Y}""",
    "a helper that an inner function binds": f"""
y = x
call = lambda v: v
def change():
    nonlocal call
    call = other
change()
x = call(x)
{OF_Y}""",
    "a temporary that an inner function binds": """
v = x.pow(2).mean(-1, keepdim=True)
def change():
    nonlocal v
    v = other
change()
return w * (x * torch.rsqrt(v + eps))""",
    "bound in one case": f"y = x\nmatch flag:\n    case 1:\n        y = other\n{OF_Y}",
    "bound by a pattern": f"y = x\nmatch flag:\n    case [y]:\n        pass\n{OF_Y}",
    "bound by a star of a pattern": f"""
y = x
match flag:
    case [1, *y]:
        pass
{OF_Y}""",
    "bound by the rest of a mapping": f"""
y = x
match flag:
    case {{1: _, **y}}:
        pass
{OF_Y}""",
    "bound by a pattern that does not fit": f"""
y = x
match flag:
    case [y, 1]:
        pass
    case 2:
        {OF_Y}""",
    "changed in one case": f"""
y = x + 1
x = x + 1
match flag:
    case 1:
        y += 1
{OF_Y}""",
    "bound by a guard": f"y = x\nmatch flag:\n    case 1 if (y := other):\n        pass\n{OF_Y}",
    "changed by what a guard calls": f"""
y = x + 1
match flag:
    case 1 if other(x):
        pass
x = x + 1
{OF_Y}""",
    "read by evaluated code": (
        "v = x.pow(2).mean(-1, keepdim=True)\nz = w * (x * torch.rsqrt(v + eps))\n"
        "return z, eval('v')"
    ),
    "changed by evaluated code": f"y = x + 1\neval('x.relu_()')\nx = x + 1\n{OF_Y}",
    "changed in a starred part": f"y = x\n*y, z = other\n{OF_Y}",
}


@pytest.mark.parametrize("body", LEFT_ALONE.values(), ids=LEFT_ALONE.keys())
def test_left_alone(body: str) -> None:
    assert written(sites(function(body), "NPU101")) == []


CHANGED = {
    "beside a global": f"global state\nstate = flag\nreturn {NORM}",
    "beside an inner function that binds another name": f"""
count = 0
def add():
    nonlocal count
    count += 1
return {NORM}""",
    "in the function that binds it": f"""
n = 0
def inner(x, w, eps):
    nonlocal n
    n = n + 1
    return {NORM}
return inner""",
    "in a case": f"match flag:\n    case 1:\n        return {NORM}\n    case _:\n        return x",
    "after a match": f"match flag:\n    case 1:\n        other = 1\nreturn {NORM}",
    "beside evaluated code": f"limit = eval(flag)\nreturn {NORM}",
}


@pytest.mark.parametrize("body", CHANGED.values(), ids=CHANGED.keys())
def test_changed(body: str) -> None:
    assert "npu_rms_norm(x, w, epsilon=eps)" in direct(function(body), "NPU101")


def test_a_parameter_of_a_helper_is_not_the_name_of_its_caller() -> None:
    code = """
    def mean(v):
        return v.pow(2).mean(-1, keepdim=True)

    def f(x, w, eps):
        global v
        v = 1
        return w * (x * torch.rsqrt(mean(x) + eps))
    """
    assert "npu_rms_norm(x, w, epsilon=eps)" in direct(code, "NPU101")


def test_a_name_of_the_module_may_be_bound_by_a_call() -> None:
    program = """
def change():
    global y
    y = None

x = torch.ones(3, 4)
y = x
change()
z = w * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6))
"""
    rules = [rule for rule in all_rules() if rule.id == "NPU101"]
    assert written(list(find_sites(HEADER + program, rules))) == []
    unchanged = program.replace("    global y\n", "")
    assert len(list(find_sites(HEADER + unchanged, rules))) == 1


def test_a_name_around_a_function_may_be_bound_by_another() -> None:
    program = """
def f(x):
    def set(value):
        nonlocal x
        x = value

    def g(call, w, eps):
        y = x
        call()
        return w * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))
    return set, g
"""
    assert written(sites(program, "NPU101")) == []
    assert len(written(sites(program.replace("        nonlocal x\n", ""), "NPU101"))) == 1
