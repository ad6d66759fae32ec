"""Long modules: work is bounded, what is cut is said, lines are those of the module."""

from __future__ import annotations

import pytest
from searching import HEADER, RULES

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.masked_assignment import RULE as MASKED


def products(count: int) -> str:
    lines = "".join(
        f"        b{i} = torch.einsum('bi,ij->bj', x, self.weight[{i}])\n" for i in range(count)
    )
    return f"{HEADER}class A(nn.Module):\n    def forward(self, x):\n{lines}        return x\n"


def test_a_function_that_holds_too_much_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npufix.rewriters.find._MOST_EFFORT", 40)
    cut: list[str] = []
    sites = list(find_sites(products(40), RULES, cut=cut.append))
    assert cut == ["A.forward"]
    assert len(sites) < 40 or any(site.rewrite is None for site in sites)
    monkeypatch.undo()
    assert len(list(find_sites(products(40), RULES, cut=cut.append))) == 40
    assert len(cut) == 1


def test_a_loop_is_not_tried_without_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""{HEADER}
def f(x: torch.Tensor):
    rows = []
    for i in range(x.shape[0]):
        rows.append(torch.relu(x[i]))
    return torch.stack(rows)
"""
    loops = [rule for rule in RULES if rule.search == "loops"]
    assert [site.rewrite is not None for site in find_sites(code, loops)] == [True]
    monkeypatch.setattr("npufix.rewriters.find._MOST_EFFORT", 0)
    cut: list[str] = []
    assert not list(find_sites(code, loops, cut=cut.append))
    assert cut == ["f"]


@pytest.mark.parametrize(
    "line",
    ["x = x * x + x", "mask = mask & (mask | ~mask)", "mask = (x > 0) | mask", "x = x[:1] - x"],
)
def test_ways_to_a_value_are_not_gone_one_by_one(line: str) -> None:
    lines = "".join(f"    {line}\n" for _ in range(60))  # 2 ** 60 ways lead from the last
    head = f"{HEADER}\ndef f(x: torch.Tensor, mask: torch.BoolTensor, n: int):\n"
    code = f"{head}{lines}    x[mask] = n\n    return x[mask].sum()\n"
    assert any(site.rule is MASKED for site in find_sites(code, [*RULES, MASKED]))


def test_lines_of_changes_are_those_of_the_module() -> None:
    text = products(3)
    sites = list(find_sites(text, RULES))
    bare = list(find_sites(text, RULES, with_text=False))
    for site, without in zip(sites, bare, strict=True):
        assert site.rewrite is not None
        assert without.rewrite is not None
        assert site.rewrite.line == without.rewrite.line
        assert not without.rewrite.direct
        shown = site.rewrite.direct.splitlines()[site.rewrite.line - 1]
        assert shown.lstrip().startswith(f"b{sites.index(site)} ")
