"""Everything that is not the edit stays byte for byte; the new code parses where it stands."""

from __future__ import annotations

import ast
import difflib
import textwrap

import pytest
from rewriting_snippets import HEADER, NORM_OF, RULES, direct, norm_module, program, sites, written

from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.verification import Job

FILL = "def f(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n"
DEEPER = textwrap.indent(FILL, "    ")
FILLED = "x.masked_fill_(x < 0, 0)"
TWICE = "x.repeat_interleave(2)"
REPEATED = "x.reshape(-1, 1).expand(-1, 2).clone().reshape(-1)"


def only(source: str, rule: str) -> str:
    """Return the whole module after its only change."""
    (site,) = written(list(find_sites(source, [RULES[rule]])))
    assert site.rewrite is not None
    return site.rewrite.direct


PRESERVED = {
    "plain": FILL,
    "tabs": FILL.replace("    ", "\t"),
    "two spaces": FILL.replace("    ", "  "),
    "no newline at the end": FILL.rstrip("\n"),
    "trailing blanks": FILL.replace("return x", "return x   ") + "  \n\n\t\n",
    "comments": "# one\ndef f(x: torch.Tensor):  # two\n    # three\n    x[x < 0] = 0  # four\n"
    "    # five\n    return x  # six\n# seven\n",
    "type comments": "def f(x: torch.Tensor):\n    # type: (...) -> object\n"
    "    y = []  # type: list[int]\n    x[x < 0] = 0  # type: ignore[index]\n    return x, y\n",
    "decorators": "@staticmethod\n@torch.no_grad()  # why\n" + FILL,
    "odd layout": "def f( x:torch.Tensor,):\n    y = ( x,\n          1 )\n    x[x < 0] = 0\n"
    "    return   x ,y\n",
    "non-ASCII before": 'def f(x: torch.Tensor, é=("añ→", "🎉")):\n    x[x < 0] = 0  # 🎉 ñ\n',
    "strings like code": 'S = """\n    x[x < 0]  =  0\n"""\n' + FILL + "T = 'x[x < 0] =0'\n",
    "form feed": "\f\n" + FILL + "\f\ndef g(): ...\n",
    "odd line separators in strings": 'S = "a\x0cb\x1cc\u2028d\x85e\x0b"\n' + FILL,
    "nested classes": "class A:\n    class B:\n        @classmethod\n"
    "        def f(cls, x: torch.Tensor):\n            x[x < 0] = 0\n            return x\n\n"
    "        y = 1\n    z = 2\n",
    "in an if": f"if True:\n{DEEPER}else:\n    f = None\n",
    "in a try": f"try:\n{DEEPER}except ValueError:\n    pass\n",
    "async": "async " + FILL,
    "line continuation": "def f(x: torch.Tensor):\n    y = 1 + \\\n        2\n    x[x < 0] = 0\n",
    "docstring": 'def f(x: torch.Tensor):\n    """A\n\n    x[1] = 0\n    """\n    x[x < 0] = 0\n',
    "line numbers of a lambda": "g = lambda: (\n    1)\n" + FILL,
}  # fmt: skip


@pytest.mark.parametrize("text", PRESERVED.values(), ids=PRESERVED.keys())
@pytest.mark.parametrize("newline", ["\n", "\r\n"], ids=["LF", "CRLF"])
@pytest.mark.parametrize("first", ["", "#!/usr/bin/env python\n# -*- coding: utf-8 -*-\n"],
                         ids=["", "coding"])  # fmt: skip
def test_everything_else_stays_byte_for_byte(text: str, newline: str, first: str) -> None:
    source = (first + HEADER + text).replace("\n", newline)
    before, _, after = source.rpartition("x[x < 0] = 0")
    assert only(source, "NPU201") == before + FILLED + after


def test_lines_are_those_of_python() -> None:
    assert source_lines("a\fb\u2028\nc\r\nd\re") == ("a\fb\u2028\n", "c\r\n", "d\r", "e")
    assert "".join(source_lines(HEADER)) == HEADER


EXPRESSIONS = [
    f"y = {TWICE}",
    f"a = 1; y = {TWICE}; b = 2",
    f"y = (\n        {TWICE}  # why\n    )",
    f"y = ('ñ→🎉', {TWICE}, 'é')",
    f"y = -{TWICE} ** 2 + {{1: x}}[1]",
    f"y = [{TWICE}][0].sum() if x.any() else 0",
    f"print(f'{{x}}', {TWICE}, sep='')",
    f"if {TWICE}.sum() > 0: pass",
    f"while {TWICE}.sum() > 0: break",
    f"with torch.no_grad(): y = {TWICE}",
    f"for i in {TWICE}: pass",
    f"assert {TWICE} is not None, 'x'",
    f"y: torch.Tensor = {TWICE}",
    f"y = z = {TWICE}",
    f"x.y = {TWICE}",
    f"x[0] += {TWICE}.sum()",
    f"return {TWICE}",
    f"return ({TWICE})",
    f"raise ValueError({TWICE})",
    f"y = 1 + \\\n        {TWICE}",
    f"y = x.view(-1)[:, None] @ {TWICE}[None]",
]


@pytest.mark.parametrize("line", EXPRESSIONS)
def test_an_expression_is_replaced_in_its_place(line: str) -> None:
    source = program(f"def f(x: torch.Tensor):\n    {line}\n    return x\n")
    after = only(source, "NPU203")
    assert ast.dump(ast.parse(after)) == ast.dump(ast.parse(source.replace(TWICE, REPEATED)))
    changed = [
        tag
        for tag, *_ in difflib.SequenceMatcher(
            None, source.splitlines(), after.splitlines(), autojunk=False
        ).get_opcodes()
        if tag != "equal"
    ]
    assert changed == ["replace"]


@pytest.mark.parametrize(
    "text",
    [
        "def f(x: torch.Tensor): x[x < 0] = 0\n",
        "def f(x: torch.Tensor):\n    a = 1; x[x < 0] = 0\n",
        "def f(x: torch.Tensor):\n    if x.any(): x[x < 0] = 0\n",
        "def f(x: torch.Tensor, y: torch.Tensor):\n    x[x < 0] = y[y < 0] = 0\n",
        "def f(x: torch.Tensor):\n    x[x < 0], y = 0, 1\n",
        f"def f(x: torch.Tensor):\n    a = {TWICE}\n    b = {TWICE}\n    return a, b\n",
        ("def f(x: torch.Tensor, t: torch.Tensor):\n    a = 1; y = x.gather(1, t.view(-1, 1))\n"
        "    return y\n"),
    ],
    ids=["one line", "semicolon", "if on one line", "two targets", "unpacked", "twice",
         "semicolon with a new name"],
)  # fmt: skip
def test_a_layout_that_does_not_fit_is_advice_with_a_reason(text: str) -> None:
    found = sites(text)
    assert written(found) == []
    assert all(site.problem for site in found)


def test_brackets_that_keep_words_apart_stay() -> None:
    after = direct(f"def f(x: torch.Tensor):\n    return({TWICE})\n")
    assert after.splitlines()[1].startswith("    return(x.")


def test_removed_statements_leave_their_comments() -> None:
    after = direct(
        norm_module("""
        def forward(self, x):
            # the variance
            variance = x.pow(2).mean(-1, keepdim=True)

            # scale
            return self.weight * (x * torch.rsqrt(variance + self.eps))  # done
    """)
    )
    body = after[after.index("def forward") :].splitlines()
    assert [line.strip() for line in body] == [
        "def forward(self, x):",
        "# the variance",
        "# scale",
        "# done",  # beside the new text it would stand beyond the width
        "return torch_npu.npu_rms_norm(x, self.weight, epsilon=self.eps)[0]",
    ]


def test_a_new_name_does_not_meet_an_old_one() -> None:
    after = direct(
        """
        def f(logits: torch.Tensor, t: torch.Tensor, index, index_):
            return logits.gather(1, t.view(-1, 1)), index, index_
    """,
        "NPU202",
    )
    assert "index__ = t.view(-1, 1)" in after


@pytest.mark.parametrize("newline", ["\n", "\r\n"])
def test_the_portable_form_keeps_the_old_code_below_a_guard(newline: str) -> None:
    source = program(NORM_OF).replace("\n", newline)
    (site,) = sites("", "NPU101", header=source)
    assert site.rewrite is not None
    guard = f"""        if x.device.type == "npu":
            {site.rewrite.text.splitlines()[-1]}
""".replace("            torch", "            return torch")
    block = "\ntry:\n    import torch_npu\nexcept ImportError:  # not on an NPU machine\n"
    block += "    torch_npu = None\n"
    at = source.index("        variance")
    below = len(HEADER.replace("\n", newline))
    expected = source[:below] + block.replace("\n", newline) + source[below:at]
    assert site.rewrite.portable == expected + guard.replace("\n", newline) + source[at:]


def test_the_portable_form_of_an_assignment_has_both_branches() -> None:
    (site,) = sites(
        """
        def f(x, w, eps, y):
            z = (x - y) * torch.rsqrt((x - y).pow(2).mean(-1, keepdim=True) + eps) * w
            return z
    """,
        "NPU101",
    )
    assert site.rewrite is not None
    tree = ast.parse(site.rewrite.portable)
    (choice,) = [node for node in ast.walk(tree) if isinstance(node, ast.If)]
    assert ast.unparse(choice.test) == "w.device.type == 'npu'"
    assert "torch_npu" in ast.unparse(choice.body[0])
    assert ast.unparse(choice.orelse[0]).startswith("z = (x - y) * torch.rsqrt(")


@pytest.mark.parametrize(
    ("operand", "weight", "asked"),
    [
        ("(x - y)", "(w + 1)", "w"),
        ("(x - y)", "w.view(-1)", "w"),
        ("x.float()", "(w * y)", "x"),
        ("(x - y)", "(w * y)", "hidden"),
    ],
)
def test_a_guard_asks_what_costs_nothing(operand: str, weight: str, asked: str) -> None:
    (site,) = sites(
        f"""
        def f(x, w, eps, y):
            mean = {operand}.pow(2).mean(-1, keepdim=True)
            return {operand} * torch.rsqrt(mean + eps) * {weight}
    """,
        "NPU101",
    )
    assert site.rewrite is not None
    assert f'if {asked}.device.type == "npu":' in site.rewrite.portable


@pytest.mark.parametrize(
    ("before", "name"),
    [
        ("a, b = self.net(x).chunk(2, dim=-1)", "hidden = self.net(x)"),
        ("hidden = 1\n                a, b = self.net(x + hidden).chunk(2, -1)",
         "hidden_ = self.net(x + hidden)"),
        ("a, b = F.linear(x, self.w[0]).chunk(2, dim=-1)", "hidden = F.linear(x, self.w[0])"),
    ],
)  # fmt: skip
def test_an_operand_gets_a_name_before_it_is_asked_for_its_device(before: str, name: str) -> None:
    (site,) = sites(
        f"""
        class M(nn.Module):
            def __init__(self, net, w):
                self.net, self.w = net, w

            def forward(self, x):
                {before}
                return F.silu(a) * b
    """,
        "NPU103",
    )
    assert site.rewrite is not None
    for text in (site.rewrite.portable, site.rewrite.direct):
        operand = name.partition(" = ")[2]
        assert text.count(operand) == text.count(name) == 1, "it is computed once"
    variable = name.partition(" = ")[0]
    assert f'if {variable}.device.type == "npu":' in site.rewrite.portable
    assert f"a, b = {variable}.chunk(2, " in site.rewrite.portable


@pytest.mark.parametrize(
    "code",
    [
        "return self.down(F.silu(self.one(x)) * self.two(x)) if x is not None else x",
        "return [F.silu(self.one(x)) * self.two(x) for x in x]",
    ],
)
def test_an_operand_that_is_computed_on_a_condition_is_not_computed_before(code: str) -> None:
    found = sites(
        f"""
        class M(nn.Module):
            def __init__(self, one, two, down):
                self.one, self.two, self.down = one, two, down

            def forward(self, x):
                {code}
    """,
        "NPU103",
    )
    assert all(s.rewrite is None or "hidden" not in s.rewrite.portable for s in found)


def test_a_product_that_is_needed_anyway_is_not_computed_twice() -> None:
    found = sites(
        """
        def f(x: torch.Tensor, y: torch.Tensor):
            p = x @ y
            return 2.0 * p + p.relu()
    """,
        "NPU115",
    )
    assert [site.rewrite for site in found] in ([], [None])


def test_a_call_whose_result_has_a_name_by_then_does_not_run_again() -> None:
    (site,) = sites(
        """
        class Embed(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.matrices = nn.Embedding(9, 4), nn.Embedding(9, 16)

            def forward(self, head, relation):
                h = self.rows(head).unsqueeze(1)
                m = self.matrices(relation).view(relation.size(0), 4, 4)
                return torch.bmm(h, m).squeeze(1), m
    """,
        "NPU207",
    )
    assert site.rewrite is not None
    text = site.rewrite.direct
    assert text.count("self.matrices(relation)") == 1
    assert "* m)" in text


def test_numbers_keep_the_names_and_keywords_that_the_author_gave_them() -> None:
    (norm,) = sites(
        """
        EPS = 1e-6
        def f(x, w):
            v = x.pow(2).mean(-1, keepdim=True)
            return x * torch.rsqrt(v + EPS) * w
    """,
        "NPU101",
    )
    assert norm.rewrite is not None
    assert "npu_rms_norm(x, w, epsilon=EPS)" in norm.rewrite.portable
    (optimizer,) = sites(
        """
        def f(model):
            return torch.optim.Adam(model.parameters(), lr=1e-3, weight_decay=0.1)
    """,
        "NPU112",
    )
    assert optimizer.rewrite is not None
    call = "(model.parameters(), lr=1e-3, weight_decay=0.1)"
    assert f"NpuFusedAdam{call}" in optimizer.rewrite.direct.replace("\n        ", "").replace(
        "\n    )", ")"
    )
    chosen = "torch_npu.optim.NpuFusedAdam if torch_npu else torch.optim.Adam"
    assert chosen in optimizer.rewrite.portable
    assert f"return adam_class{call}" in optimizer.rewrite.portable


def test_every_rewrite_can_be_a_job_of_the_verifier() -> None:
    (site,) = sites(NORM_OF, "NPU101")
    assert site.rewrite is not None
    lines = site.rewrite.direct.splitlines()
    assert "npu_rms_norm" in lines[site.rewrite.line - 1]
    Job("p", "r", "", site.rewrite.direct, site.function, (site.line,), (site.rewrite.line,))


def test_a_name_that_is_read_for_nothing_stays_bound() -> None:
    (site,) = sites(
        """
        def f(x: torch.Tensor, w: torch.Tensor):
            v = x.pow(2).mean(-1, keepdim=True)
            unused = v + 1
            unused = 2
            return w * (x * torch.rsqrt(v + 1e-5)), unused
    """,
        "NPU101",
    )
    assert site.rewrite is None
    assert "needed elsewhere" in site.problem


def test_a_length_that_the_own_class_hands_in_is_a_number() -> None:
    text = f"""{HEADER}
class Scale(nn.Module):
    def _last(self, length):
        at = torch.floor(self.shares * length)
        return torch.where(at > length, length, at)

    def forward(self, x: torch.Tensor):
        return self._last(x.shape[0])
"""
    assert "return at.clamp(max=length)" in only(text, "NPU208")
    mixed = text.replace("x.shape[0])", "x.shape[0]) + self._last(x)")
    assert "return torch.minimum(length, at)" in only(mixed, "NPU208")


def test_what_reads_one_view_may_become_two_calls() -> None:
    found = sites(
        """
        def f(q: torch.Tensor, k: torch.Tensor, freqs: torch.Tensor):
            a = q.float().reshape(*q.shape[:-1], -1, 1, 2)
            b = k.float().reshape(*k.shape[:-1], -1, 1, 2)
            a = freqs[..., 0] * a[..., 0] + freqs[..., 1] * a[..., 1]
            b = freqs[..., 0] * b[..., 0] + freqs[..., 1] * b[..., 1]
            return a.reshape(*q.shape), b.reshape(*k.shape)
    """,
        "NPU180",
    )
    assert [site.rewrite is not None for site in found] == [True, True]
