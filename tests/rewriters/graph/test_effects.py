"""Code that changes a tensor or an attribute without looking like it."""

from __future__ import annotations

import pytest
from rewriting_snippets import norm_module, sites, written

OF_Y = "return w * (x * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + eps))"
BETWEEN = "v = x.pow(2).mean(-1, keepdim=True)\n{}\nreturn w * (x * torch.rsqrt(v + eps))"


def function(body: str) -> str:
    lines = "".join(f"    {line}\n" for line in body.splitlines())
    return f"def f(x, w, eps, flag, other):\n{lines}"


DIFFERENT = {
    "two copies, one written to": "y = x.clone()\nx = x.clone()\ny[0] = 1\n",
    "two copies, one changed": "y = x.clone()\nx = x.clone()\ny.mul_(2)\n",
    "two new tensors": "y = torch.zeros(3, 4)\nx = torch.zeros(3, 4)\ny[0] = 1\n",
    "an attribute by another name": "y = other.v\nflag.v = eps\nx = other.v\n",
    "an attribute of two objects": "flag.v = x\nother.v = w\ny = flag.v\n",
    "an attribute by its name": "y = getattr(other, 'v')\nflag.v = eps\nx = getattr(other, 'v')\n",
    "an attribute that a context sets": "flag.v = x\nwith other:\n    pass\ny = flag.v\n",
    "a module that is converted": "y = other.weight\nother.float()\nx = other.weight\n",
    "an unpacked tuple": "t = (*other, x)\ny = t[0]\nx = other\n",
    "a comparison that stops": "y = x + 1\nflag < eps < (y := x)\n",
    "what a function reads when it is called": "g = lambda: x\ny = x\nx = w\nx = g() + y\n",
}
IN_PLACE = [
    "F.relu(x, True)", "F.silu(x, inplace=flag)", "F.dropout(x, 0.1, True, True)", "x.add(1)",
    "F.batch_norm(x, x, w, training=True)", "torch.mul(x, 2, out=x)", "torch.relu_(x)",
]  # fmt: skip


@pytest.mark.parametrize("before", DIFFERENT.values(), ids=DIFFERENT.keys())
def test_values_that_differ_are_not_one(before: str) -> None:
    assert written(sites(function(before + OF_Y), "NPU101")) == []


@pytest.mark.parametrize("statement", IN_PLACE)
def test_a_statement_is_there_for_what_it_changes(statement: str) -> None:
    assert written(sites(function(BETWEEN.format(statement)), "NPU101")) == []


def test_what_changes_nothing_is_no_obstacle() -> None:
    found = sites(function(BETWEEN.format("z = F.relu(x, inplace=False)")), "NPU101")
    assert len(written(found)) == 1


@pytest.mark.parametrize(
    ("folded", "count"),
    [("torch.promote_types", 1), ("operator.or_", 1), ("operator.iadd", 0), ("other", 0)],
)
def test_a_fold_changes_nothing_but_by_its_function(folded: str, count: int) -> None:
    head = "import operator\nfrom functools import reduce\n\n"
    code = head + function(BETWEEN.format(f"z = reduce({folded}, (x, w))"))
    assert len(written(sites(code, "NPU101"))) == count


def test_a_global_that_a_function_sets_may_be_another_one_later() -> None:
    head = "STATE = None\ndef change():\n    global STATE\n    STATE = 1\n\n"
    code = head + function("y = STATE\nother()\nx = STATE\n" + OF_Y)
    assert written(sites(code, "NPU101")) == []


@pytest.mark.parametrize(
    "rebound",
    ["mean = other", "if other:\n    def mean(x): return x", "from other import mean",
     "try:\n    from fast import mean\nexcept ImportError:\n    mean = None"],
)  # fmt: skip
def test_a_function_that_is_defined_twice_is_a_call(rebound: str) -> None:
    helper = "def mean(x):\n    return x.pow(2).mean(-1, keepdim=True)\n"
    code = function("return w * (x * torch.rsqrt(mean(x) + eps))")
    assert len(written(sites(helper + code, "NPU101"))) == 1
    assert written(sites(f"{helper}{rebound}\n{code}", "NPU101")) == []
    assert written(sites(f"{rebound}\n{helper}{code}", "NPU101")) == []


CALLING = """
        def mean(self, x):
            return x.pow(2).mean(-1, keepdim=True)
{}
        def forward(self, x):
            return self.weight * (x * torch.rsqrt(self.mean(x) + self.eps))
"""


@pytest.mark.parametrize(
    ("more", "count"),
    [
        ("", 1),
        ("        mean = other", 0),
        ("        def set(self, f):\n            self.mean = f", 0),
        ("        if other:\n            def mean(self, x): return x", 0),
    ],
)
def test_a_method_that_may_be_hidden_is_a_call(more: str, count: int) -> None:
    assert len(written(sites(norm_module(CALLING.format(more)), "NPU101"))) == count


def test_a_mixin_may_bring_another_method() -> None:
    code = norm_module(CALLING.format(""), name="Base")
    forward = "\n    def forward(self, x):\n"
    forward += "        return self.weight * (x * torch.rsqrt(self.mean(x) + self.eps))\n"
    head, _, _ = code.partition("    def forward")
    assert len(written(sites(f"{head}\nclass C(Base):{forward}", "NPU101"))) == 1
    assert written(sites(f"{head}\nclass C(Mixin, Base):{forward}", "NPU101")) == []


def test_another_objects_method_is_not_ones_own() -> None:
    code = norm_module("""
        def mean(self, x):
            return x.pow(2).mean(-1, keepdim=True)

        def forward(self, x, other):
            w, eps, self = self.weight, self.eps, other
            return w * (x * torch.rsqrt(self.mean(x) + eps))
    """)
    assert written(sites(code, "NPU101")) == []
