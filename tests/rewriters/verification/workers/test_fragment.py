"""The changed statements of a function as a function of their own."""

from __future__ import annotations

import ast
import textwrap
from dataclasses import replace

import pytest

pytest.importorskip("torch")


from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification.workers.fragment import NAME, narrow

BODY = """\
import torch
from missing import Base

INF = 1e8


class Head(Base):
    def targets(self, boxes, given):
        areas, inside = self.sizes(boxes), given.inside
        for area in areas:
            {code}
        return areas
"""
SPREAD = """

def spread(x):
    return x * 2
"""


def job(original: str, patched: str, body: str = BODY) -> Job:
    texts = [body.replace("{code}", code) for code in (original, patched)]
    return Job("m.py", ".", *texts, qualname="Head.targets", lines_original=(), lines_patched=())


def fragments(original: str, patched: str, body: str = BODY) -> list[str] | None:
    found = narrow(job(original, patched, body))
    if found is None:
        return None
    assert found.qualname == NAME
    texts = (found.original, found.patched)
    return [text[text.index(f"def {NAME}") :].rstrip() for text in texts]


def test_it_takes_what_is_read_and_leaves_the_rest() -> None:
    old, new = "area[inside == 0] = self.fill", "area.masked_fill_(inside == 0, self.fill)"
    head = f"def {NAME}(area, inside, fill):\n    "
    assert fragments(old, new) == [
        f"{head}area[inside == 0] = fill",
        f"{head}area.masked_fill_(inside == 0, fill)",
    ]


def test_a_key_that_is_a_word_of_the_language_names_no_argument() -> None:
    old = """area[inside == 0] = self.fill["class"]"""
    found = fragments(old, """area.masked_fill_(inside == 0, self.fill["class"])""")
    assert found is not None
    assert found[0].splitlines()[0] == f"def {NAME}(area, inside, self_fill_class):"


def test_what_is_read_later_is_its_result() -> None:
    body = BODY.replace("return areas", "return areas, total")
    found = fragments("total = area * 2.0", "total = area + area", body)
    assert found is not None
    assert [text.splitlines()[-1].strip() for text in found] == ["return (total,)"] * 2


def test_an_empty_list_stands_where_it_is_filled() -> None:
    text = """
class Head(Base):
    def targets(self, boxes, n):
        found = []
        near = self.near(boxes)
        for one, count in zip(boxes, n):
            found.append(one.expand(count, -1))
        boxes = torch.cat(found)
        return boxes, near
"""
    filled = text[text.index("        for") : text.index("        return")]
    new = text.replace("        found = []\n", "").replace(
        filled, "        boxes = boxes.repeat_interleave(n, dim=0)\n"
    )
    made = narrow(Job("m.py", ".", text, new, "Head.targets", (), ()))
    assert made is not None
    assert all(f"def {NAME}(boxes, n):" in one for one in (made.original, made.patched))


def test_what_the_next_round_reads_is_its_result() -> None:
    body = BODY.replace("for area", "last = boxes\n        for area")
    found = fragments(
        "area += 2 * last; last = 2 * area", "area += last + last; last = area + area", body
    )
    assert found is not None
    assert [text.splitlines()[-1].strip() for text in found] == ["return (area, last)"] * 2


def test_who_counts_is_no_result_where_other_loops_count_anew() -> None:
    body = BODY.replace(
        "return areas", "for j in areas:\n            print(j)\n        return areas"
    )
    old, new = "for j in range(2): area[j] = 0.0", "area[:2] = 0.0"
    found = fragments(old, new, body)
    assert found is not None
    assert "return" not in found[0]


def test_what_a_check_asks_of_stays_as_it_is() -> None:
    found = fragments("assert area.isfinite().all()", "pass")
    assert found is not None
    assert [text.splitlines()[-1].strip() for text in found] == ["return (area,)"] * 2


def test_objects_of_objects_are_their_attributes() -> None:
    found = fragments("area += self.sizes.host[0]", "area.add_(self.sizes.host[0])")
    assert found is not None
    assert found[0].startswith(f"def {NAME}(area, host):")


def test_entries_of_dictionaries_are_arguments_and_comprehensions_count_alone() -> None:
    body = BODY.replace("return areas", "return areas, [t for t in areas]")
    found = fragments(
        'area = sum([given["batch"]["at"] + given.step * t for t in range(3)])',
        'area = sum([given.step * t + given["batch"]["at"] for t in range(3)])',
        body,
    )
    assert found is not None
    assert found[0].splitlines()[0].endswith("(area, at, step):")


def test_what_is_asked_whether_it_is_none_may_be_none() -> None:
    body = BODY.replace("given):", "given, more=None):")
    found = fragments(
        "area = area if more is None else area + more",
        "area = area if more is None else more + area",
        body,
    )
    assert found is not None
    assert "more=None" in found[0]


def test_what_a_probe_asks_in_advance_is_no_call_more() -> None:
    body = BODY.replace("import Base", "import Base, reduce")
    asked = job("n = reduce(area).item()", "n = reduce(area).detach()", body)
    probe = body.replace("{code}", "npufix_operands_(x=reduce(area)); n = reduce(area).item()")
    found = narrow(replace(asked, probes=(probe,)))
    assert found is not None
    assert "npufix_made_0" in found.original
    assert "npufix_made_0" in found.probes[0]


def test_what_a_program_parses_when_it_starts_is_an_argument() -> None:
    body = f"{BODY}\n\nif __name__ == '__main__':\n    args = read_arguments()\n"
    found = fragments("area *= args.fill * INF", "area.mul_(args.fill * INF)", body)
    assert found is not None
    assert found[0].startswith(f"def {NAME}(area, fill):\n    area *= fill * INF")


def test_what_others_are_called_with_is_compared() -> None:
    found = fragments(
        "total = self.loss(area[inside], weight=boxes)",
        "total = self.loss(area.masked_select(inside), weight=boxes)",
        BODY.replace("for area in areas:\n            {code}", "area = areas\n        {code}"),
    )
    assert found is not None
    kept = "npufix_given_.append(({}, {{'weight': boxes}}))"
    for text, first in zip(found, ("area[inside]", "area.masked_select(inside)"), strict=True):
        assert kept.format(first) in text
        assert text.endswith("return (npufix_given_,)")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("self.loss(area * 2)", "self.loss(area + area) + self.loss(area)"),
        ("area[0] = self.loss(area * 2)", "area[0] = self.loss(area + area)"),
        ("[self.loss(a * 2) for a in area]", "[self.loss(a + a) for a in area]"),
    ],
)
def test_calls_that_may_be_made_otherwise_are_none_to_leave_out(old: str, new: str) -> None:
    assert fragments(old, new) is None


def test_its_lines_are_those_of_the_new_text() -> None:
    found = narrow(job("area[inside] = INF", "area.masked_fill_(inside, INF)"))
    assert found is not None
    lines = found.original.splitlines()
    assert [lines[n - 1].strip() for n in found.lines_original] == ["area[inside] = INF"]
    ast.parse(found.patched)


def test_what_is_always_a_comparison_is_a_mask() -> None:
    body = BODY.replace("given.inside", "boxes").replace(
        "for area", "mask = (boxes > 0) & (boxes < 9)\n        for area"
    )
    found = fragments("area[mask] = 0", "area.masked_fill_(mask, 0)", body)
    assert found is not None
    assert found[0].startswith(f"def {NAME}(area, mask: torch.BoolTensor)")


def test_a_guard_in_front_takes_the_statements_of_both() -> None:
    source = textwrap.dedent("""\
        def f(x, w):
            y = x * 2
            return {code}
    """)
    old, new = "y.relu() * w", "g(y, w)"
    guarded = source.replace(
        "return {code}", f"if y.is_npu:\n        return {new}\n    return {old}"
    )
    texts = (source.replace("{code}", code) for code in (old, new))
    asked = Job("m.py", ".", *texts, "f", (), (), portable=guarded)
    found = narrow(asked)
    assert found is not None
    assert "if y.is_npu:" in found.portable[found.portable.index(NAME) :]
    assert f"def {NAME}(w, y)" in found.original


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("area[inside] = self.value()", "area.masked_fill_(inside, self.value())"),
        ("self.area = area * 2", "self.area = area + area"),
        ("register(self, area * 2)", "register(self, area + area)"),
        ("yield area * 2", "yield area + area"),
        ("if area.any(): break", "if bool(area.any()): break"),
        ("area += 1", "area += 1"),
    ],
)
def test_what_is_no_function_of_what_it_reads_has_none(old: str, new: str) -> None:
    assert fragments(old, new) is None


@pytest.mark.parametrize(
    "later", ["b += 1", "b[0] = 1", "b.T.mul_(2)", "torch.add(a, 1, out=b)", "b.clamp_(0)"]
)
def test_what_is_written_to_later_is_not_cut_off(later: str) -> None:
    source = f"import torch\n\ndef f(x):\n    a, b = {{code}}\n    {later}\n    return a + b\n"
    texts = (source.replace("{code}", c) for c in ("(x[..., 0], x[..., 1])", "x.unbind(-1)"))
    found = narrow(Job("m.py", ".", *texts, "f", (), ()))
    assert found is not None
    assert later in found.patched.partition(NAME)[2]
    harmless = source.replace(later, "b = b + 1")
    texts = (harmless.replace("{code}", c) for c in ("(x[..., 0], x[..., 1])", "x.unbind(-1)"))
    assert narrow(Job("m.py", ".", *texts, "f", (), ())) is not None


def test_a_change_elsewhere_in_the_file_has_none() -> None:
    asked = job("area[inside] = INF", "area.masked_fill_(inside, INF)")
    other = asked.patched.replace("1e8", "1e9")
    assert narrow(asked) is not None
    assert narrow(Job("m.py", ".", asked.original, other, "Head.targets", (), ())) is None


def test_what_another_function_does_is_asked_of_that_one() -> None:
    asked = job("area[inside] = INF", "area.masked_fill_(inside, INF)", BODY + SPREAD)
    changed = asked.patched.replace("x * 2", "x + x")
    found = narrow(Job("m.py", ".", asked.original, changed, "Head.targets", (), ()))
    assert found is not None
    assert "x * 2" in found.patched, "it does here what it did"
    other = changed.replace("spread(x)", "spread(x, n=2)")
    assert narrow(Job("m.py", ".", asked.original, other, "Head.targets", (), ())) is None


def defined(body: str, new: str) -> str | None:
    """Return the fragment of ``area[rows] = 0`` in a method, behind its definitions."""
    texts = [
        "import torch\nfrom missing import merge\n\n\nclass Head:\n    def look(self, x, n):\n"
        + textwrap.indent(body.replace("CHANGED", code), " " * 8)
        + "\n        return area\n"
        for code in ("area[rows] = 0", new)
    ]
    asked = Job("m.py", ".", *texts, qualname="Head.look", lines_original=(), lines_patched=())
    found = narrow(asked, defined=True)
    return None if found is None else found.original.partition(f"def {NAME}")[2].rstrip()


NEW = "area.index_fill_(0, rows, 0)"


def test_what_it_reads_is_defined_in_front() -> None:
    body = "x = self.layer(x)\nsize = x.shape[0]\narea = torch.ones(size)\nrows = n > 1\nCHANGED"
    assert defined(body, NEW) == (
        "(x, n):\n    size = x.shape[0]\n    area = torch.ones(size)\n    rows = n > 1\n"
        "    area[rows] = 0\n    return (area, rows)"
    )


@pytest.mark.parametrize(
    "between",
    [
        "self.fill(area)",
        "flat = area.view(-1)\nmerge(flat)",
        "flat = area.view(-1)\nflat[0] = self.first(n)",
        "area = merge(area)",
    ],
)
def test_what_may_have_been_written_since_is_an_argument(between: str) -> None:
    body = f"area = torch.ones(3)\n{between}\nrows = n > 1\nCHANGED"
    found = defined(body, NEW)
    assert found is not None
    assert found.startswith(("(n, area)", "(area, n)"))


def test_what_the_rest_of_a_loop_writes_is_an_argument() -> None:
    body = (
        "area = torch.ones(3)\nrows = n > 1\nfor one in x:\n    CHANGED\n    area = self.grow(area)"
    )
    found = defined(body, NEW)
    assert found is not None
    assert "torch.ones" not in found
    assert "rows = n > 1" in found


@pytest.mark.parametrize(
    "around",
    [
        "try:\n    area = merge(x)\nexcept ValueError:\n    raise\nelse:\n    CHANGED",
        "if (area := merge(x)) is not None:\n    CHANGED",
        "with merge(x) as area:\n    CHANGED",
    ],
)
def test_what_the_statement_around_binds_is_an_argument(around: str) -> None:
    found = defined(f"area = torch.ones(3)\nrows = n > 1\n{around}", NEW)
    assert found is not None
    assert "torch.ones" not in found


def test_nothing_in_front_is_no_other_question() -> None:
    assert defined("area, rows = merge(x)\nCHANGED", NEW) is None


def test_all_lines_of_the_statements_must_run() -> None:
    at = "if inside.any():\n                area"
    old, new = f"{at}[inside == 0] = 1", f"{at}.masked_fill_(inside == 0, 1)"
    found = narrow(
        job(f"area = area + 0\n            {old}", f"area = area * 1\n            {new}")
    )
    assert found is not None
    lines = found.original.splitlines()
    assert "area[inside == 0] = 1" in [lines[n - 1].strip() for n in found.lines_original]


def test_settings_become_the_optimizer_that_they_make() -> None:
    texts = [
        f"base = 1e-3\nx = dict(optimizer=dict(type='AdamW', lr=base, mult=dict(a=1){given}))"
        for given in ("", ", fused=True")
    ]
    asked = Job("c.py", ".", *texts, qualname="<module>", lines_original=(2,), lines_patched=(2,))
    found = narrow(asked)
    assert found is not None
    assert found.original.endswith("return torch.optim.AdamW(params, lr=base)\n")
    assert found.patched.endswith("return torch.optim.AdamW(params, lr=base, fused=True)\n")


@pytest.mark.parametrize("change", ["'SGD', lr=1", "'AdamW', lr=1); other = dict(a=2"])
def test_other_settings_are_no_such_question(change: str) -> None:
    texts = ["x = dict(type='AdamW', lr=1); other = dict(a=1)", f"x = dict(type={change})"]
    asked = Job("c.py", ".", *texts, qualname="<module>", lines_original=(1,), lines_patched=(1,))
    assert narrow(asked) is None
