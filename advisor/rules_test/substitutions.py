"""What substitutions promise: their forms, examples and look-alikes. Nothing here needs torch."""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache
from importlib.resources import files
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.edit.statements.programs.files import find_settings
from npufix.rewriters.explain import near_misses, refusals
from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.dataflow import UnsupportedCodeError
from npufix.rewriters.graph.modules.names import FunctionNode, ModuleNames, module_names
from npufix.rewriters.graph.modules.scopes import scopes, top_level
from npufix.rewriters.graph.operators import find_missing
from npufix.rewriters.graph.reader import read_function
from npufix.rewriters.match.matching import (
    LITERAL,
    RULE_IMPORTS,
    find,
    helpers_of,
    list_declared,
    list_unmentioned,
    parse_rule_function,
    pattern_of,
)
from npufix.rewriters.match.off_limits import off_limits
from npufix.rules.substitution import Form, Rewritten, Safety, Substitution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.advisor.rules_test.subject import Subject
    from npufix.rewriters.edit.site import Site

HEADER = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
"""What stands above every example."""
_CONDITION = r"[a-z0-9]+(-[a-z0-9]+)+|vector|inference"


def check_forms(subject: Subject) -> Iterator[str]:
    """Check that both functions take the same, and that a pattern finds its own code."""
    rule = _rule(subject)
    for form in rule.forms:
        problems = _problems_of_loop if rule.search == "loops" else _problems_of
        for problem in problems(rule, form):
            yield f"{form.pattern.__name__}: {problem}"


def _problems_of(rule: Substitution, form: Form) -> Iterator[str]:
    wanted = inspect.signature(form.pattern).parameters
    if list(wanted) != list(inspect.signature(form.replacement).parameters):
        yield f"{form.replacement.__name__} must have the same parameters, in this order"
    for condition in form.conditions:
        if not re.fullmatch(_CONDITION, condition.name):
            yield f"the condition {condition.name!r} is not two words or more joined by hyphens"
    if rule.search:
        return  # no pattern to read: the examples show what is found
    try:
        found = find_in_own_code(form)
        for row in find_missing(pattern_of(form.pattern).root):
            yield f"rewriters/graph/operators.txt lacks an operator; add the row {row.strip()}"
    except (UnsupportedCodeError, TypeError, OSError) as error:
        yield f"the pattern cannot be read: {error}"
        return
    expected: dict[str, object] = {n: 0 if n.startswith(LITERAL) else n for n in wanted}
    if found != [expected | list_unmentioned(pattern_of(form.pattern), 0)]:
        yield "its first spelling is not matched by itself, once: simplify the pattern"


def _problems_of_loop(rule: Substitution, form: Form) -> Iterator[str]:
    """Yield what is wrong with a form that is an example of what becomes of a loop."""
    text = inspect.getsource(form.pattern)
    sites = list(find_sites(HEADER.replace("nn", "nn, Tensor") + text, [rule]))
    if len(sites) != 1 or sites[0].rewrite is None:
        yield f"its loop is not rewritten: {sites[0].problem if sites else 'it is not found'}"
        return
    written = ast.parse(sites[0].rewrite.direct).body[-1]
    replacement = parse_rule_function(form.replacement)
    assert isinstance(written, ast.FunctionDef)  # noqa: S101 - a function stays one
    found, expected = (_body_of(code) for code in (written, replacement))
    if found != expected:
        yield f"its loop becomes{_first_difference(found, expected)}"


def _body_of(code: FunctionNode) -> str:
    return "\n".join(map(ast.unparse, code.body[1:]))


def find_in_own_code(form: Form) -> list[dict[str, object]]:
    """Return what the variables of a pattern are in its own first spelling, for each match."""
    code = _first_spelling(parse_rule_function(form.pattern))
    helpers = {name: _first_spelling(h) for name, h in helpers_of(form.pattern).items()}
    flow = read_function(code, ModuleNames(RULE_IMPORTS, helpers, {}), declared=list_declared(code))
    matches = find(pattern_of(form.pattern), flow)
    return [{name: node.value for name, node in match.bindings.items()} for match in matches]


class _FirstSpelling(ast.NodeTransformer):
    """Turns a pattern into code that a user may write."""

    def visit_Name(self, node: ast.Name) -> ast.expr:
        return ast.Constant(0) if node.id.startswith(LITERAL) else node

    def visit_Call(self, node: ast.Call) -> ast.AST:
        self.generic_visit(node)
        return node.args[0] if ast.unparse(node.func) == "either" else node


def _first_spelling(code: FunctionNode) -> FunctionNode:
    # Each parse is shared by all that ask for it: this one is changed.
    copy = ast.parse(ast.unparse(code)).body[0]
    changed = ast.fix_missing_locations(_FirstSpelling().visit(copy))
    assert isinstance(changed, FunctionNode)  # noqa: S101 - a function stays one
    return changed


def check_examples(subject: Subject) -> Iterator[str]:
    """Check that each example, one site of this rule alone, becomes exactly what it says."""
    rule = _rule(subject)
    others = [other for other in subject.others if isinstance(other, Substitution)]
    if not rule.rewritten:
        yield "it has no example of code that is rewritten: add one to `rewritten`"
    for example in rule.rewritten:
        for problem in _problems_with(rule, others, example):
            yield f"example {name_of(example.before)}: {problem}"


def _problems_with(
    rule: Substitution, others: list[Substitution], example: Rewritten
) -> Iterator[str]:
    if rule.files:
        yield from _problems_in_file(rule, example)
        return
    try:
        sites = list(find_sites(HEADER + example.before, [rule, *others]))
        ast.parse(example.after)
    except SyntaxError as error:
        yield f"it is no Python: {error}"
        return
    if [site.rule.id for site in sites] != [rule.id]:
        named = ", ".join(f"{s.rule.id} at line {s.line}" for s in sites) or "none"
        yield f"it has to be one site of this rule, but there is {named}{why_not(rule, example)}"
        return
    (site,) = sites
    rewrite = site.rewrite
    if rewrite is None and rule.search and example.before == example.after:
        return  # pointed at alone
    if rewrite is None:
        yield f"it is found, but cannot be rewritten: {site.problem}"
        return
    expected = header_with(library_of(example.after)) + example.after
    if rewrite.direct != expected:
        yield f"it becomes{_first_difference(rewrite.direct, expected)}"
    first, last = site.function_lines
    length = HEADER.count("\n") + example.before.count("\n")
    if not (site.lines <= set(range(1, length + 1)) and first <= site.line <= last):
        yield "its lines are not those of its function"
    beginning = re.split(r"[(\[]", rewrite.text.splitlines()[-1])[0]  # the rest may follow below
    if not rule.search and beginning not in rewrite.direct.splitlines()[rewrite.line - 1]:
        yield f"line {rewrite.line} of the rewritten code does not hold the replacement"
    if any(list(find_sites(text, [rule])) for text in (rewrite.direct, rewrite.portable)):
        yield "the rule finds a place in what it has written: the pattern matches its replacement"
    yield from _problems_of_portable(site, example)


def _problems_in_file(rule: Substitution, example: Rewritten) -> Iterator[str]:
    """Yield what is wrong with an example that is no Python."""
    name = rule.files[0]
    for site in find_settings(example.before, name, [rule]):
        assert site.rewrite is not None  # noqa: S101 - what is found there is written
        if site.rewrite.direct != example.after:
            yield f"it becomes{_first_difference(site.rewrite.direct, example.after)}"
        if list(find_settings(site.rewrite.direct, name, [rule])):
            yield "the rule finds a place in what it has written"
        return
    yield "it has to be one site of this rule, but there is none"


def _problems_of_portable(site: Site, example: Rewritten) -> Iterator[str]:
    """Yield what is wrong with the text that runs the old code elsewhere than on an NPU."""
    assert site.rewrite is not None  # noqa: S101 - the caller has looked
    portable = site.rewrite.portable
    ast.parse(portable)
    if not library_of(site.rewrite.text) and "mx_driving." not in site.rewrite.text:
        if portable != site.rewrite.direct:
            yield "the portable form differs, though it needs no other library"
        return
    if re.search(r" if torch_npu else [\w.]+$", portable, re.MULTILINE):
        return  # one of two classes is called, as the author calls the old one
    after = [line.strip() for line in portable.splitlines()]
    if not all(line.strip() in after for line in example.before.splitlines() if line.strip()):
        yield "the portable form does not keep the old code"
    # A tensor is asked for its device; a class, which is made of parameters, for its package.
    if not re.search(r'\.device\.type == "npu":|if torch_npu is not None:', portable):
        yield "the portable form does not ask for an NPU"


def check_look_alikes(subject: Subject) -> Iterator[str]:
    """Check that no rule changes a look-alike."""
    rule = _rule(subject)
    rules = [r for r in (rule, *subject.others) if isinstance(r, Substitution)]
    needed = min(3, 1 + len(rule.rewritten))
    if len(rule.valid) < needed:
        yield f"it has {len(rule.valid)} look-alikes, and needs {needed}: add to `valid`"
    for text in rule.valid:
        if rule.files:
            if list(find_settings(text, rule.files[0], [rule])):
                yield f"look-alike {text.splitlines()[0]} is changed"
            continue
        try:
            sites = list(find_sites(HEADER + text, rules))
        except SyntaxError as error:
            yield f"look-alike {name_of(text)} is no Python: {error}"
            continue
        for site in sites:
            if site.safety is Safety.SAFE:
                yield f"look-alike {name_of(text)} is changed by {site.rule.id}: {site.code}"


def check_near_misses(subject: Subject) -> Iterator[str]:
    """Check that ``npufix explain`` says what a look-alike lacks."""
    rule = _rule(subject)
    if rule.search:
        return  # what a search asks for is no pattern that code could go along with
    if rule.valid and not any(explanations(rule, text) for text in rule.valid):
        yield "no look-alike is near enough to be explained: add one that differs in one operand"


def explanations(rule: Substitution, text: str) -> list[str]:
    """Return why a rule does not match a text, as ``npufix explain`` says it."""
    source = HEADER + text
    tree = ast.parse(source)
    names, lines = module_names(tree), range(1, source.count("\n") + 2)
    said = []
    for scope in (*scopes(tree), top_level(tree)):
        remark = off_limits(scope, names)
        said += [remark] if remark else []
        try:
            flow = read_function(scope.function, names, scope.cls, scope=scope)
        except UnsupportedCodeError as error:
            said.append(str(error))
            continue
        said += [r.reason for r in refusals(source, flow, [rule], lines) if r.reason]
        near = near_misses(source, flow, [rule], lines)
        said += [f"expected {p.expected}: {p.found}" for n in near for p in n.partings]
    return said


def why_not(rule: Substitution, example: Rewritten) -> str:
    """Return what ``npufix explain`` says of an example that is not found, for a problem."""
    reasons = list(dict.fromkeys(explanations(rule, example.before)))
    return f" ({'; '.join(reasons[:3])})" if reasons else ""


def check_kernels(subject: Subject) -> Iterator[str]:
    """Check that ``replaces`` and ``becomes`` name kernels as the profiler does."""
    rule = _rule(subject)
    if not (rule.search or (rule.replaces and rule.becomes)):
        yield "it names no kernel Types in `replaces` or `becomes`: take them from a recording"
    rules = [other for other in subject.others if isinstance(other, Substitution)]
    known = list_known_types().union(*(types_of(other) for other in rules))
    spelled = {name.lower(): name for name in known}
    for name in sorted(types_of(rule) - known):
        plain = name.removeprefix("aclnn")
        if plain.lower() in spelled:
            yield f"the kernel Type {name!r} is spelled {spelled[plain.lower()]}"
        elif not re.fullmatch(r"[A-Z][A-Za-z0-9]*", plain) or plain != name:
            yield f"{name!r} is no kernel Type: take the column Type of kernel_details.csv"


def types_of(rule: Substitution) -> set[str]:
    """Return the kernel Types that a rule names."""
    together = (name for group in rule.launches_together for name in group)
    return {*rule.replaces, *rule.becomes, *together}


@cache
def list_known_types() -> frozenset[str]:
    """Return the kernel Types that the tables of this project name."""
    launched = files("npufix.rewriters.verification.reference") / "kernel_types.json"
    dtypes = files("npufix.rules.diagnostics") / "aicore_dtypes.json"
    table = msgspec.json.decode(launched.read_bytes(), type=dict[str, list[str]])
    types = msgspec.json.decode(dtypes.read_bytes())["types"]
    return frozenset(name for names in table.values() for name in names) | set(types)


def library_of(text: str) -> str:
    """Return the import that a new text needs for NPUs, "" if none."""
    if "torch_npu." in text:
        return "import torch_npu"
    found = re.search(r"\bnpu_(dropout_add_\w+)\(", text)
    return f"from mindspeed.ops.{found[1]} import npu_{found[1]}" if found else ""


def header_with(needed: str) -> str:
    """Return the imports of an example with one more, where the rewriter puts it."""
    return HEADER.replace("as F\n", f"as F\n{needed}\n") if needed else HEADER


def name_of(text: str) -> str:
    """Return the first definition of a snippet and where it is: readable in a list."""
    found = re.search(r"(?:class|def) (\w+)", text)
    return found[1] if found else "without a function"


def _first_difference(got: str, wanted: str) -> str:
    pairs = zip([*got.splitlines(), ""], [*wanted.splitlines(), ""], strict=False)
    line, expected = next(pair for pair in pairs if pair[0] != pair[1])
    return f" {line.strip()!r} where it says {expected.strip()!r}"


def _rule(subject: Subject) -> Substitution:
    assert isinstance(subject.rule, Substitution)  # noqa: S101 - the table in `running` sees to it
    return subject.rule
