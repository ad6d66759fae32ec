"""Every rule against the examples that it ships, and the promises that all rules make."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache

import pytest

from npufix.rewriters.find import Site, find_sites
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.match.matching import (
    RULE_IMPORTS,
    declared,
    find,
    helpers_of,
    parse_rule_function,
    pattern_of,
    unmentioned,
)
from npufix.rules.registry import RuleError, _rule, all_rules, documentation
from npufix.rules.substitution import Form, Rewritten, Safety, Substitution

RULES = all_rules()
HEADER = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"


def library(text: str) -> str:
    """Return the import that a new text needs for NPUs, "" if none."""
    if "torch_npu." in text:
        return "import torch_npu"
    found = re.search(r"\bnpu_(dropout_add_\w+)\(", text)
    return f"from mindspeed.ops.{found[1]} import npu_{found[1]}" if found else ""


def header(needed: str) -> str:
    """Return the imports of an example with one more, where the rewriter puts it."""
    return HEADER.replace("as F\n", f"as F\n{needed}\n") if needed else HEADER


def named(text: str) -> str:
    """Return the first definition of a snippet: a readable test id."""
    found = re.search(r"(?:class|def) (\w+)", text)
    return found[1] if found else "snippet"


VALID = [
    pytest.param(rule, text, id=f"{rule.id}-{number}-{named(text)}")
    for rule in RULES
    for number, text in enumerate(rule.valid)
]
REWRITTEN = [
    pytest.param(rule, example, id=f"{rule.id}-{number}-{named(example.before)}")
    for rule in RULES
    for number, example in enumerate(rule.rewritten)
]
FORMS = [
    pytest.param(rule, form, id=f"{rule.id}-{form.pattern.__name__}-{form.replacement.__name__}")
    for rule in RULES
    for form in rule.forms
]
each_rule = pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.id)
each_form = pytest.mark.parametrize(("rule", "form"), FORMS)


def the_site(rule: Substitution, example: Rewritten) -> Site:
    return site_of(rule.id, example.before)


@cache
def site_of(name: str, code: str) -> Site:
    """Read an example once for all the tests that look at it."""
    (site,) = find_sites(HEADER + code, [rule for rule in RULES if rule.id == name])
    return site


@pytest.mark.parametrize(("rule", "text"), VALID)
def test_look_alikes_are_not_changed(rule: Substitution, text: str) -> None:
    sites = list(find_sites(HEADER + text, [rule]))
    assert [site.code for site in sites if site.safety is Safety.SAFE] == []


@pytest.mark.parametrize(("rule", "text"), VALID)
def test_no_other_rule_changes_a_look_alike(rule: Substitution, text: str) -> None:
    others = [other for other in RULES if other is not rule]
    assert [s.rule.id for s in find_sites(HEADER + text, others) if s.safety is Safety.SAFE] == []


@pytest.mark.parametrize(("rule", "example"), REWRITTEN)
def test_examples_become_exactly_this(rule: Substitution, example: Rewritten) -> None:
    rewrite = the_site(rule, example).rewrite
    assert rewrite is not None
    needed = library(example.after)
    assert rewrite.direct == header(needed) + example.after


@pytest.mark.parametrize(("rule", "example"), REWRITTEN)
def test_the_line_of_the_rewrite_holds_it(rule: Substitution, example: Rewritten) -> None:
    rewrite = the_site(rule, example).rewrite
    assert rewrite is not None
    first = re.split(r"[(\[]", rewrite.text.splitlines()[-1])[
        0
    ]  # the rest may be on lines of its own
    assert first in rewrite.direct.splitlines()[rewrite.line - 1]


@pytest.mark.parametrize(("rule", "example"), REWRITTEN)
def test_a_second_run_finds_nothing(rule: Substitution, example: Rewritten) -> None:
    rewrite = the_site(rule, example).rewrite
    assert rewrite is not None
    assert list(find_sites(rewrite.direct, [rule])) == []
    assert list(find_sites(rewrite.portable, [rule])) == []


@pytest.mark.parametrize(("rule", "example"), REWRITTEN)
def test_the_portable_form_keeps_the_old_code(rule: Substitution, example: Rewritten) -> None:
    rewrite = the_site(rule, example).rewrite
    assert rewrite is not None
    ast.parse(rewrite.portable)
    if not library(rewrite.text):
        assert rewrite.portable == rewrite.direct
        return
    kept = [line.strip() for line in example.before.splitlines() if line.strip()]
    after = [line.strip() for line in rewrite.portable.splitlines()]
    assert all(line in after for line in kept)
    # A tensor is asked for its device; a class, which is made of parameters, for its package.
    assert re.search(r'\.device\.type == "npu":|if torch_npu is not None:', rewrite.portable)


@pytest.mark.parametrize(("rule", "example"), REWRITTEN)
def test_an_example_is_one_site_of_one_rule(rule: Substitution, example: Rewritten) -> None:
    sites = list(find_sites(HEADER + example.before, RULES))
    assert [site.rule.id for site in sites] == [rule.id]
    first, last = sites[0].function_lines
    assert sites[0].lines <= set(range(1, HEADER.count("\n") + example.before.count("\n") + 1))
    assert first <= sites[0].line <= last


@each_rule
def test_a_rule_shows_what_it_does_and_what_it_leaves_alone(rule: Substitution) -> None:
    assert rule.rewritten
    assert len(rule.valid) >= min(3, 1 + len(rule.rewritten))
    for text in (*rule.valid, *(t for e in rule.rewritten for t in (e.before, e.after))):
        ast.parse(text)


@each_rule
def test_the_documentation_has_its_headings(rule: Substitution) -> None:
    text = documentation(rule)
    places = [text.find(f"\n{name}") for name in ("What:", "Why ", "Safety:", "References:")]
    assert all(place > 0 for place in places), text
    assert places == sorted(places)


@each_rule
def test_condition_names_can_be_typed(rule: Substitution) -> None:
    names = {condition.name for form in rule.forms for condition in form.conditions}
    assert all(re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)+|vector|inference", name) for name in names)


@each_rule
def test_identifiers_are_of_the_house(rule: Substitution) -> None:
    assert re.fullmatch(r"NPU\d{3}", rule.id)
    assert re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name)
    assert rule.table in {"affinity", "fusion"}
    assert rule.forms[0].pattern.__module__.split(".")[-2] == "substitutions"
    assert rule.replaces
    assert rule.becomes


def test_ids_and_names_are_unique() -> None:
    assert len({rule.id for rule in RULES}) == len({rule.name for rule in RULES}) == len(RULES)
    assert [rule.id for rule in RULES] == sorted(rule.id for rule in RULES)


def test_a_file_without_a_rule_is_an_error() -> None:
    with pytest.raises(RuleError, match="has no RULE"):
        _rule(ast)


@each_form
def test_both_functions_of_a_form_take_the_same(rule: Substitution, form: Form) -> None:
    parameters = [list(inspect.signature(f).parameters) for f in (form.pattern, form.replacement)]
    assert parameters[0] == parameters[1], rule.id


@each_form
def test_inputs_offer_every_parameter(rule: Substitution, form: Form) -> None:
    pytest.importorskip("torch")
    from npufix.rewriters.verification.judge.verify_rule import SeededDraw, bind_torch

    wanted = set(inspect.signature(form.pattern).parameters)
    offered = set(bind_torch(form.inputs)(SeededDraw(0)))
    assert wanted <= offered, rule.id


class FirstSpelling(ast.NodeTransformer):
    """Turns a pattern into code that a user may write."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(0) if node.id.startswith("literal_") else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func) == "either" else node


@each_form
def test_a_pattern_matches_itself(rule: Substitution, form: Form) -> None:
    def first(code: FunctionNode) -> FunctionNode:
        chosen: FunctionNode = ast.fix_missing_locations(FirstSpelling().visit(code))
        return chosen

    code = first(parse_rule_function(form.pattern))
    helpers = {name: first(helper) for name, helper in helpers_of(form.pattern).items()}
    flow = read_function(code, ModuleNames(RULE_IMPORTS, helpers, {}), declared=declared(code))
    (match,) = find(pattern_of(form.pattern), flow)
    bound = {name: node.value for name, node in match.bindings.items()}
    wanted = inspect.signature(form.pattern).parameters
    expected = {n: 0 if n.startswith("literal_") else n for n in wanted}
    assert bound == expected | unmentioned(pattern_of(form.pattern), 0), rule.id
