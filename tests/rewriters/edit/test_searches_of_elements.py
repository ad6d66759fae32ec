"""What Python takes out of tensors element by element, and rows that a mask chooses."""

from __future__ import annotations

import pytest
import torch
from searching import found, rewritten


@pytest.mark.parametrize(
    ("use", "new"),
    [
        ("if kinds[i] == 2:\n                x = x * 2", "if kinds_list[i] == 2:"),
        (
            "if kinds[i] >= -0.5 and i:\n                x = x * 2",
            "if kinds_list[i] >= -0.5 and i:",
        ),
        ("if not kinds[i]:\n                x = x * 2", "if not kinds_list[i]:"),
        ("while x.shape[0] > kinds[i]:\n                x = x[1:]", "x.shape[0] > kinds_list[i]:"),
        ("x = x[: kinds[i]]", "x = x[: kinds_list[i]]"),
        ("x = x[kinds[i] + 1 :] * 2", "x = x[kinds_list[i] + 1 :] * 2"),
        ("x = x + torch.zeros(kinds[i], 3)", "torch.zeros(kinds_list[i], 3)"),
        ("x = x * 2 if kinds[i] else x", "x = x * 2 if kinds_list[i] else x"),
    ],
)
def test_elements_that_a_loop_makes_numbers_of_are_read_before_it(use: str, new: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, kinds: torch.Tensor):
            for i in range(kinds.shape[0]):
                {use}
            return x
    """
    after = rewritten(text.replace("                x =", "    " * 5 + "x ="), "NPU214")
    assert new in after
    assert "kinds_list = kinds.flatten().tolist()\n" in after


@pytest.mark.parametrize(
    "use",
    [
        "x = x * kinds[i]",  # stays on the device
        "x = x[kinds[i]]",  # picks a row, or those of a mask
        "if kinds[i] > 0.3: x = x * 2",  # 0.3 is another number in single precision
        "if kinds[i] is None: x = x * 2",
        "if kinds[i].sum() > 2: x = x * 2",
        "x = x + names[i]",
    ],
)
def test_elements_that_stay_where_they_are_are_not_read(use: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, kinds: torch.Tensor, names: list):
            for i in range(kinds.shape[0]):
                {use}
            return x
    """
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


def test_a_loop_over_elements_that_it_writes_to_is_spoken_of_and_left() -> None:
    text = """
    class Actor(nn.Module):
        def forward(self, x: torch.Tensor, mask: torch.Tensor):
            for i in range(mask.shape[0]):
                for t in reversed(range(mask.shape[1])):
                    if mask[i][t] > 0.5:
                        mask[i][t] = 0
                        break
            return x * mask
    """
    (site,) = found(text, "NPU214")
    assert site.rewrite is None
    assert "waits in every round" in site.problem


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("if any(n > 3): x = x * 2", "if (n > 3).any():"),
        ("x = x * any(n > 3)", "x = x * bool((n > 3).any())"),
        ("x = x[: max(n)]", "x = x[: n.max()]"),
        ("x = x * min(n.view(-1))", "x = x * n.view(-1).min()"),
        ("x = sum(x * 2)", "x = (x * 2).sum(0)"),
    ],
)
def test_python_goes_through_no_tensor(code: str, new: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor):
            {code}
            return x
    """
    assert new in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    "code",
    [
        "any(part is None for part in parts)",
        "any(flags)",
        "max(n, 2)",
        "sum(parts)",
        "max(self.sizes)",
        "any(x > 2 for x in sizes)",
        "max(n.tolist())",
        "sum(x.shape)",
        "any(array > 2)",
    ],
)
def test_what_is_no_tensor_is_left_to_python(code: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, n: int, parts, sizes, flags: list, array: np.ndarray):
            return x * 2, {code}
    """
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("[p.sum().item() for p in parts]", "torch.stack([p.sum() for p in parts]).tolist()"),
        (
            "[float(p.mean().item()) for p in parts]",
            "[float(n) for n in torch.stack([p.mean() for p in parts]).tolist()]",
        ),
        (
            "[F.mse_loss(p, x).item() for p in parts]",
            "torch.stack([F.mse_loss(p, x) for p in parts]).flatten().tolist()",
        ),
    ],
)
def test_numbers_of_each_part_are_read_together(code: str, new: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, parts: list):
            return x * 2, {code}
    """
    after = " ".join(rewritten(text, "NPU214").split())
    assert new in after.replace("[ ", "[").replace(" ]", "]")


@pytest.mark.parametrize(
    "code",
    [
        "[p.sum().item() for p in parts if p.numel()]",
        "{p.sum().item() for p in parts}",
        "[next(draws).item() for _ in parts]",
        "[p.sum().item() + 1 for p in parts]",
    ],
)
def test_other_lists_of_numbers_are_only_spoken_of(code: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, parts: list, draws):
            return x * 2, {code}
    """
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


def test_a_loop_that_goes_reads_nothing_any_more() -> None:
    text = """
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, n: torch.Tensor):
            x, n = x.view(4, -1), n.view(-1)
            mask = torch.zeros_like(x)
            for i in range(4):
                mask[i, : n[i]] = 1
            return x * mask
    """
    assert found(text, "NPU214") == [] or found(text, "NPU250") == []


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("y[far] = x[far] * 2", "torch.where(far[..., None], x * 2, y)"),
        (
            "y[far] += x[far] / n[far].unsqueeze(-1)",
            "x / torch.where(far, n, 1).unsqueeze(-1)",
        ),
        ("y[far] = x[far] / n[far][..., None]", "x / torch.where(far, n, 1)[..., None], y)"),
        ("y[far] = torch.log(x[far])", "torch.log(torch.where(far[..., None], x, 1)), y)"),
    ],
)
def test_formulas_of_rows_are_computed_of_all(code: str, new: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor):
            n = x.norm(dim=-1)
            far, y = n > 1, x * 3
            {code}
            return y
    """
    assert new in " ".join(rewritten(text, "NPU223").split())


@pytest.mark.parametrize("value", ["x[far] + w", "x[far].sum(-1, keepdim=True)", "x[far] * x[0]"])
def test_formulas_of_other_values_stay(value: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, w: torch.Tensor):
            far = x.norm(dim=-1) > 1
            x[far] = {value}
            return x
    """
    assert found(text, "NPU223") == []


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("return x[x > 0].numel()", "return int((x > 0).sum())"),
        ("return len(x[mask])", "return int(mask.sum())"),
        ("return x[mask].size(0)", "return int(mask.sum())"),
        ("return x[ids].shape[0]", None),
        ("y = x[mask]\n        return y * len(y)", None),  # selected for more than its length
    ],
)
def test_what_is_selected_to_be_counted_is_counted_in_the_mask(code: str, new: str | None) -> None:
    text = f"""
    def forward(x: torch.Tensor, ids: torch.LongTensor):
        mask = x > 1
        {code}
    """
    assert (new is None) is not bool(found(text, "NPU226"))
    if new is not None:
        assert new in rewritten(text, "NPU226")


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("x.sum(0).sum(0)", "x.sum((0, 1))"),
        ("x.sum(1).sum(0)", "x.sum((0, 1))"),
        ("x.sum(-2).sum(-2)", "x.sum((-3, -2))"),
        ("x.sum(-1).sum(-2)", "x.sum((-3, -1))"),
        ("x.sum(1).sum(1).sum(0)", "x.sum((0, 1, 2))"),
        ("x.mean(2, True).mean(1, True)", "x.mean((1, 2), keepdim=True)"),
        ("x.sum(1, keepdim=True).sum()", "x.sum()"),
        ("x.sum(1).sum(1, keepdim=True)", None),
        ("x.sum(1).mean()", None),
        ("x.max(-1)[1].max(-1)[0]", None),
    ],
)
def test_reductions_one_behind_the_other_become_one(code: str, new: str | None) -> None:
    text = f"""
    def forward(x: torch.Tensor):
        return {code}
    """
    assert (new is None) is not bool(found(text, "NPU227"))
    if new is not None:
        assert f"return {new}\n" in rewritten(text, "NPU227")
        x = torch.randn(2, 3, 4, 5, dtype=torch.float64)
        both = [eval(each, {"x": x}) for each in (code, new)]  # noqa: S307 - the cases above
        torch.testing.assert_close(*both)


@pytest.mark.parametrize(
    ("made", "used", "is_written"),
    [
        ("d.argmin(dim=0)", "x[at]", True),
        ("d.argsort(dim=0)", "x[:, at]", True),
        ("d.argsort(dim=0)", "x[at]", False),  # rows that are all of an index: one a dimension
        ("d[0]", "x[at]", False),  # of floats no index can be made, whatever they are
        ("d.argmin(dim=0)", "x[at] + at[0]", False),
        ("d.argmin(dim=0)", "x[at] * self.scale(at)", False),
    ],
)
def test_a_list_that_is_only_an_index_stays_a_tensor(
    made: str, used: str, *, is_written: bool
) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor, d: torch.Tensor):
            x, d = x.view(5, 4), d.view(5, 5)
            at = {made}.tolist()
            return {used}
    """
    sites = [site.rewrite.direct for site in found(text, "NPU214") if site.rewrite]
    assert any(f"at = {made}\n" in new for new in sites) is is_written
