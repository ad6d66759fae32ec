"""What the source proves about masks, repeats and tensors, and what it does not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.substitution import Safety
from npufix.rules.substitutions import masked_assignment, nonzero_reduction, repeat_interleave

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = "import numpy as np\nimport torch\nfrom torch import nn\n\n\n"
RULES = (masked_assignment.RULE, nonzero_reduction.RULE, repeat_interleave.RULE)


def sites(text: str) -> list[Site]:
    return list(find_sites(HEADER + text, RULES))


def function(parameters: str, *lines: str) -> str:
    return f"def f({parameters}):\n" + "".join(f"    {line}\n" for line in lines)


SAFE = {
    "what modules return": """
class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 3, 1), nn.Sequential(nn.ReLU(), nn.BatchNorm2d(3))

    def forward(self, x):
        x = self.norm(self.conv(x))
        x[x > 0] = 0
        return x
""",
    "a comparison of the tensor with a setting": function(
        "x: torch.Tensor, limit", "x[x > limit] = 0"
    ),
    "a comparison of what is computed from the tensor": function(
        "x: torch.Tensor, y", "x[x.abs() - 1 < y] = 0"
    ),
    "a test that only torch makes": function("x", "x[torch.isnan(x) | x.isinf()] = 0"),
    "two comparisons": function("x: torch.Tensor, n", "x[(x > 0) & ~(x == n)] = 0"),
    "any mask of a vector": function(
        "x: torch.Tensor, y: torch.Tensor", "x = x.flatten()", "x[y > 0] = 0"
    ),
    "any mask of a new vector": function(
        "x: torch.Tensor, y: torch.Tensor, n", "new = x.new_full((n,), 2.0)", "new[y > 0] = 0"
    ),
    "any mask of the columns of a matrix": function(
        "x: torch.Tensor, y: torch.Tensor", "rows, columns = x.shape", "x[:, y > 0] = 0"
    ),
    "a tensor by its methods": function("x", "n = x.size(0)", "x[x < 0] = 0"),
    "a sum over a vector": function(
        "x: torch.Tensor, y: torch.Tensor", "return x.flatten()[y > 0].sum()"
    ),
    "a number of repeats by its name": function(
        "x: torch.Tensor, n_rep",
        "return x.repeat_interleave(n_rep, dim=1)",
    ),
    "a mask that one branch makes": function(
        "x: torch.Tensor, y",
        "if y:",
        "    wrong = x < 0",
        "z = 1",
        "if y:",
        "    x[wrong] = 0",
    ),
    "a product of two masks": function("x: torch.Tensor", "x[(x > 0) * (x < 1)] = 0"),
    "a mask that is narrowed": function(
        "x: torch.Tensor", "m = x > 0", "m &= x < 1", "x = x.flatten()", "x[m.flatten()] = 0"
    ),
    "rows of a matrix": function(
        "x: torch.Tensor, y: torch.Tensor", "n, d = x.shape", "x[y.sum(-1) > 0, :] = 0"
    ),
    "a count of the rounds": function(
        "x: torch.Tensor", "x = x.long()", "for i in range(3):", "    x[x < i] = i + 1"
    ),
    "the second of two equal tensors": function(
        "x: torch.Tensor", "a = torch.zeros_like(x)", "b = torch.zeros_like(x)", "b[b < 1] = 1"
    ),
    "values and places of what has as many dimensions": function(
        "x: torch.Tensor", "v, i = (x[:, None] - x).norm(dim=-1).topk(4)", "i[v > 9] = 0"
    ),
    "sums over a dimension of one tensor": function(
        "x: torch.Tensor, y: torch.Tensor",
        "m = (x[:, :, None] == y[None, None]).long()",
        "n = m.argmax(-1)",
        "n[m.sum(2) < 1] = 0",
    ),
    "what the docstring says is a mask of a vector": function(
        "x, mask, y",
        '"""Fill.',
        "",
        "Args:",
        "    x (~torch.Tensor of shape (n,), optional): what is filled",
        "    mask (:class:`BoolTensor`, defaults to ``None``): where",
        '"""',
        "y = x.flatten()",
        "y[mask] = 0",
    ),
    "what NumPy's way of docstrings says is a tensor": function(
        "x", '"""Fill.', "", "x : torch.Tensor[N, 4]", "    what is filled", '"""', "x[x < 0] = 0"
    ),
    "dimensions that an annotation names": function(
        "x: Float[Tensor, 'b n 3'], y: Bool[Tensor, 'b #n'] | None", "x[y, :] = 0"
    ),
    "a tensor that is made where it is left out": function(
        "x: torch.Tensor, w", "if w is None:", "    w = x.new_ones(3)", "w[w < 0] = 0"
    ),
    "lengths that are unpacked of all but the last": function(
        "x: torch.Tensor, y: torch.Tensor",
        "n, d = x.shape[:-1]",
        "b, h = y.shape[1:]",
        "x[y > 0] = 0",
    ),
    "a number of repeats that is compared": function(
        "x: torch.Tensor, n", "if n > 1:", "    x = x + 1", "return x.repeat_interleave(n)"
    ),
    "a number of repeats that another method declares": """
class Upsampler(nn.Module):
    def encode(self, x: torch.Tensor, count):
        return x.repeat_interleave(count)

    def forward(self, x: torch.Tensor, count: int | None = 1):
        return self.encode(x, count)
""",
    "a number of repeats in a configuration": """
class Upsample(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.repeats = config.repeats

    def forward(self, x: torch.Tensor):
        return x.repeat_interleave(self.repeats)
""",
}


@pytest.mark.parametrize("code", SAFE.values(), ids=SAFE.keys())
def test_proven(code: str) -> None:
    (site,) = sites(code)
    assert site.safety is Safety.SAFE, [c.name for c in site.open_conditions]


OPEN = {
    "an array or a tensor": (function("x", "x[x < 0] = 0"), {"is-tensor"}),
    "a comparison of something else": (
        function("x: torch.Tensor, y", "x[y < 0] = 0"),
        {"boolean-mask", "same-rank-mask"},
    ),
    "the first number of each of several": (
        function("x: torch.Tensor, labels", "for v in labels:", "    x[x < 0] = v[0]"),
        {"value-fits-dtype"},
    ),
    "rows, maybe": (
        function("x: torch.Tensor, mask: torch.BoolTensor", "x[mask, :] = 0"),
        {"row-mask"},
    ),
    "the opposite of something": (
        function("x: torch.Tensor, chosen", "x[~chosen] = 0"),
        {"boolean-mask", "same-rank-mask"},
    ),
    "a setting and the number of the round": (
        function("x: torch.Tensor, limits", "for i in range(3):", "    x[x < 0] = limits[0] + i"),
        {"value-fits-dtype"},
    ),
    "an array or a tensor with a new axis": (
        function("x, y", "z = x[:, None]", "x[x < 0] = 0"),
        {"is-tensor"},
    ),
    "a dictionary of numbers": (
        function("x: torch.Tensor, tokens", "x[x == 0] = tokens.pad()"),
        {"value-fits-dtype"},
    ),
    "repeats that may be a tensor as well": (
        function(
            "k: torch.Tensor, n",
            "if isinstance(n, int):",
            "    return k.repeat(n, 1)",
            "return k.repeat_interleave(n, 1)",
        ),
        {"int-repeats"},
    ),
    "repeats that are declared as both": (
        function("k: torch.Tensor, n: int | torch.Tensor = 1", "return k.repeat_interleave(n, 1)"),
        {"int-repeats"},
    ),
    "a docstring that leaves open what it is": (
        function(
            "x, y",
            '"""Fill.',
            "",
            "x (Tensor or list): what is filled",
            "y (SparseTensor): where",
            '"""',
            "x[x < 0] = 0",
        ),
        {"is-tensor"},
    ),
    "lengths that are unpacked from a place that is not known": (
        function(
            "x: torch.Tensor, y: torch.Tensor, k: int",
            "n, d = x.shape[:-1]",
            "b, h = y.shape[k:]",
            "c, e = y.shape[-2:]",
            "x[y > 0] = 0",
        ),
        {"same-rank-mask"},
    ),
    "dimensions of which an annotation leaves some out": (
        function("x: Float[Tensor, '*b n 3'], y: Int[Tensor, 'b n']", "x[y > 0, :] = 0"),
        {"row-mask"},
    ),
    "a mask that was moved": (
        function("x: torch.Tensor", "x[(x.cpu() > 0)] = 0"),
        {"same-device"},
    ),
}


@pytest.mark.parametrize(("code", "names"), OPEN.values(), ids=OPEN.keys())
def test_not_proven(code: str, names: set[str]) -> None:
    (site,) = sites(code)
    assert {c.name for c in site.open_conditions} == names


NOTHING = {
    "an array of NumPy": function("n", "a = np.zeros((3, 4))", "a[a == 0] = n"),
    "a dictionary of tensors": function("next_tensordict, m", "next_tensordict[m > 0] = 0"),
    "an array in other dimensions": function(
        "x: torch.Tensor", "a = x.cpu().numpy().reshape(2, 1)[0]", "a[a > 0] = 1"
    ),
    "an array of which NumPy takes columns": function(
        "x", "y = np.concatenate([x[:, :2], x[:, 3:]])", "x[x > 0] = 1"
    ),
    "an index of three dimensions": function(
        "x: torch.Tensor, i: torch.Tensor, n",
        "i = i.unsqueeze(-1).expand(4, 5, 6)",
        "for k in range(n):",
        "    y = x[k].gather(0, i[k])",
    ),
    "an array that a tensor became": function(
        "x: torch.Tensor", "a = x.cpu().numpy() * 2", "a[a > 0] = 1"
    ),
    "repeats that have a length": function(
        "x: torch.Tensor, n", "print(len(n))", "return x.repeat_interleave(n, 1)"
    ),
    "repeats that are added up later": function(
        "x: torch.Tensor, n", "y = x.repeat_interleave(n, 1)", "return y * torch.sum(n)"
    ),
    "positions that are drawn": function(
        "x: torch.Tensor, w: torch.Tensor", "to_mask = torch.multinomial(w, 3)", "x[to_mask] = 1"
    ),
    "one of two tensors": function(
        "x: torch.Tensor, m: torch.Tensor, r, s", "x[m > 0] = r @ s if len(r) > 3 else r * s"
    ),
    "a list of positions": function("x: torch.Tensor, mask_list", "x[mask_list] = 0"),
    "an array compared": function("a", "a[np.abs(a) < 1e-8] = 0"),
    "a dictionary": function(
        "items", "a = {}", "pos = 0", "for name in items:", "    a[pos] = name", "    pos += 1"
    ),
    "rows of another tensor": function(
        "h, mask", "x = torch.zeros(mask.size(0), *h.shape[1:])", "x[mask] = h"
    ),
    "an index of two dimensions": function(
        "x: torch.Tensor, q: torch.Tensor",
        "return x.gather(0, q.argmax(0).unsqueeze(0).unsqueeze(-1))",
    ),
    "the opposite of an array": function("x, y", "x[~np.isin(x, y)] = 0"),
    "an array of which the docstring tells": function(
        "x", '"""Fill.', "", "    x (np.ndarray): what is filled", '"""', "x[x < 0] = 0"
    ),
    "flags in a list": function(
        "x: torch.Tensor, n: torch.Tensor", "bad = [k > 3 for k in n.tolist()]", "x[bad] = 0"
    ),
    "an array cast": function("x", "a = x.astype(np.float32)", "a[a > 0] = 1"),
    "the number of a token": function("x: torch.Tensor, pad", "x[:, pad] = 0"),
    "a table of positions": function("x: torch.Tensor, pos_inds", "x[pos_inds] = 1.0"),
    "positions made like a mask": function(
        "x: torch.Tensor, m: torch.Tensor",
        "k = torch.zeros_like(m > 0, dtype=torch.long)",
        "x[k] = 1",
    ),
    "elements of a tensor in turn": function(
        "x: torch.Tensor, y: torch.Tensor", "for v in y:", "    x[x < 0] = v + y[0]"
    ),
    "what a loop of layers computes": function(
        "x: torch.Tensor, m: torch.Tensor, layers",
        "y = x",
        "for layer in layers:",
        "    y = layer(y)",
        "x[m > 0] = y",
    ),
    "a parameter": (
        "class Mask(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.token = nn.Parameter(torch.FloatTensor(n).uniform_())\n\n"
        "    def forward(self, x: torch.Tensor, m: torch.Tensor):\n        x[m > 0] = self.token\n"
    ),
    "class weights, not a mask": function(
        "class_weight: torch.Tensor, labels: torch.Tensor", "return class_weight[labels].sum()"
    ),
}


@pytest.mark.parametrize("code", NOTHING.values(), ids=NOTHING.keys())
def test_not_concerned(code: str) -> None:
    assert sites(code) == []


@pytest.mark.parametrize(
    ("made", "is_proven"),
    [
        ("rearrange(x, 'b n d -> b (n d)')", True),
        ("rearrange(x, '... n d -> ... (n d)')", False),
        ("rearrange(x, letters)", False),
        ("group(x)", False),
    ],
)
def test_the_letters_of_einops_tell_the_rank(made: str, *, is_proven: bool) -> None:
    body = function("x: torch.Tensor, letters", f"y = {made}", "y[x.flatten() > 0] = 0.0")
    (site,) = sites(f"from einops import rearrange\n{body}")
    assert site.rewrite is not None
    assert ("unsqueeze(-1)" in site.rewrite.text) is is_proven


def test_two_results_of_a_call_have_ranks_of_their_own() -> None:
    body = function(
        "group, x", "scores, mask = group(x)", "scores = scores.float()",
        "scores[mask] = 0.0",
    )  # fmt: skip
    (site,) = sites(body)
    assert "same-rank-mask" in {condition.name for condition in site.open_conditions}
    assert site.rewrite is not None
    assert site.rewrite.text == "scores.masked_fill_(mask, 0.0)"


NO_MASKS = {
    "what a mask has picked": ("x: torch.Tensor, at, m", "x[at[m == 0]] = 1.0"),
    "handed over as positions": (
        "x: torch.Tensor, valid, y",
        "y.index_copy_(0, valid[2:], y)",
        "x[valid[:2]] = 1.0",
    ),
    "found positions": (
        "x: torch.Tensor, mask: torch.BoolTensor",
        "mask = (~mask).nonzero().flatten()",
        "x[..., mask] = 0.0",
    ),
    "a place in a ring": ("buffer, n", "pos = (buffer.pos - 1) % n", "buffer.done[pos] = True"),
    "a setting": ("self, x: torch.Tensor", "x[..., self.config.pad_code] = 0.0"),
    "a key": ("self, x", "self.saved[self.padding_key] = 1"),
    "an array of several": ("self, mask", "self.count.np[:4][mask] = 1"),
    "rows": ("x: torch.Tensor, mask, image_embeds", "x[mask, :] = image_embeds"),
}


@pytest.mark.parametrize("lines", NO_MASKS.values(), ids=NO_MASKS)
def test_what_can_be_no_mask_is_none(lines: tuple[str, ...]) -> None:
    assert sites(function(*lines)) == []


def test_what_sums_over_some_dimensions_leave_is_counted() -> None:
    lines = "y = x.mean((1, 2)) + 1", "y[x.sum((-1, -2)) == 0] = 0"
    (site,) = sites(function("x: torch.Tensor", *lines))
    assert site.rewrite is not None
    assert site.rewrite.text == "y.masked_fill_(x.sum((-1, -2)) == 0, 0)"


def test_positions_of_rows_are_a_mask_of_rows() -> None:
    body = "m[torch.where(m.sum(-1) == m.shape[-1])] = False"
    (site,) = sites(function("m: torch.BoolTensor, n", "for _ in range(n):", f"    {body}"))
    assert site.rewrite is not None
    assert site.rewrite.text == "m.masked_fill_((m.sum(-1) == m.shape[-1]).unsqueeze(-1), False)"


def test_a_mask_that_was_expanded_has_the_rank_of_what_it_was_expanded_to() -> None:
    body = function("x: torch.Tensor, m: torch.BoolTensor", "x[m.expand_as(x)] = 0.0")
    (site,) = sites(body)
    assert not site.open_conditions
    assert site.rewrite is not None
    assert site.rewrite.text == "x.masked_fill_(m.expand_as(x), 0.0)"


@pytest.mark.parametrize(("taken", "aligned"), [("a", False), ("1", False), ("c", True)])
def test_a_mask_has_all_dimensions_of_what_its_comparison_reads(
    taken: str, *, aligned: bool
) -> None:
    (site,) = sites(
        function(
            "ids: torch.LongTensor, a, b, c: torch.Tensor",
            "m = (ids < a) | (ids >= b)",
            f"x = ids - {taken}",
            "x[m] = 0",
        )
    )
    assert site.rewrite is not None
    assert (".view(" in site.rewrite.text) is aligned


@pytest.mark.parametrize(("name", "rows"), [("logits", True), ("token_ids", False)])
def test_a_mask_of_padding_is_one_of_places(name: str, *, rows: bool) -> None:
    body = function(
        f"{name}, pad_mask: torch.BoolTensor, f", f"{name} = f({name})",
        f"{name}[~pad_mask] = 0",
    )  # fmt: skip
    (site,) = sites(body)
    assert {"row-mask" if rows else "same-rank-mask"} <= {c.name for c in site.open_conditions}


@pytest.mark.parametrize(("name", "rows"), [("context", True), ("scores", False)])
def test_a_mask_of_attention_is_one_of_places(name: str, *, rows: bool) -> None:
    body = function(
        f"{name}, attention_mask, f", f"{name} = f({name})",
        f"{name}[~attention_mask.bool()] = 0",
    )  # fmt: skip
    (site,) = sites(body)
    assert {"row-mask" if rows else "same-rank-mask"} <= {c.name for c in site.open_conditions}


@pytest.mark.parametrize(
    ("mask", "is_written"),
    [
        ("x.norm(dim=-1) > 0", True),
        ("(x > 0).any(-1)", True),
        ("x[..., 0] > 0", True),
        ("x[..., 0, 0] > 0", False),
    ],
)
def test_vectors_that_a_mask_picks_are_added_up_under_it(mask: str, *, is_written: bool) -> None:
    code = f"import torch\n\ndef f(x: torch.Tensor):\n    m = {mask}\n    return x[m].mean()\n"
    found = [site.rewrite for site in find_sites(code, [nonzero_reduction.RULE])]
    texts = [rewrite.text for rewrite in found if rewrite is not None]
    new = "torch.where(m.unsqueeze(-1), x, 0).sum() / (m.sum() * x.size(-1))"
    assert texts == ([new] if is_written else [])


@pytest.mark.parametrize(
    ("lines", "is_written"),
    [
        ("print(w)\n    n = torch.nonzero(w > 0).shape[0]", True),
        ("assert w is not None\n    n = torch.nonzero(w > 0).size()[0]\n    w.zero_()", True),
        ("print(w)\n    at = torch.nonzero(w > 0)\n    w.zero_()\n    n = at.shape[0]", False),
        ("at = torch.nonzero(w > 0)\n    w.zero_()\n    n = at.shape[0]", False),
    ],
)
def test_positions_are_counted_when_they_are_found(lines: str, *, is_written: bool) -> None:
    code = f"import torch\ndef f(w: torch.Tensor):\n    {lines}\n    return n\n"
    found = [site.rewrite for site in find_sites(code, [nonzero_reduction.RULE])]
    assert [rewrite is not None for rewrite in found] == [True] * is_written
