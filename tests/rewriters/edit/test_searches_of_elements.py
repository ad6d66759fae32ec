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


@pytest.mark.parametrize(
    ("places", "is_read"),
    [
        ("torch.nonzero(row).squeeze(dim=1).cpu().numpy()", True),
        ("row.nonzero(as_tuple=True)[0].tolist()", True),
        ("torch.nonzero(row).cpu().numpy()", False),  # arrays of one number each
        ("(row > 0).cpu().numpy()", False),  # flags
        ("torch.nonzero(row).squeeze(1)", False),  # tensors
    ],
)
def test_positions_of_the_host_are_numbers(places: str, *, is_read: bool) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, ids: torch.Tensor, names: list):
            found = []
            for depth in range(3):
                row = ids[:, depth]
                for at in {places}:
                    found.append(names[row[at].item()])
            return found
    """
    texts = [s.rewrite.text for s in found(text, "NPU214") if s.rewrite is not None]
    assert ("row_list = row.tolist()" in texts) is is_read


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
        "[1 + p.sum().item() for p in parts]",
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


@pytest.mark.parametrize(
    ("mask", "expected"), [("~small", "torch.where(~small, torch.sin(x) / 2, y)"), ("~rows", "")]
)
def test_what_a_comparison_is_not_true_of_is_a_mask_of_whatever(mask: str, expected: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x, rows):
            small = x.abs() < 1e-6
            y = torch.empty_like(x)
            y[{mask}] = torch.sin(x[{mask}]) / 2
            return y
    """
    if expected:
        assert expected in rewritten(text, "NPU223")
    else:
        assert found(text, "NPU223") == []


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
    ("begun", "adds", "reads"),
    [
        (
            "sums = {}\n    sums['a'] = 0",
            "sums['a'] += loss.item()",
            "sums['a'] = float(sums['a'])",
        ),
        ("sums = {'a': 0.0}", "sums['a'] += loss.item()", "sums['a'] = float(sums['a'])"),
        ("sums = {'a': 0}", "sums['a'] += (x > 0).sum().item()", "sums['a'] = int(sums['a'])"),
        # somebody looks at it in the loop, it has no number yet, or others hold the dictionary
        ("sums = {'a': 0.0}", "sums['a'] += loss.item()\n        print(sums)", ""),
        ("sums = {'a': 0.0}", "sums['a'] += loss.item()\n        sums['a'] += 1", ""),
        ("sums = {}", "sums['a'] += loss.item()", ""),
        ("sums = self.sums", "sums['a'] += loss.item()", ""),
    ],
)
def test_sums_in_a_dictionary_are_read_behind_the_loop(begun: str, adds: str, reads: str) -> None:
    text = f"""
def train(self, batches):
    {begun}
    for x in batches:
        loss = self.model(x).mean()
        loss.backward()
        {adds}
    return sums
"""
    sites = [site for site in found(text, "NPU214") if site.rewrite is not None]
    assert [f"    {reads}\n    return sums" in s.rewrite.direct for s in sites if s.rewrite] == (
        [True] if reads else []
    )


@pytest.mark.parametrize(
    ("body", "new"),
    [
        (
            "a = x.max().item()\n    b = y.min().item()",
            "a, b = torch.stack([x.max(), y.min()]).tolist()",
        ),
        (
            "self.a = x.max().item()\n    b = float(y.min().item())",
            "self.a, b = torch.stack([x.max(), y.min()]).tolist()",
        ),
        # the second needs the first, a call is between them, one is a count, or an element
        ("a = x.max().item()\n    b = (y * a).min().item()", ""),
        ("a = x.max().item()\n    self.act(y)\n    b = y.min().item()", ""),
        ("a = x.max().item()\n    b = (y > 0).sum().item()", ""),
        ("a = x.max().item()\n    b = self.act(y).item()", ""),
        ("if a:\n        raise ValueError(x.max().item())\n    b = y.min().item()", ""),
    ],
)
def test_numbers_of_statements_next_to_each_other_are_read_at_once(body: str, new: str) -> None:
    text = f"""
def training_step(self, x: torch.Tensor, y: torch.Tensor, a=0, b=0):
    loss = self.model(x, y)
    {body}
    return loss, a, b
"""
    sites = [site for site in found(text, "NPU214") if site.rewrite is not None]
    assert [new in s.rewrite.direct for s in sites if s.rewrite] == ([True] if new else [])


@pytest.mark.parametrize(
    ("places", "new"),
    [
        ("(x > 0).any(1).nonzero().squeeze(1).tolist()", "(x > 0).any(1).cpu().nonzero()"),
        ("torch.nonzero(x > 0).cpu()", "torch.nonzero((x > 0).cpu()).cpu()"),
        # the device needs the places too, or what has places is no mask
        ("(x > 0).nonzero().squeeze(1)", ""),
        ("x.nonzero().tolist()", ""),
    ],
)
def test_a_mask_is_copied_before_its_places_are_found_on_the_host(places: str, new: str) -> None:
    text = f"""
class Cell(nn.Module):
    def forward(self, x: torch.Tensor):
        at = {places}
        return [self.cell(x[n]) for n in at]
"""
    sites = [site for site in found(text, "NPU214") if site.rewrite is not None]
    assert [new in s.rewrite.direct for s in sites if s.rewrite] == ([True] if new else [])


@pytest.mark.parametrize(
    ("size", "said"),
    [
        ("batch.max().int() + 1", True),
        ("max(1, 9 - batch.max())", True),
        ("batch.amax()", True),
        ("batch.max(0).values", False),
        ("max(1, len(batch))", False),
    ],
)
def test_a_tensor_that_becomes_a_size_is_told(size: str, said: object) -> None:
    text = f"""
class Sums(nn.Module):
    def forward(self, x: torch.Tensor, batch: torch.Tensor):
        n = {size}
        return x.new_zeros(n, 4).index_add_(0, batch, x)
"""
    assert bool(found(text, "NPU214")) == said


@pytest.mark.parametrize(
    ("mask", "positions"),
    [("~data['padding_mask'][:, 3:]", True), ("~data['padding_mask'].numpy()", False)],
)
def test_a_mask_that_is_named_so_is_one_in_a_module(mask: str, positions: object) -> None:
    text = f"""
class Model(nn.Module):
    def training_step(self, data, target):
        y_hat = self(data)
        mask = {mask}
        return self.reg_loss(y_hat[mask], target[mask])
"""
    sites = found(text, "NPU218")
    assert [{c.name for c in s.open_conditions} >= {"boolean-mask"} for s in sites] == (
        [True] if positions else []
    )


@pytest.mark.parametrize(
    ("loop", "rounds", "lines"),
    [
        ("for i in range(9):", "x[i].cpu()", ["x_cpu = x.cpu()", "x_cpu[i])"]),
        ("for i, a in enumerate(y):", "a.cpu()", ["enumerate(y.cpu())", "found.append(a)"]),
        (
            "for a, b in zip(x, y):",
            "a.cpu(), b.detach().cpu()",
            ["zip(x.cpu(), y.cpu())", "found.append(a, b.detach())"],
        ),
        # the device needs the row as well, each round has one of its own, or changes it
        ("for a in y:", "a.cpu(), self.act(a)", []),
        ("for i in range(9):", "self.act(x)[i].cpu()", []),
        ("for i in range(9):\n        x[i] += 1", "x[i].cpu()", []),
    ],
)
def test_rows_are_copied_to_the_host_before_the_loop(
    loop: str, rounds: str, lines: list[str]
) -> None:
    text = f"""
class Coder(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, found=None):
        {loop.replace(chr(10) + " " * 8, chr(10) + " " * 12)}
            found.append({rounds})
        return found
"""
    sites = [site for site in found(text, "NPU214") if site.rewrite is not None]
    assert len(sites) == bool(lines)
    assert all(line in s.rewrite.direct for s in sites if s.rewrite for line in lines)


@pytest.mark.parametrize(
    ("body", "conditions"),
    [
        ("y = y[: int(x.max().item())]", set()),
        ("row += [0] * (int(x.max().item()) - 1)", {"not-written-to"}),
        # it may be another number in each round
        ("x = x * 2\n            y = y[: int(x.max().item())]", None),
        ("self.step(x)\n            y = y[: int(x.max().item())]", None),
        ("y = y[: int(self.x.max().item())]", None),
    ],
)
def test_a_number_that_stays_is_read_before_the_loop(
    body: str, conditions: set[str] | None
) -> None:
    text = f"""
class Pad(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, rows):
        for row in rows:
            {body}
        return y
"""
    before = "        x_max = int(x.max().item())\n        for row in rows:"
    sites = [s for s in found(text, "NPU214") if s.rewrite and before in s.rewrite.direct]
    assert [{c.name for c in s.open_conditions} for s in sites] == (
        [] if conditions is None else [conditions]
    )


@pytest.mark.parametrize(
    ("body", "new"),
    [
        (
            "rows = torch.arange(9)\n        return y[rows, best]",
            "torch.arange(9, device=y.device)",
        ),
        (
            "rows = torch.arange(9)[:, None].expand(9, 3)\n        return y[rows, best]",
            "torch.arange(9, device=y.device)[:, None].expand(9, 3)",
        ),
        # the host needs it, or the tensor is not there yet
        ("rows = torch.arange(9)\n        return y[rows, best], rows.tolist()", ""),
        ("rows = torch.arange(9)\n        y = y * 2\n        return y[rows, best]", ""),
        ("rows = torch.arange(9, device='cpu')\n        return y[rows, best]", ""),
    ],
)  # fmt: skip
def test_a_range_that_is_an_index_is_made_where_the_tensor_is(body: str, new: str) -> None:
    text = f"""
class Head(nn.Module):
    def forward(self, y: torch.Tensor, best: torch.Tensor):
        {body}
"""
    sites = [site for site in found(text, "NPU212") if site.rewrite is not None]
    assert [new in s.rewrite.direct for s in sites if s.rewrite] == ([True] if new else [])


@pytest.mark.parametrize(
    ("count", "choice", "written"),
    [
        ("(x > 0).sum()", "n if n > 0 else 1", set()),
        ("(x > 0).sum()", "1 if n == 0 else n", set()),
        ("valid.sum()", "n if n > 0 else n + 1", {"never-negative"}),
        # it may be below one, or the other arm is another number
        ("valid.mean()", "n if n > 0 else 1", None),
        ("(x > 0).sum()", "n if n > 0 else 2", None),
        ("(x > 0).sum()", "n if n > 1 else 1", None),
    ],
)
def test_a_count_that_is_one_at_least_is_clamped(
    count: str, choice: str, written: set[str] | None
) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, valid):
        n = {count}
        n = {choice}
        return x.sum() / n
"""
    sites = [s for s in found(text, "NPU217") if s.rewrite and "n.clamp(min=1)" in s.rewrite.direct]
    assert [{c.name for c in s.open_conditions} for s in sites] == (
        [] if written is None else [written]
    )


@pytest.mark.parametrize(
    ("loop", "rule", "new"),
    [
        (
            "return [(x[i] > y).float().mean().item() * 100 for i in range(3)]",
            "NPU214",
            "n * 100 for n in torch.stack(",
        ),
        (
            "for i in range(3):\n            y = x[i, i - 1].item() * y\n        return y",
            "NPU214",
            "x_list[i][i - 1] * y",
        ),
        (
            "n = len(x)\n        return x[torch.from_numpy(np.random.permutation(n)).to(x.device)]",
            "NPU219",
            "torch.randperm(n, device=x.device)",
        ),
        (
            "n = torch.tensor(0.0).to(x.device)\n        n += y.sum()\n        return n.item()",
            "NPU219",
            "n = torch.zeros((), device=x.device)",
        ),
        # all of an array is permuted
        ("at = torch.from_numpy(np.random.permutation(y)).to(x.device)\n        return at", "", ""),
    ],
)
def test_numbers_are_read_and_made_at_once(loop: str, rule: str, new: str) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, y):
        {loop}
"""
    sites = [s for s in found(text, rule or "NPU219") if s.rewrite]
    assert [new in s.rewrite.direct for s in sites if s.rewrite] == ([True] if new else [])


@pytest.mark.parametrize(
    ("body", "rule"),
    [
        # what is drawn on the host goes back
        ("return torch.multinomial(x.exp().cpu(), 1).to(x.device)", "NPU214"),
        ("return torch.multinomial(x.exp().cpu(), 1)", ""),
        # settings decide whether they are copied, or each call does
        ("if cfg.KIND == 'l1':\n            x = x * x.new_tensor(cfg.W['code'])", "NPU219"),
        ("if y.kind == 'l1':\n            x = x * x.new_tensor(cfg.W['code'])", ""),
    ],
)
def test_what_goes_there_and_back_or_again_is_told(body: str, rule: str) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, y):
        cfg = self.model_cfg.LOSS
        {body}
        return x
"""
    assert bool(found(text, rule or "NPU214") + found(text, rule or "NPU219")) == bool(rule)


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


@pytest.mark.parametrize(
    ("body", "there", "here"),
    [
        ("for row in OF:\n            out.append(row[row != 0].tolist())", "y_cpu", "x"),
        ("out = [i[:n].tolist() for i, n in zip(OF, data, strict=True)]", "x.cpu()", "x"),
        ("out = [{c: OF[i, j].item() for j, c in self.names} for i in range(9)]", "y_cpu", "x"),
        ("n = OF\n        out = [g.sum().item() for g in torch.split(n, 2)]",
         "self.processor(x)['n']", "x"),
        ("m = {'a': OF}\n        m = {k: v.item() for k, v in m.items()}", "x.mean().cpu()", "y"),
        ("out = [torch.sum(OF(d)['r']).item() for d in data]", "default_collate", "self.net"),
        ("for b in OF:\n            out.append(b['r'].mean().item())", "y_cpu",
         "self.split(data, self.cfg.size)"),
        ("c = OF.cumsum(0)\n        for i in range(9):\n            out.append(x[c[i] : c[i + 1]])",
         "torch.tensor(data)", "sizes"),
        ("r = OF\n        out = torch.nonzero(r >= torch.quantile(r, 0.5))",
         "torch.tensor(data)", "x"),
    ],
)  # fmt: skip
def test_what_is_cut_out_of_a_copy_lies_on_the_host(body: str, there: str, here: str) -> None:
    text = """
class Trainer(nn.Module):
    def training_step(self, x: torch.Tensor, y: torch.Tensor, sizes: torch.Tensor, data):
        out = []
        y_cpu = y.detach().cpu()
        {}
        return x.sum(), out
"""
    for name, told in ((there, 0), (here, 1)):
        assert len(found(text.format(body.replace("OF", name)), "NPU214")) == told, name


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("x[m] = x[m] * torch.exp(x[m])", "where(m, x.clone() * torch.exp(x.clone()), x)"),
        ("x[m] *= torch.exp(y[m])", "where(m, x.clone() * torch.exp(y), x)"),
        ("x[m] -= torch.exp(y[m])", "where(m, x - torch.exp(y), x)"),  # needs no old elements
        ("x[m] = x[m] * 2 + y[m]", "where(m, x * 2 + y, x)"),
    ],
)
def test_what_a_gradient_needs_is_not_written_over(code: str, new: str) -> None:
    text = f"""
    def forward(x: torch.Tensor, y: torch.Tensor):
        m = (x > y) & (y > 0)
        {code}
        return x
    """
    assert f"x.copy_(torch.{new})" in rewritten(text, "NPU223")
