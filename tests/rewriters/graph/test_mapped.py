"""``q, k, v = map(f, (q, k, v))`` and its relatives are read as one call of ``f`` for each."""

from __future__ import annotations

import pytest
from rewriting_snippets import direct, sites, written

_CALLS = """
def f(q, k, v, s: float):
    b, n, h, d = q.shape
    {statement}
    return ((q @ k.transpose(-2, -1)) * s).softmax(-1) @ v
"""
_HELPER = "def heads_first(t):\n    return t.transpose(1, 2)\n\n"
SPELLINGS = {
    "a lambda": "q, k, v = map(lambda t: t.transpose(1, 2), (q, k, v))",
    "a helper": "q, k, v = map(heads_first, [q, k, v])",
    "a list": "q, k, v = [t.transpose(1, 2) for t in (q, k, v)]",
    "a generator": "q, k, v = (heads_first(t) for t in (q, k, v))",
    "a list of a map": "q, k, v = list(map(heads_first, (q, k, v)))",
}
ONE_BY_ONE = "q, k, v = heads_first(q), heads_first(k), heads_first(v)"


def program_with(statement: str) -> str:
    return _HELPER + _CALLS.format(statement=statement)


@pytest.mark.parametrize("name", SPELLINGS)
def test_each_value_is_read_by_itself(name: str) -> None:
    (site,) = sites(program_with(SPELLINGS[name]), "NPU104")
    (other,) = sites(program_with(ONE_BY_ONE), "NPU104")
    assert {c.name for c in site.open_conditions} == {c.name for c in other.open_conditions}
    assert site.rewrite is not None
    assert SPELLINGS[name] in site.rewrite.direct


NORM = """
def f(x, y, w, eps: float):
    a, b = {}
    return w * (x * torch.rsqrt(a + eps))
"""


def test_what_is_computed_within_is_matched() -> None:
    text = direct(NORM.format("[t.pow(2).mean(-1, keepdim=True) for t in (x, y)]"), "NPU101")
    assert "npu_rms_norm(x, w, epsilon=eps)" in text


LEFT_ALONE = {
    "another order": "[t.pow(2).mean(-1, keepdim=True) for t in (y, x)]",
    "some of them": "[t.pow(2).mean(-1, keepdim=True) for t in (x, y) if t is not None]",
    "another name": "map(lambda t: y.pow(2).mean(-1, keepdim=True), (x, y))",
    "two arguments": "map(lambda t, u: t.pow(2).mean(-1, keepdim=True), (x, y), (y, x))",
    "a default": "map(lambda t, u=2: t.pow(u).mean(-1, keepdim=True), (x, y))",
    "other values": "[t.pow(2).mean(-1, keepdim=True) for t in x.tolist()]",
    "nested": "[t.pow(2).mean(-1, keepdim=True) for u in ((x, y),) for t in u]",
    "changed": "[t.mul_(2).pow(2).mean(-1, keepdim=True) for t in (x, y)]",
}


@pytest.mark.parametrize("name", LEFT_ALONE)
def test_what_is_something_else_is_not_read(name: str) -> None:
    assert not written(sites(NORM.format(LEFT_ALONE[name]), "NPU101"))


def test_a_map_of_ones_own_is_not_pythons() -> None:
    own = "def map(f, values):\n    return values[1], values[0]\n\n"
    norm = NORM.format("map(lambda t: t.pow(2).mean(-1, keepdim=True), (x, y))")
    assert not written(sites(own + norm, "NPU101"))


def test_a_place_in_the_body_is_no_place_of_one_value() -> None:
    """It is computed for both, and only one of them is divided by the root of its squares."""
    found = sites(
        """
def f(x, y, w, eps: float):
    a, b = [t * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps) * w for t in (x, y)]
    return a, b
""",
        "NPU101",
    )
    assert not written(found)


ROTATED = """
def rotate(x, cos, sin):
    {}
    half = x.shape[3] // 2
    first, second = x[..., :half], x[..., half:]
    return torch.cat((first * cos - second * sin, second * cos + first * sin), 3)
"""


@pytest.mark.parametrize(
    ("statement", "is_found"),
    [
        ("assert x.ndim == 4", True),
        ("assert x.dim() == 4 and cos.ndim == 4, 'batch, heads, length, size'", True),
        ("assert x.ndim == 5", False),
        ("assert cos.ndim == 4", False),
        ("assert x.ndim == 4 or cos.ndim == 4", False),
    ],
)
def test_an_assertion_tells_the_number_of_dimensions(statement: str, *, is_found: bool) -> None:
    assert bool(written(sites(ROTATED.format(statement), "NPU102"))) is is_found
