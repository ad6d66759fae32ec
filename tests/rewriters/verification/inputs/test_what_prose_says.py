"""Types, promises and bounds that a text says in passing, and sizes that tests tie together."""

from __future__ import annotations

import ast
import inspect
from textwrap import dedent

import pytest

torch = pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.coverage import Branch  # noqa: E402 - same
from npufix.rewriters.verification.calls.values import (  # noqa: E402 - same
    Promise,
    Tensor,
    make_tensor,
    seed_generator,
)
from npufix.rewriters.verification.inputs.source.declarations import (  # noqa: E402 - same
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.path_conditions import solve_sizes  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.promises import (  # noqa: E402 - same
    read_from_one,
    read_promises,
)
from npufix.rewriters.verification.inputs.source.shapes import Said, read_text  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.texts.types import read_types  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.usage import find_uses  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

BANDS = '''
import torch

def mask_bands(spec, starts, width: int = 2):
    """Set `width` bins from every start to the mean. spec (F, T), starts: list of int."""
    fill = spec.mean()
    spec = spec.clone()
    for s in starts:
        spec[s : s + width] = fill
    return spec
'''


@pytest.mark.parametrize(
    ("text", "name", "type_"),
    [
        ("spec (F, T), starts: list of int.", "starts", "list[int]"),
        ("Args:\n  starts (list of ints): where\n", "starts", "list[int]"),
        ("starts : sequence of float\n    Seconds.", "starts", "list[float]"),
        (":param list[int] starts: where", "starts", "list[int]"),
        ("`starts` is a tuple of indices below F", "starts", "tuple[int, ...]"),
        ("named: dict of str to Tensor", "named", "dict[str,Tensor]"),
        ("size : (int, int)\n    Of the grid.", "size", "tuple[int, int]"),
        ("starts: list of interesting things", "starts", None),
        ("restarts: list of int", "starts", None),
    ],
)
def test_types_are_read_wherever_they_stand(text: str, name: str, type_: str | None) -> None:
    assert read_types(text, [name, "spec"]).get(name) == type_


@pytest.mark.parametrize(
    ("text", "shapes", "kinds"),
    [
        ("Return the means of x (N, D).", (("N", "D"),), set()),
        ("Returns the position of each: x (B, T), bool, True for some.", (("B", "T"),), {"bool"}),
        ("Return x times y (N, D).", (), set()),  # of what is made
        ("Return the means (N, D) of x.", (), set()),
        ("Returns:\n    x (N, D)", (), set()),
        ("x: (N, T), int16 samples", (("N", "T"),), {"int"}),
    ],
)
def test_a_sentence_that_says_what_is_returned_names_arguments(
    text: str, shapes: tuple[tuple[str, ...], ...], kinds: set[str]
) -> None:
    said = read_text(text, ["x"]).get("x", Said())
    assert (said.shapes, said.kinds) == (shapes, kinds)
    assert said.narrow == ("int16" if "int16" in text else "")


def test_a_list_of_numbers_is_passed_as_one() -> None:
    verdict = verified(
        BANDS, "        spec[s : s + width] = fill", "        spec[s : s + width] = spec.mean()"
    )
    assert verdict.status is Status.REFUTED, verdict
    same = verified(
        BANDS, "        spec[s : s + width] = fill", "        spec[s : s + width].fill_(fill)"
    )
    assert same.status is Status.EQUIVALENT, same


@pytest.mark.parametrize(
    ("text", "promise"),
    [
        ("mask (B, T): True where a token stands; the first always does.", Promise(first=True)),
        ("mask (B, T): True for keys that are seen, at least one in each row.", Promise()),
        ("mask (B, T): True marks padding, never all of a row.", Promise(value=False)),
        ("mask (B, T): True where a token stands. x: at least one row.", None),
        ("mask (B, T): True where a token stands.", None),
        ("mask (T,): a permutation of 0 to T - 1.", Promise(permutes=True)),
        ("x: (T, D) sorted rows, mask: (T,) long permutation, y: (T,)", Promise(permutes=True)),
        ("mask (T,): what is permutation invariant.", None),
        ("mask (T,): returns a permutation of x.", None),
    ],
)
def test_what_each_row_of_a_mask_has_is_read(text: str, promise: Promise | None) -> None:
    assert read_promises(text, ["x", "mask"]).get("mask") == promise


@pytest.mark.parametrize("promise", [Promise(), Promise(value=False), Promise(first=True)])
@pytest.mark.parametrize("flavour", ["ordinary", "all false", "all true", "whole rows"])
@pytest.mark.parametrize("kind", ["bool", "int", "binary"])
def test_masks_keep_what_is_promised(promise: Promise, flavour: str, kind: str) -> None:
    spec = Tensor((9, 4), kind, promise=promise)  # type: ignore[arg-type] # a kind
    made = make_tensor(spec, flavour, seed_generator(flavour), torch.float32)  # type: ignore[arg-type] # a flavour
    rows = made.bool() == promise.value
    assert bool(rows.any(1).all())
    if promise.first:
        assert bool(rows[:, 0].all())


def test_rows_are_permuted() -> None:
    spec = Tensor((3, 4), "int", 9, promise=Promise(permutes=True))
    made = make_tensor(spec, "highest", seed_generator(0), torch.float32)
    assert made.sort().values.tolist() == [[0, 1, 2, 3]] * 3


@pytest.mark.parametrize("kind", ["bool", "additive"])
@pytest.mark.parametrize("named", ["mask", "attn_mask", "bias"])
def test_flags_are_not_all_the_same(named: str, kind: str) -> None:
    for seed in range(64):
        for shape in ((2, 3), (1, 2)):
            flags = Tensor(shape, kind)  # type: ignore[arg-type] # a kind
            made = make_tensor(flags, "ordinary", seed_generator(named, seed), torch.float32)
            assert len(made.unique()) == 2


POOLED = '''
import torch

def pool(tokens, mask):
    """Mean of tokens (B, T, D) where mask (B, T) bool holds: at least one token in every row."""
    weight = mask.to(tokens.dtype)[..., None]
    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)
'''


def test_rows_that_a_text_excludes_refute_nothing() -> None:
    last = "    return (tokens * weight).sum(1) / weight.sum(1).clamp(min=1)"
    other = "    return (tokens * weight).sum(1) / weight.sum(1)"
    assert verified(POOLED, last, other).status is Status.EQUIVALENT
    silent = POOLED.replace(": at least one token in every row", "")
    assert verified(silent, last, other).status is Status.REFUTED


MEANS = '''
import torch

def means(x, index, n: int):
    """Mean of the rows of x (E, D) of each of n nodes; index (E,)."""
    out = []
    for i in range(n):
        rows = x[index == i]
        out.append(rows.mean(0) if rows.shape[0] else torch.zeros_like(x[0]))
    return torch.stack(out)
'''


def test_what_is_compared_in_a_loop_is_below_its_end() -> None:
    loop = MEANS[MEANS.index("    out = []") :]
    joined = """    total = x.new_zeros(n, x.shape[1]).index_add(0, index, x)
    return total / torch.bincount(index, minlength=n).clamp(min=1)[:, None]
"""
    assert verified(MEANS, loop, joined).status is Status.EQUIVALENT
    assert verified(MEANS, loop, joined.replace("min=1", "min=2")).status is Status.REFUTED


EMBEDDING = '''
import torch
import torch.nn.functional as F

def embedding(t, dim: int):
    """t (B,) -> (B, dim)."""
    assert dim < 64
    half = dim // 2
    angle = t[:, None].float() * torch.arange(half, device=t.device)[None]
    out = torch.cat([angle.cos(), angle.sin()], dim=-1)
    if dim % 2:
        out = torch.cat([out, torch.zeros_like(out[:, :1])], dim=-1)
    return out
'''


def test_what_is_made_of_one_and_is_nothing_refutes_nothing() -> None:
    lines = EMBEDDING[EMBEDDING.index("    if dim % 2") :]
    assert verified(EMBEDDING, lines, "    return F.pad(out, (0, dim % 2))\n").status is (
        Status.EQUIVALENT
    )
    wrong = verified(EMBEDDING, lines, "    return F.pad(out, (dim % 2, 0))\n")
    assert wrong.status is Status.REFUTED, wrong


TIED = """
def f(self, x, h, w):
    if h * w != self.grid * self.grid or h != w:
        x = x + 1
    return x
"""


def test_sizes_are_found_that_tests_tie_together() -> None:
    tree = ast.parse(TIED)
    test = tree.body[0].body[0].test  # type: ignore[attr-defined] # the ``if``
    first, second = test.values
    known = {"self.grid": 4}

    def solved(node: ast.expr, *, holds: bool) -> dict[str, int]:
        place = Branch(node.lineno, node.col_offset, holds)
        return solve_sizes(tree, place, known, ["x", "h", "w"])

    assert solved(second, holds=False) == {"h": 4, "w": 4}
    assert solved(second, holds=True) == {"h": 2, "w": 8}
    found = solved(first, holds=True)
    assert found["h"] * found["w"] != 16


PATCHES = '''
import torch

def patchify(images, size: int = 2):
    """images (B, C, H, W), H and W multiples of size -> (B, H * W / size^2, size^2 * C)."""
    b, c, h, w = images.shape
    x = images.reshape(b, c, h // size, size, w // size, size)
    return x.permute(0, 2, 4, 3, 5, 1).reshape(b, (h // size) * (w // size), size * size * c)
'''


def test_images_without_height_refute_nothing() -> None:
    lines = PATCHES[PATCHES.index("    x = ") :]
    other = """    x = images.unfold(2, size, size).unfold(3, size, size)
    return x.permute(0, 2, 3, 4, 5, 1).reshape(b, -1, size * size * c)
"""
    assert verified(PATCHES, lines, other).status is Status.EQUIVALENT
    turned = other.replace("4, 5, 1", "5, 4, 1")
    assert verified(PATCHES, lines, turned).status is Status.REFUTED


GOES = (
    "The equivalent of repeat_interleave(x, repeats=n_rep). States go from (batch,\n    "
    "kv_heads, seqlen, head_dim) to (batch, heads, seqlen, head_dim)"
)


@pytest.mark.parametrize(
    ("text", "alone", "shapes"),
    [
        (GOES, "states", (("batch", "kv_heads", "seqlen", "head_dim"),)),
        ("(B, T, H * D) -> (B, H, T, D).", "states", (("B", "T", "H * D"),)),
        ("states: (B, C), (B, T, H) -> (B, H, T)", "states", (("B", "C"),)),
        ("(B, T, H) -> (B, H, T)", "", None),
        ("Of (B, T, H), which is (T, B, H) elsewhere.", "states", None),
        ("Returns:\n    (B, T, H) -> (B, H, T)", "states", None),
    ],
)
def test_a_change_of_shape_is_that_of_the_only_tensor(
    text: str, alone: str, shapes: tuple[tuple[str, ...], ...] | None
) -> None:
    said = read_text(text, ["states", "number"], alone).get("states")
    assert (said and said.shapes) == shapes


@pytest.mark.parametrize(
    ("text", "shapes"),
    [
        ("states (Tensor): points of size (`n_freqs`).", (("n_freqs",),)),
        ("states (Tensor): of shape (`n`, `m`)", (("n", "m"),)),
        ("states: complex values of shape [B, T, F', 2]", (("B", "T", "F'", "2"),)),
        ("states (`my_type`, *optional*): where", ()),
    ],
)
def test_sizes_are_read_in_quotes_and_with_primes(
    text: str, shapes: tuple[tuple[str, ...], ...]
) -> None:
    said = read_text(text, ["states"])["states"]
    assert said.shapes == shapes
    assert not said.kinds  # real and imaginary parts lie side by side


def test_a_number_has_no_shape() -> None:
    code = f'def repeat(states: Tensor, n_rep: int):\n    """{GOES}"""\n    return states'
    declared = read_declarations(code, "repeat")
    assert declared.of("states").shapes
    assert not declared.of("n_rep").shapes


def test_a_scalar_is_a_tensor_without_dimensions_where_it_must_be_one() -> None:
    code = '''
    def scale(x: Tensor, s: Tensor, t: torch.Tensor, u, v: float, w: Tensor):
        """x: (N, D); s, t: scalars in (0, 1); u: scalar; v: scalar

        w: scale of rows, (N,); multiplied by a scalar
        """
    '''
    declared = read_declarations(dedent(code), "scale")
    assert [declared.of(name).shapes for name in "stuvw"] == [((),), ((),), (), (), (("N",),)]


def test_an_index_that_writes_out_the_last_axis_tells_how_many_there_are() -> None:
    code = """
    def forward(self, x, tokens, mask, image):
        residual = x
        x = residual + self.attention(x)
        x = self.norm(x)
        image = self.flatten(image)
        return x[:, -1:, :] + image[:, 0, :] + mask[:, None, :] + tokens[..., 0, :] + tokens[0]
    """
    uses = find_uses(ast.parse(inspect.cleandoc(code)).body[0])
    assert {n: uses[n].dims for n in ("x", "tokens", "mask", "image")} == {
        "x": {3},
        "tokens": set(),
        "mask": {2},
        "image": set(),
    }


def test_an_axis_that_an_operator_names_tells_how_many_there_are_at_least() -> None:
    code = """
    def forward(self, x, y, parts, weights, image, either):
        parts = torch.cat(parts, 2)
        if either.dim() == 3:
            either = either.sum(-3)
        image = F.interpolate(image, scale_factor=2, mode="bilinear")
        return torch.stack([x.float().softmax(-1), y], dim=-3), weights.sum(0), parts
    """
    uses = find_uses(ast.parse(inspect.cleandoc(code)).body[0])
    least = {name: uses[name].least for name in ("x", "y", "parts", "weights", "image", "either")}
    assert least == {"x": 2, "y": 2, "parts": 0, "weights": 0, "image": 4, "either": 0}


COLLAPSED = '''
import torch

def collapse(ids: torch.Tensor):
    """ids (B, T) long of the best path."""
    kinds = [sorted(set(row.tolist())) for row in ids]
    return [torch.tensor(kind, dtype=torch.long, device=ids.device) for kind in kinds]
'''


def test_what_is_said_to_be_long_is_of_no_other_type() -> None:
    old = COLLAPSED[COLLAPSED.index("kinds") :].rstrip()
    new = "return [torch.unique(row) for row in ids]"
    found = verified(COLLAPSED, old, new)
    assert found.status is Status.EQUIVALENT, found
    unsaid = COLLAPSED.replace(" long of the best path", " of the best path")
    found = verified(unsaid, old, new)
    assert found.status is Status.REFUTED, found


@pytest.mark.parametrize(
    ("text", "below", "least"),
    [
        ("ids: (N, K) long in [0, experts), w: (N, K)", "experts", False),
        ("h (N, T, D), ids (N,) long with 1 <= length <= T", "T + 1", True),
        ("h (N, T, D), ids (N,) long, 1 <= ids <= T", "T + 1", True),
        ("h (N, T, D), ids (N,) long, 0 < ids < T", "T", True),
        ("h (N, T, D), ids (N,) long, 0 <= ids < T", "T", False),
    ],
)
def test_ranges_are_read_with_both_of_their_ends(text: str, below: str, *, least: bool) -> None:
    names = ["ids", "w", "h"]
    assert read_text(text, names)["ids"].below == below
    assert ("ids" in read_from_one(text, names)) is least


def test_what_is_certain_has_a_probability_of_one() -> None:
    drawn = make_tensor(Tensor((4, 2), "unit"), "zeros", seed_generator("p"), torch.float32)
    assert drawn.flatten().tolist()[:4] == [0.0] * 4
    assert drawn.flatten()[-1] == 1
    assert 0 < drawn[2, 0] < 1
