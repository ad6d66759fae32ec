"""Lists that are filled: two of them are never one, whatever they hold at first."""

from __future__ import annotations

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions import eager_rotary_embedding

HEADER = "import torch\nimport torch.nn.functional as F\n\n\n"


@pytest.mark.parametrize(
    ("made", "empty"),
    [
        ("a, b = {0}, {0}", "[]"),
        ("a = {0}\n    b = {0}", "[]"),
        ("a = {0}\n    b = {0}", "list()"),
        ("a = {0}\n    b = {0}", "[y for y in x]"),
        ("a = {0}\n    b = {0}", "[None] * 1"),
    ],
)
@pytest.mark.parametrize(
    "filled",
    [
        "a.append(x)\n    b.append(y)",
        "a += [x]\n    b += [y]",
        "a[0] = x\n    b[0] = y",
        "for z in x:\n        a.extend(z)\n        b.extend(z.abs())",
    ],
)
def test_lists_that_are_filled(made: str, empty: str, filled: str) -> None:
    code = f"""def f(x, y, cos, sin):
    {made.format(empty)}
    {filled}
    q, k = torch.cat(a), torch.cat(b)
    q1, q2 = q.chunk(2, -1)
    return k * cos + torch.cat((-q2, q1), -1) * sin
"""
    assert not list(find_sites(HEADER + code, [eager_rotary_embedding.RULE]))


def test_a_list_that_nobody_fills_is_what_it_holds() -> None:
    code = """def f(x, cos, sin):
    x1, x2 = x.chunk(2, -1)
    halves = [-x2, x1]
    return x * cos + torch.cat(halves, -1) * sin
"""
    assert list(find_sites(HEADER + code, [eager_rotary_embedding.RULE]))


def test_a_list_is_not_what_it_was_after_an_assignment_to_its_elements() -> None:
    code = """def f(x, cos, sin):
    x1, x2 = x.chunk(2, -1)
    halves = [-x2, x1]
    halves[0] = x2
    return x * cos + torch.cat(halves, -1) * sin
"""
    assert not list(find_sites(HEADER + code, [eager_rotary_embedding.RULE]))
