"""What is written looks as if the authors of the file had written it."""

from __future__ import annotations

import ast
import textwrap

import pytest
from rewriting_snippets import NORM_OF, RULES, direct, norm_module, program, sites, written

from npufix.rewriters.edit.edit import Edit
from npufix.rewriters.edit.layout import Style, break_lines, strip_brackets, style_of
from npufix.rewriters.edit.splice import splice
from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.modules.names import source_lines

FUSED = "torch_npu.npu_rms_norm"
PAD = " " * 12
WIDE = f"wide = {'x' * 93!r}\n"
ADD_NORM = """
class AddNorm(nn.Module):
    def __init__(self):
        super().__init__()
        self.ln = nn.LayerNorm(64)
        self.drop = nn.Dropout(0.1)

    def forward(self, x, y):
        return self.ln(self.drop(x) + y)
"""
IMPORT = "from mindspeed.ops.dropout_add_layer_norm import npu_dropout_add_layer_norm\n"


def portable(text: str, rule: str, header: str = "import torch\nfrom torch import nn\n") -> str:
    """Return a program after its only change, in the form that keeps the old code."""
    (site,) = written(sites(text, rule, header=header))
    assert site.rewrite is not None
    return site.rewrite.portable.removeprefix(header)


def norm(x: str, weight: str, eps: str) -> str:
    return f"""
        def f(x, w, y, config):
            return {x} * torch.rsqrt({x}.pow(2).mean(-1, keepdim=True) + {eps}) * {weight}
    """


def test_what_stands_behind_a_colon_gets_lines_of_its_own() -> None:
    one_line = (
        "def f(x, w): return x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6) * w  # y"
    )
    changed = portable(f"\n\n{one_line}\n", "NPU101").partition("def f")
    assert (
        "def f" + changed[2]
        == one_line.replace(
            " return",
            """
    if x.device.type == "npu":
        return torch_npu.npu_rms_norm(x, w, epsilon=1e-6)[0]  # y
    return""",
        )[:]
        + "\n"
    )
    two = one_line.replace("return", "y = x; return")
    assert written(sites(two, "NPU101")) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (norm("x", "w", "1e-6"), f"{FUSED}(x, w, epsilon=1e-6)[0]"),
        (norm("x", "w", "0.000_001"), f"{FUSED}(x, w, epsilon=0.000_001)[0]"),
        (norm("x", "w[y['a']]", "1e-6"), f"{FUSED}(x, w[y['a']], epsilon=1e-6)[0]"),
        (norm("x", 'y["a"]', "1e-6"), f'{FUSED}(x, y["a"], epsilon=1e-6)[0]'),
        (norm("x", "(1 + (w))", "1e-6"), f"{FUSED}(x, 1 + (w), epsilon=1e-6)[0]"),
        (norm("x", "w.view( -1 )", "1e-6"), f"{FUSED}(x, w.view( -1 ), epsilon=1e-6)[0]"),
        (
            norm("x", f"w.view(\n{PAD}-1,\n{PAD})", "1e-6"),
            f"{FUSED}(x, w.view(-1), epsilon=1e-6)[0]",
        ),
        (
            "def f(x: torch.Tensor):\n    return torch.zeros((3, )).to(x.device)\n",
            "torch.zeros((3, ), device=x.device)",
        ),
    ],
    ids=["exponent", "underscores", "single quotes", "double quotes", "brackets", "blanks",
         "several lines", "tuple"],
)  # fmt: skip
def test_expressions_of_the_user_stay_as_they_are(text: str, expected: str) -> None:
    header = "import torch\n" + WIDE
    found = written(list(find_sites(header + textwrap.dedent(text), list(RULES.values()))))
    assert expected in [site.rewrite.text for site in found if site.rewrite]


def test_brackets_are_added_where_the_new_place_needs_them() -> None:
    after = direct("""
        def f(x: torch.Tensor, y: torch.Tensor):
            return torch.repeat_interleave(x + y, 2)
    """)
    assert after.count("(x + y)") == 1
    assert "(2)" not in after


@pytest.mark.parametrize("quote", ["'", '"'])
def test_strings_take_the_quotes_of_the_file(quote: str) -> None:
    strings = f"a = {quote}a{quote}, {quote}b{quote}\n"
    text = portable(NORM_OF + strings, "NPU101")
    assert f"if x.device.type == {quote}npu{quote}:" in text


def test_quotes_of_docstrings_and_comments_do_not_count() -> None:
    text = "'''A \"b\" \"c\"'''\n# \"d\" \"e\"\nx = 'f'\n"
    assert style_of(text).quote == "'"
    assert style_of("x = 1\n").quote == '"'


@pytest.mark.parametrize(
    ("text", "width"),
    [
        ("x = 1\n", 79),
        (f"x = {'y' * 90}\n", 94),
        (f"x = {'y' * 200}\n", 120),
        (f"# {'y' * 90}\n", 79),
        (f'"""{"y" * 90}"""\n', 79),
        (f"x = 1  # {'y' * 90}\n", 79),
    ],
)
def test_the_width_is_that_of_the_longest_line_of_code(text: str, width: int) -> None:
    assert style_of(text) == Style(width, '"')


LONG = {
    "items in one line": (
        "return fused(hidden_states, self.weight, eps=self.eps)[0]",
        "return fused(\n    hidden_states, self.weight, eps=self.eps\n)[0]",
    ),
    "one item a line": (
        "out = fused(hidden_states, self.weight, bias=self.bias, eps=self.eps)",
        """out = fused(
    hidden_states,
    self.weight,
    bias=self.bias,
    eps=self.eps,
)""",
    ),
    "nested": (
        "y = self.down(fused(torch.cat((self.g(x), self.u(x)), dim=-1), dim=-1))",
        """y = self.down(
    fused(
        torch.cat((self.g(x), self.u(x)), dim=-1),
        dim=-1,
    )
)""",
    ),
    "methods": (
        "x = values.reshape(-1, 1).expand(-1, lengths).clone().reshape(-1)",
        """x = (
    values.reshape(-1, 1)
    .expand(-1, lengths)
    .clone()
    .reshape(-1)
)""",
    ),
    "operators": (
        "loss = fused(scores, labels, 'none')[0] * weights_of_labels + other",
        "loss = (\n    fused(scores, labels, 'none')[0]\n    * weights_of_labels\n    + other\n)",
    ),
    "a statement": (
        "values.copy_(torch.where(overlaps >= limit, indices, values))",
        "values.copy_(\n    torch.where(overlaps >= limit, indices, values)\n)",
    ),
    "an index": (
        "x = scores_of_all[torch.arange(labels.size(0)), labels.squeeze(1)]",
        "x = scores_of_all[\n    torch.arange(labels.size(0)), labels.squeeze(1)\n]",
    ),
    "a number in brackets stays": (
        "return torch_npu.npu_gemma_rms_norm(x, self.weight)[0]",
        "return torch_npu.npu_gemma_rms_norm(\n    x, self.weight\n)[0]",
    ),
    "nothing to break": ("x = " + "y" * 80, "x = " + "y" * 80),
    "short": ("x = f(1)", "x = f(1)"),
}


@pytest.mark.parametrize(("line", "lines"), LONG.values(), ids=LONG.keys())
def test_long_lines_are_broken_as_black_does(line: str, lines: str) -> None:
    assert break_lines(line, 53, "    ") == lines
    assert ast.dump(ast.parse(line)) == ast.dump(ast.parse(lines))


@pytest.mark.parametrize("unit", ["  ", "    ", "\t"])
@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_broken_lines_are_indented_as_the_file_is(unit: str, newline: str) -> None:
    text = ADD_NORM.replace("    ", unit)
    header = "import torch\nfrom torch import nn\n"
    source = (header + text).replace("\n", newline)
    (site,) = written(list(find_sites(source, [RULES["NPU106"]])))
    assert site.rewrite is not None
    operands = ["x", "y", "self.ln.weight", "self.ln.bias"]
    operands += ["self.drop.p if self.drop.training else 0.0", "self.ln.eps"]
    call = [f"{unit * 2}return npu_dropout_add_layer_norm("]
    call += [f"{unit * 3}{operand}," for operand in operands] + [f"{unit * 2})", ""]
    old = f"{unit * 2}return self.ln(self.drop(x) + y){newline}"
    new = source.replace(old, newline.join(call))
    place = f"from torch import nn{newline}"
    wanted = IMPORT.replace("\n", newline) + place
    assert site.rewrite.direct == new.replace(place, wanted)
    guard = [f'{unit * 2}if x.device.type == "npu":', *(unit + line for line in call[:-1]), old]
    block = f"{newline}try:{newline}{unit}{IMPORT.strip()}{newline}"
    block += f"except ImportError:  # not on an NPU machine{newline}"
    block += f"{unit}npu_dropout_add_layer_norm = None{newline}"
    assert site.rewrite.portable == source.replace(old, newline.join(guard)).replace(
        place, place + block
    )


def test_the_operators_of_mindspeed_are_imported_by_name() -> None:
    source = program(ADD_NORM)
    (site,) = written(list(find_sites(source, [RULES["NPU106"]])))
    assert site.rewrite is not None
    for text in (site.rewrite.direct, site.rewrite.portable):
        assert text.count(IMPORT) == 1
        assert list(find_sites(text, [RULES["NPU106"]])) == []


@pytest.mark.parametrize(
    "taken",
    [
        "def npu_dropout_add_layer_norm(x): return x\n",
        "npu_dropout_add_layer_norm = None\n",
        "def g(npu_dropout_add_layer_norm): ...\n",
        "from .ops import npu_dropout_add_layer_norm\n",
        "from .ops import fused as npu_dropout_add_layer_norm\n",
    ],
)
def test_a_name_that_is_taken_is_left_alone(taken: str) -> None:
    (site,) = written(list(find_sites(program(taken + ADD_NORM), [RULES["NPU106"]])))
    assert site.rewrite is not None
    assert "mindspeed.ops.dropout_add_layer_norm.npu_dropout_add_layer_norm(" in site.rewrite.direct
    assert "import mindspeed.ops.dropout_add_layer_norm\n" in site.rewrite.direct
    assert "    mindspeed = None\n" in site.rewrite.portable


@pytest.mark.parametrize("alias", ["", " as fused"])
def test_an_import_that_is_there_is_used(alias: str) -> None:
    source = program(IMPORT.rstrip() + alias + "\n" + ADD_NORM)
    (site,) = written(list(find_sites(source, [RULES["NPU106"]])))
    assert site.rewrite is not None
    name = "fused" if alias else "npu_dropout_add_layer_norm"
    assert f"return {name}(" in site.rewrite.direct
    assert site.rewrite.direct.count("mindspeed") == site.rewrite.portable.count("mindspeed") == 1


@pytest.mark.parametrize(
    ("line", "target", "new", "expected"),
    [
        ("if x.any(): pass", "x.any()", "not y.all()", "if not y.all(): pass"),
        ("return x.any()", "x.any()", "a + b", "return a + b"),
        ("y = 2 * x.sum()", "x.sum()", "a + b", "y = 2 * (a + b)"),
        ("y = x.sum().item()", "x.sum()", "-a", "y = (-a).item()"),
        ("y = f(x.sum(), 1)", "x.sum()", "a if b else c", "y = f(a if b else c, 1)"),
        ("y = (x * w) + b", "x * w", "f(x, w)", "y = f(x, w) + b"),
        ("y = (x * w).sum()", "x * w", "-f(x)", "y = (-f(x)).sum()"),
        ("y = (  # why\n        x * w)", "x * w", "f(x)", "y = (  # why\n        f(x))"),
    ],
)
def test_brackets_stand_only_where_they_are_needed(
    line: str, target: str, new: str, expected: str
) -> None:
    source = f"def f(x, w, b):\n    {line}\n"
    function = ast.parse(source).body[0]
    assert isinstance(function, ast.FunctionDef)
    replaced = next(
        n for n in ast.walk(function) if isinstance(n, ast.expr) and ast.unparse(n) == target
    )
    edit = Edit(replaced, function.body[0], new)
    assert splice(source, source_lines(source), function, edit) == source.replace(line, expected)


def test_statements_that_another_function_has_as_well_are_spliced_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def spliced(head: str, new: str) -> str:
        source = f"{head}    return x * silu(x)  # gated once\n"
        function = ast.parse(source).body[0]
        assert isinstance(function, ast.FunctionDef)
        last = function.body[-1]
        assert isinstance(last, ast.Return)
        assert last.value is not None
        return splice(source, source_lines(source), function, Edit(last.value, last, new))

    one, other = "def f(x):\n", "def g(x, y):\n    y = 2\n"
    assert spliced(one, "once(x)") == f"{one}    return once(x)  # gated once\n"
    monkeypatch.setattr("npufix.rewriters.edit.splice._parse", lambda _: pytest.fail("anew"))
    assert spliced(other, "once(x)") == f"{other}    return once(x)  # gated once\n"
    with pytest.raises(pytest.fail.Exception, match="anew"):
        spliced(other, "twice(x)")


def test_a_guard_stands_below_the_blank_line_and_the_comment() -> None:
    text = portable(
        """
def f(x, w, b, t):
    t = t + 1

    # the loss
    loss = nn.functional.cross_entropy(x, t, reduction="none") * w \\
        + b

    return loss
""",
        "NPU114",
    )
    assert text.endswith(
        """    t = t + 1

    # the loss
    if x.device.type == "npu":
        loss = torch_npu.npu_cross_entropy_loss(x, t, reduction="none")[0] * w \\
            + b
    else:
        loss = nn.functional.cross_entropy(x, t, reduction="none") * w \\
            + b

    return loss
"""
    )


def test_the_blank_line_above_removed_statements_stays() -> None:
    after = direct(
        norm_module("""
        def forward(self, x):
            print(x)

            variance = x.pow(2).mean(-1, keepdim=True)
            x = x * torch.rsqrt(variance + self.eps)

            return self.weight * x
    """)
    )
    assert "print(x)\n\n        return torch_npu" in after


@pytest.mark.parametrize(
    ("comment", "expected"),
    [
        ("  # (B, T, C), " + "as it goes on " * 5, "    {1}\n    return {0}\n"),
        (" " * 70 + "# heads", "    return {0}  # heads\n"),
        (" " * 70 + "# noqa: E501", "    return {0}  # noqa: E501\n"),
    ],
    ids=["too long", "padded for the old text", "of a tool"],
)
def test_comments_behind_new_code_have_room(comment: str, expected: str) -> None:
    comment = comment.rstrip()
    before = (
        f"def f(x: torch.Tensor):\n    return torch.zeros(x.shape[0], 4).to(x.device){comment}\n"
    )
    new = "torch.zeros(x.shape[0], 4, device=x.device)"
    after = direct(before, "NPU212")
    assert after.endswith(expected.format(new, comment.strip()))


def both_of(text: str) -> str:
    """Return a program with all its places changed, from the last to the first."""
    while found := written(list(find_sites(text, [RULES["NPU102"]]))):
        assert found[-1].rewrite is not None
        text = found[-1].rewrite.portable
    return text


ROTARY = """
def rotate_half(x):
    x1, x2 = x.chunk(2, dim=-1)
    return torch.cat((-x2, x1), dim=-1)


def apply(q, k, cos, sin, cos_k, sin_k):
    q_embed = (q * cos) + (rotate_half(q) * sin)
    k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""


def test_arguments_stay_one_a_line_if_they_were() -> None:
    text = """
def train(model, args):
    optimizer = torch.optim.AdamW(
        model.parameters(),
        lr=args.lr,
    )
    optimizer.step()
"""
    (site,) = written(sites(text, "NPU112", header=f"import torch\n{WIDE}"))
    assert site.rewrite is not None
    assert text.replace("args.lr,", "args.lr,\n        fused=True,") in site.rewrite.direct


def test_neighbours_with_the_same_tensors_share_a_guard() -> None:
    text = both_of(program(ROTARY))
    assert text.endswith(
        """
    if q.device.type == "npu":
        q_embed = torch_npu.npu_rotary_mul(q, cos, sin)
        k_embed = torch_npu.npu_rotary_mul(k, cos, sin)
    else:
        q_embed = (q * cos) + (rotate_half(q) * sin)
        k_embed = (k * cos) + (rotate_half(k) * sin)
    return q_embed, k_embed
"""
    )


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(k * cos) + (rotate_half(k) * sin)", "(k * cos_k) + (rotate_half(k) * sin_k)"),
        ("    k_embed = (k", "\n    k_embed = (k"),
        ("    k_embed = (k", "    print(q)\n    k_embed = (k"),
        ("q_embed = (q", "k = (q"),
    ],
    ids=["other tensors", "apart", "something between", "bound anew"],
)  # fmt: skip
def test_other_neighbours_do_not(old: str, new: str) -> None:
    text = both_of(program(ROTARY.replace(old, new).replace("return q_embed", "return q")))
    assert text.count('.device.type == "npu":') in {1, 2}
    for choice in (node for node in ast.walk(ast.parse(text)) if isinstance(node, ast.If)):
        assert len(choice.body) == len(choice.orelse) == 1


@pytest.mark.parametrize(("long", "width"), [(1, 90), (9, 110)])
def test_a_few_longer_lines_do_not_make_a_file_wide(long: int, width: int) -> None:
    text = "\n".join(["x = 1" + "0" * 85] * 99 + ["x = 1" + "0" * 105] * long)
    assert style_of(text).width == width


@pytest.mark.parametrize(
    ("line", "bare"),
    [
        ("y = ((a + b).sum(-1))", "y = (a + b).sum(-1)"),
        ("return (f(x))", "return f(x)"),
        ("y = (a, f(x))", "y = (a, f(x))"),
        ("y = (a)(f(x))", "y = (a)(f(x))"),
        ("y = not (f(x))", "y = not (f(x))"),
    ],
)
def test_brackets_that_held_lines_together_go(line: str, bare: str) -> None:
    assert strip_brackets(line) == bare
