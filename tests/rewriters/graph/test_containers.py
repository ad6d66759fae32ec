"""Lists that are filled: two of them are never one, whatever they hold at first."""

from __future__ import annotations

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions import eager_rotary_embedding, fused_optimizer

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


@pytest.mark.parametrize("empty", ["set()", "[]", "dict()"])
def test_what_is_picked_by_two_sets_is_still_known(empty: str) -> None:
    """``decay`` and ``no_decay`` of nanoGPT are equal at first."""
    code = f"""class Net(nn.Module):
    def configure(self, named, lr: float):
        decay = {empty}
        no_decay = {empty}
        for name, _ in self.named_parameters():
            (decay if name.endswith("weight") else no_decay).update([name])
            decay.add(name)
            no_decay.add(name)
        groups = [{{"params": [named[n] for n in sorted(decay)], "weight_decay": 0.1}}]
        groups.append({{"params": [named[n] for n in sorted(no_decay)], "weight_decay": 0.0}})
        return torch.optim.AdamW(groups, lr=lr)
"""
    (site,) = find_sites(f"{HEADER}from torch import nn\n\n\n{code}", [fused_optimizer.RULE])
    assert site.rewrite is not None
