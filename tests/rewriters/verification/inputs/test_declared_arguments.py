"""What docstrings, annotations, comments, code and users say of arguments."""

from __future__ import annotations

import ast
import inspect
from dataclasses import replace
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.verification.calls.nudges import link
from npufix.rewriters.verification.calls.values import Several, Tensor, Value
from npufix.rewriters.verification.inputs.arguments import guess_argument
from npufix.rewriters.verification.inputs.load import load
from npufix.rewriters.verification.inputs.source import several
from npufix.rewriters.verification.inputs.source.assumed_shapes import (
    AssumptionError,
    parse_assumption,
)
from npufix.rewriters.verification.inputs.source.declarations import (
    Declarations,
    Declared,
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.numbers import list_numbers
from npufix.rewriters.verification.inputs.source.operands import list_differentiated
from npufix.rewriters.verification.inputs.source.parameters import Parameter, read_told
from npufix.rewriters.verification.inputs.source.shapes import read_annotation, read_text
from npufix.rewriters.verification.inputs.source.usage import find_uses

if TYPE_CHECKING:
    from pathlib import Path


def declared(text: str, *assumed: str) -> Declarations:
    return read_declarations(dedent(text), "f", assumed)


@pytest.mark.parametrize(
    ("text", "names", "shapes"),
    [
        ("q, k: (B, H, T, D)", "qk", {"q": ("B", "H", "T", "D"), "k": ("B", "H", "T", "D")}),
        ("q (B, T), k and v: [B, S]", "qkv", {"q": ("B", "T"), "k": ("B", "S"), "v": ("B", "S")}),
        ("x: tensor of shape ``(N, C // 2)``", "x", {"x": ("N", "C // 2")}),
        ("x: which of y to keep, (B, T)", "xy", {"x": ("B", "T")}),
        (":param x: input, shape (batch, *, dim)", "x", {"x": ("batch", "...", "dim")}),
        ("x : Tensor\n    Input of shape (N, C).\n", "x", {"x": ("N", "C")}),
        ("x: Tensor[N, 4] in (x1, y1, x2, y2)", "x", {"x": ("N", "4")}),
        ("x: labels in [0, 80] (required)", "x", {}),
        (
            "x (T, N), values (T + 1, N)",
            ["x", "values"],
            {"x": ("T", "N"), "values": ("T + 1", "N")},
        ),
        ("x of values (a, b)", "x", {}),
        ("values: from (0, 1)", ["values"], {}),
        ("Args:\n  x: input (B, T)\nReturns:\n  y of shape (B,)", "xy", {"x": ("B", "T")}),
        ("Returns x of shape (B, T).", "x", {}),
        ("f(x, y) adds.", "xy", {}),
    ],
)
def test_shapes_in_docstrings(
    text: str, names: str | list[str], shapes: dict[str, tuple[str, ...]]
) -> None:
    found = read_text(text, list(names))
    assert {n: said.shapes[0] for n, said in found.items() if said.shapes} == shapes


def test_lengths_that_the_code_tells_apart_may_differ() -> None:
    text = """
    def f(q, k):
        \"\"\"q, k: (B, N, D)\"\"\"
        return torch.ones(SIZES).tril() @ k
    """
    q, longer, wider = (Tensor(shape) for shape in ((2, 3, 8), (2, 5, 8), (2, 3, 4)))
    for sizes in ("q.shape[1], k.shape[1]", "q.size(-2), k.size(-2)", "N, k.shape[1] - q.shape[1]"):
        said = declared(text.replace("SIZES", sizes))
        assert said.fits({"q": q, "k": longer}), sizes
        assert not said.fits({"q": q, "k": wider}), sizes
    for sizes in ("q.shape[1], q.shape[1]", "q.shape[0], k.shape[1]"):
        assert not declared(text.replace("SIZES", sizes)).fits({"q": q, "k": longer}), sizes


def test_kinds_of_numbers_in_docstrings() -> None:
    said = read_text("m: (B, T) bool; i: (N,) of int64; z: [B], 0 or 1", ["m", "i", "z"])
    assert {n: set(one.kinds) for n, one in said.items()} == {
        "m": {"bool"},
        "i": {"int"},
        "z": {"zero-one"},
    }
    later = read_text("x, y (B, T); y 0 or 1. x is what all integers are added to.", ["x", "y"])
    assert (later["y"].kinds, later["y"].below) == ({"zero-one"}, "2")
    assert not later["x"].kinds
    longer = read_text("x, y (B, T); y are 0 or 1 as floats. x is any.", ["x", "y"])
    assert longer["y"].kinds == {"zero-one"}
    returned = read_text("w (O, I) float, I even. Returns integers, scales (O,).", ["w"])
    assert returned["w"].kinds == {"float"}
    plain = read_text("x: (N, D) float, zero: (D,) int. Returns (N,) int8.", ["x", "zero"])
    assert (plain["x"].kinds, plain["zero"].kinds) == ({"float"}, {"int"})
    intervals = read_text("p (N,) in [0, 1]; w (N,) between 0 and 1", ["p", "w"])
    assert not any(said.kinds for said in intervals.values())


def test_what_is_said_of_all_holds_for_tensors() -> None:
    found = declared(
        '''
        def f(x, old: torch.Tensor, mask, clip: float, n=3):
            """All (B, T); mask of 0 and 1."""
        '''
    ).arguments
    shaped = {name for name, one in found.items() if one.shapes == (("B", "T"),)}
    assert shaped == {"x", "old", "mask"}
    assert found["mask"].kinds == {"zero-one"}


def test_a_long_tensor_of_zeros_and_ones_holds_no_flags() -> None:
    text = """
        def f(mask: torch.TYPE):
            "mask: (B, T) of 0 and 1."
        """
    flags, numbers = Tensor((2, 3), "bool"), Tensor((2, 3), "int", 2)
    for kind, flagged in (("LongTensor", False), ("Tensor", True)):
        said = declared(text.replace("TYPE", kind)).of("mask")
        assert said.takes(numbers)
        assert said.takes(flags) is flagged


def test_annotations_of_jaxtyping() -> None:
    said = read_annotation("Float[Tensor, 'b h *n d']")
    assert said.shapes == (("b", "h", "...", "d"),)
    assert said.kinds == {"float"}
    assert read_annotation("Optional[Int[torch.Tensor, ' b']]").kinds == {"int"}
    assert not read_annotation("dict[str, 'Tensor']").shapes


def test_equal_names_are_equal_sizes() -> None:
    found = declared('def f(x, y):\n    """x (N, C), y (N, 2 * C)"""\n')
    assert found.list_shapes("x", 8) == [(3, 8)]
    assert found.list_shapes("y", 8) == [(3, 16)]
    assert replace(found, times=2).list_shapes("y", 8) == [(6, 32)]
    assert found.fits({"x": Tensor((5, 2)), "y": Tensor((5, 4))})
    assert not found.fits({"x": Tensor((5, 2)), "y": Tensor((4, 4))})
    assert not found.fits({"x": Tensor((5, 2)), "y": Tensor((5, 2))})
    assert not found.fits({"x": Tensor((5,)), "y": Tensor((5, 4))})
    around = declared('def f(x):\n    """x: (T, 2T - 1)"""\n')
    assert around.fits({"x": Tensor((3, 5))})
    assert not around.fits({"x": Tensor((3, 6))})


@pytest.mark.parametrize(
    ("rows", "columns", "fits"),
    [(4, 6, True), (2, 6, False), (3, 6, False), (4, 5, False)],
)
def test_a_product_holds_whichever_argument_comes_first(
    rows: int, columns: int, *, fits: bool
) -> None:
    text = 'def f(x, y, n: int):\n    """x (B * n, T), y (B, n * V)"""\n'
    given = {"x": Tensor((rows, 3)), "y": Tensor((2, columns)), "n": Value(2)}
    assert declared(text).fits(given) is fits


def test_numbers_are_fixed_and_lists_may_be_ragged() -> None:
    found = declared('def f(e, xs):\n    """e: [2, E], xs: list of [L, C]"""\n')
    ragged = Several((Tensor((3, 8)), Tensor((4, 8))), "list")
    assert found.fits({"e": Tensor((2, 7)), "xs": ragged})
    assert not found.fits({"e": Tensor((3, 7)), "xs": ragged})


def test_what_the_code_does_says_how_many_dimensions() -> None:
    found = declared(
        """
        def f(a, b, c, d, e, batch):
            n, t, w = a.shape
            scores = torch.einsum("bhqd,bhkd->bhqk", b, b)
            assert e.shape[2] == 4
            if d.dim() == 3:
                n, t, w = d.shape
            return c.permute(0, 2, 1), batch["ids"], batch.get("mask")
        """
    )
    dims = {name: one.use.dims for name, one in found.arguments.items()}
    assert (dims["a"], dims["b"], dims["c"]) == ({3}, {4}, {3})
    assert found.of("e").use.least == 3
    assert found.of("batch").use.keys == ["ids", "mask"]
    assert not found.fits({"a": Tensor((3, 8))})
    assert found.fits({"d": Tensor((3, 8))}), "the code asks how many there are"


def test_an_argument_that_changes_says_nothing_more() -> None:
    found = declared("def f(x):\n    x = x[None]\n    b, t, c = x.shape\n")
    assert found.fits({"x": Tensor((3, 8))})


def test_queries_and_keys_have_as_many_dimensions() -> None:
    found = declared("def f(q, k, scale): ...")
    assert found.fits({"q": Tensor((2, 3, 8)), "k": Tensor((2, 5, 8)), "scale": Value(2.0)})
    assert not found.fits({"q": Tensor((3, 8)), "k": Tensor((2, 5, 8))})
    said = declared("def f(q, k):\n    return torch.einsum('bd,nbd->nb', q, k)\n")
    assert said.fits({"q": Tensor((3, 8)), "k": Tensor((2, 3, 8))})


def test_a_cache_of_a_shape_is_one_tensor() -> None:
    one = declared("def f(cache, i):\n    return cache[i]\n").of("cache")
    parameter = Parameter("cache", "", inspect.Parameter.empty)
    guesses = [guess_argument(parameter, (2, 3, 8), (), one, s)[0] for s in ((), ((5, 4, 8),))]
    assert [type(guess) for guess in guesses] == [Several, Tensor]


def test_what_the_user_says_goes_first() -> None:
    text = '''
    # npufix: assume m: bool[b, t]
    def f(x, m):
        """x (B, T), m (B, T) of 0 or 1"""
    '''
    found = declared(text, "x: float[b, t, 2*h]")
    assert found.fits({"x": Tensor((2, 3, 4)), "m": Tensor((2, 3), "bool")})
    assert not found.fits({"x": Tensor((2, 3, 4)), "m": Tensor((2, 4), "bool")})
    assert not found.fits({"x": Tensor((2, 3, 4)), "m": Tensor((2, 3), "int")})
    assert not found.fits({"x": Tensor((2, 3)), "m": Tensor((2, 3), "bool")})
    assert found.without_texts().assumed == {"x", "m"}


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("q", "is no assumption"),
        ("q: float", "has no shape"),
        ("q: half[b]", "'half'"),
        ("q: float[b t]", "is no shape"),
        ("q: float[..., ...]", "at most one"),
        ("q: float[b(1)]", "is no shape"),
        ("q: float[b,]", "is no shape"),
    ],
)
def test_wrong_spelling_is_one_line(text: str, words: str) -> None:
    with pytest.raises(AssumptionError, match=words) as caught:
        parse_assumption(text)
    assert "\n" not in str(caught.value)


def test_assumptions_as_they_are_written() -> None:
    assert parse_assumption(" q: float[b, h, ..., 2*d]") == (
        "q",
        ("b", "h", "...", "2*d"),
        "float",
    )
    assert parse_assumption("scale: float[]") == ("scale", (), "float")


def test_whole_numbers_of_all_that_a_text_allows() -> None:
    said = declared('def f(x, i, n: int):\n    """x (T, D), i (T,) long below n"""\n')
    specs = {"x": Tensor((3, 8)), "i": Tensor((3,), "int", 4), "n": Value(9)}
    assert said.widen(specs) == {**specs, "i": Tensor((3,), "int", 9)}
    of_sizes = declared('def f(x, i):\n    """x (E, D), i (T,) long below E"""\n')
    assert of_sizes.widen({"x": Tensor((7, 8)), "i": specs["i"]})["i"] == Tensor((3,), "int", 7)
    assert declared("def f(x, i):\n    pass\n").widen(specs) == specs
    lengths = declared('def f(x, i, n: int):\n    """x (T, D), i (T,) long, at most n"""\n')
    assert lengths.widen(specs)["i"] == Tensor((3,), "int", 10)


def test_sizes_that_divide_others() -> None:
    said = declared('def f(x, groups=2):\n    """x (N, C), C a multiple of groups"""\n')
    groups = {"groups": Value(2, given=False)}
    assert said.fits({"x": Tensor((3, 4)), **groups})
    assert not said.fits({"x": Tensor((3, 1)), **groups})


@pytest.mark.parametrize(
    ("text", "kinds"),
    [
        ("x, y (B, T)", {"float"}),
        ("x, y (B, T) long", {"int"}),
        ("x (B, C), y (B,)", set()),  # labels, perhaps
    ],
)
def test_another_y_beside_x_is_no_label(text: str, kinds: set[str]) -> None:
    assert declared(f'def f(x, y):\n    """{text}"""\n').of("y").kinds == kinds


def test_what_a_dictionary_holds_has_shapes() -> None:
    found = declared(
        'def f(batch, y):\n    """batch: with `x` (b, t, d) and `mask` (b, t); y: (t, b)"""\n'
        '    return batch["x"] * batch["mask"][..., None]\n'
    )
    held = found.holding("batch", 8).held
    assert {key: [*map(len, shapes)] for key, (_, shapes) in held.items()} == {
        "x": [3],
        "mask": [2],
    }

    def fits(*mask: int) -> bool:
        items = Tensor((2, 3, 8)), Tensor(mask, "bool")
        return found.fits({"batch": Several(items, "dict", ("x", "mask"))})

    assert fits(2, 3)
    assert not fits(3)
    assert not fits(2, 2)


def test_numbers_of_the_code_and_of_its_types() -> None:
    old = "def f(x, n=512):\n    return x.split(2**7), x.arange(3)\n"
    new = old.replace("x.split(2**7)", "x.to(torch.uint8)")
    assert list_numbers((old, new), "f") == [128, 256, 512]
    counted = "def f(x, at):\n    return x.new_zeros(3).index_add_(0, at, torch.ones_like(x))\n"
    assert list_numbers(("def f(x, at):\n    return x\n", counted), "f") == [4096]


@pytest.mark.parametrize(
    ("line", "kinds", "measured"),
    [
        ("F.smooth_l1_loss(pred, target)", {"float"}, "float"),
        ("F.mse_loss(input=pred, target=target)", {"float"}, "float"),
        ("F.binary_cross_entropy_with_logits(pred, target)", {"float"}, "share"),
        ("(pred - target).abs().mean()", {"float"}, "float"),
        ("F.cross_entropy(pred, target)", set(), ""),
        ("torch.nn.functional.one_hot(target, pred)", {"int"}, ""),
        ("(pred * 4 - target).bincount()", set(), ""),  # classes of classes
    ],
)
def test_what_a_loss_measures_is_of_floats(line: str, kinds: set[str], measured: str) -> None:
    one = declared(f"def f(pred, target):\n    return {line}\n").of("target")
    assert (one.kinds, one.use.measured) == (kinds, measured)
    guesses = guess_argument(Parameter("target", "", inspect.Parameter.empty), (2, 3), (), one)
    first = guesses[0]
    assert isinstance(first, Tensor)
    assert first.kind == {"share": "binary", "float": "float"}.get(measured, "int")


def test_letters_of_an_einsum_are_sizes() -> None:
    text = "def f(m, k, w):\n    x = torch.einsum('nbhm,bhm->nbh', m, k)\n    return x, {}\n"
    found = declared(text.format("w"))
    assert found.of("m").shapes == (("n", "b", "h", "m"),)
    assert found.of("k").shapes == (("b", "h", "m"),)
    # beside what is no argument nothing is said, nor a second time
    later = declared(text.format("torch.einsum('ij,jk', x, w), torch.einsum('ij,jk', m, w)"))
    assert not later.of("w").shapes


def test_samples_are_told_by_an_annotation() -> None:
    found = declared("def f(rows):\n    return rows[0]['ids'], [len(row['ids']) for row in rows]\n")
    samples = Parameter("rows", "list[dict[str, Tensor]]", inspect.Parameter.empty)
    first, *_ = guess_argument(samples, (2, 3), (), found.of("rows"))
    assert str(first) == "3 samples with ids (sequences)"


def test_what_code_raises_for_is_not_passed() -> None:
    found = declared("""
    def f(x, y, z):
        n = x.shape[0]
        if y.min() < 0 or torch.max(y).item() > 1:
            raise ValueError
        if y.shape != torch.Size([n]):
            raise TypeError
        z = z.flatten()
        assert z.shape == (n, 3) and z.max() < n
    """)
    assert found.of("y").shapes == (("n",),)
    assert found.of("y").below == "2"
    assert found.of("x").shapes == (("n", "..."),)
    assert not found.of("z").shapes  # is no longer what is passed
    # a size has a name of its own, and is another one nowhere
    named = """
    def f(x):
        \"\"\"x: (batch, sources, length)\"\"\"
        sources = x.shape[1]
        if sources != 2:
            raise ValueError
    """
    assert {shape[1] for shape in declared(named).list_shapes("x", 8)} == {2}
    assert not found.of("z").below


def test_what_is_used_as_a_number_is_one() -> None:
    def counts(line: str) -> bool:
        return declared(f"def f(x, n):\n    return {line}\n").of("n").use.counts

    numbers = ("torch.arange(n - 2)", "x.view(3, n)", "F.one_hot(x, n)", "math.log2(n)")
    others = ("torch.topk(n, 2)", "x.view(n)", "n.view(3, 2)", "torch.zeros(n)")
    assert list(map(counts, numbers)) == [True] * len(numbers)
    assert list(map(counts, others)) == [False] * len(others)


def test_what_is_added_is_a_bias_unless_it_hides() -> None:
    said = read_text("m: (B, T), additive; n: (B, T), additive, 0 or -inf", ["m", "n"])
    assert {n: set(one.kinds) for n, one in said.items()} == {
        "m": {"additive", "float"},
        "n": {"additive"},
    }


def test_a_loop_that_reads_lengths_gets_as_many_whole_numbers() -> None:
    (function,) = ast.parse(
        """
def f(count, lengths, ends, mask):
    for i in range(count):
        mask[i, : lengths[i]] = ends[i].item()
"""
    ).body
    assert isinstance(function, ast.FunctionDef)
    likeliest = [
        str(guess_argument(Parameter(name, "", inspect.Parameter.empty), (2, 3, 8), (), given)[0])
        for name, use in find_uses(function).items()
        for given in [Declared(use=use)]
    ]
    assert likeliest[:3] == ["2", "int[2]", "int[2]"]


def test_missing_bases_are_generic_and_hide_no_question(tmp_path: Path) -> None:
    text = """
from missing import *
from missing import Base, Config


class Builder(Base[int]):
    config: Config | None = None

    def build(self, x):
        return npufix_operands_(x=x)
"""
    loaded = load(text, str(tmp_path / "m.py"), str(tmp_path), "Builder", "probe")
    assert isinstance(loaded.namespace["Builder"], type)
    assert "npufix_operands_" not in loaded.namespace


def test_a_number_that_is_a_size_of_a_tensor_beside_it() -> None:
    text = '''
    def f(tokens, h, w):
        """tokens (B, h * w, D)."""
        return tokens.view(tokens.shape[0], h, w, -1)
    '''
    said = declared(text)
    ((_, area, _),) = said.list_shapes("tokens", 8)
    high, wide = said.find_size("h", 8), said.find_size("w", 8)
    assert (high or 0) * (wide or 0) == area
    assert said.find_size("tokens", 8) is None


@pytest.mark.parametrize(
    "text",
    [
        """
        def f(x, h: int, w: int):
            b, n, c = x.shape
            assert n == h * w, "not an image"
            return x.view(b, h, w, c)
        """,
        """
        def f(x, h: int, w: int):
            '''x (b, n, c).'''
            b, length, c = x.size()
            if length != h * w:
                raise ValueError(length)
            return x.view(b, h, w, c)
        """,
        """
        def f(x, h: int, w: int):
            '''x (b, L, c) with L == h * w.'''
            return x.view(x.shape[0], h, w, -1)
        """,
    ],
)
def test_an_axis_that_must_be_a_product_is_one(text: str) -> None:
    assert declared(text).of("x").shapes == (("b", "h * w", "c"),)


def test_a_product_that_is_only_asked_for_changes_no_shape() -> None:
    text = """
    def f(x, h: int, w: int):
        b, n, c = x.shape
        if n != h * w:
            return x
        return x.view(b, h, w, c)
    """
    assert declared(text).of("x").shapes == ()


def test_what_comes_out_says_nothing_of_what_goes_in() -> None:
    text = """
    def f(x):
        '''x (N, D) -> int8 values and a scale (N, 1) for each row.'''
    """
    assert declared(text).of("x").kinds == frozenset()


def test_sizes_that_are_cut_into_parts_are_multiples_of_them() -> None:
    text = """
    def f(x, h: int, w: int, s: int):
        assert w % s == 0
        return x.view(-1, h // s, s, w)
    """
    assert [*declared(text).multiples] == [("w", "s"), ("h", "s")]


@pytest.mark.parametrize(
    ("code", "bools"),
    [
        ("x.masked_fill(~pad[:, None, None, :], 0)", True),
        ('x.masked_fill(~rearrange(pad, "b j -> b 1 1 j"), 0)', True),
        ("torch.where(pad.unsqueeze(-1), x, 0)", True),
        ("torch.masked_select(x, pad)", True),
        ("x.masked_fill(pad == 0, 0)", False),  # numbers
        ('x.masked_fill(pad["mask"], 0)', False),  # holds masks
        ("x.masked_fill(pad[0], 0)", False),
        ("x.masked_fill(pad.bool(), 0)", False),
        ("x.masked_fill(x > 0, pad)", False),
        ("torch.zeros(3).masked_scatter(x > 0, pad)", False),
    ],
)
def test_what_torch_takes_for_a_mask_is_bool(
    code: str,
    bools: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    told = declared(f"def f(x, pad=None):\n    return {code}\n").of("pad")
    assert (told.kinds == {"bool"}) is bools


def test_what_the_code_casts_itself_may_be_anything() -> None:
    text = "def f(x, pad):\n    pad = pad.bool()\n    return x.masked_fill(pad, 0)\n"
    assert declared(text).of("pad").kinds == frozenset()


@pytest.mark.parametrize(
    ("line", "pairs"),
    [
        ("torch.autograd.grad(u.sum(), x, create_graph=True)", (("u", "x"),)),
        ("grad(outputs=[u[:, 0].sum()], inputs=[x], retain_graph=True)", (("u", "x"),)),
        ("grad((x * 2).sum(), x)", ()),
        ("grad(u.sum(), x), x.requires_grad_()", ()),
        ("grad(net(u).sum(), x)", ()),
    ],
)
def test_what_gradients_are_asked_of_is_computed(line: str, pairs: tuple[object, ...]) -> None:
    function = ast.parse(f"def f(u, x):\n    return {line}\n").body[0]
    assert list_differentiated(function, ["u", "x"]) == pairs


def test_each_row_is_computed_from_its_own() -> None:
    x, u = torch.randn(3, 4), torch.zeros(3, 2)
    made = link({"x": x, "u": u, "n": 3}, [("u", "x"), ("n", "x")])
    value, of = made["u"], made["x"]
    assert isinstance(value, torch.Tensor)
    assert isinstance(of, torch.Tensor)
    (first,) = torch.autograd.grad(value[1].sum(), of, create_graph=True)
    assert first.count_nonzero(dim=1).tolist() == [0, 4, 0]
    assert torch.autograd.grad(first.sum(), of)[0].count_nonzero()


def test_what_is_read_of_keywords_is_an_argument() -> None:
    code = """
    def f(x, scale=1, **more):
        if "bias" in more:
            x = x + more["bias"]
        return x * more.get("scale", 2) * more.pop("rate", 0.5) + more["shift"] + more.get("way")
    """
    function = ast.parse(dedent(code)).body[0]
    assert isinstance(function, ast.FunctionDef)
    found = {p.name: p.default for p in read_told(function).options}
    none = inspect.Parameter.empty
    assert found == {"bias": None, "rate": 0.5, "shift": none, "way": None}
    assert not read_told(ast.parse("def f(x, more):\n    return more['a']").body[0]).options  # type: ignore[arg-type]


def test_other_numbers_than_a_default_of_several() -> None:
    defaults = (10.0, 5.0, 5.0), (1, 2, 3), [1.0, 2.0], (), ("a",), (1, 2.0)
    found = [[str(s) for s in several.vary_numbers(default)] for default in defaults]
    assert found == [["(10.0, 5.625, 6.25)"], ["(1, 3, 5)"], ["[1.0, 2.25]"], [], [], []]


def test_no_tensor_is_passed_for_what_is_called_a_number() -> None:
    text = 'def f(x, scale=None):\n    """x: (B, T); {}"""\n    return x * (scale or 2)\n'
    given = {}
    for said in ("scale: float or None", "scale is optional"):
        one = declared(text.format(said)).of("scale")
        guesses = guess_argument(Parameter("scale", "", None), (2, 3, 8), (), one)
        given[said] = any(isinstance(guess, Tensor) for guess in guesses)
    assert list(given.values()) == [False, True]
