"""Whether the author has chosen already: code for an NPU stands beside a match.

Then what is left is what runs elsewhere, or where the fused operator does not apply::

    if args.use_fused_rmsnorm:            def fused_swiglu(x): return torch_npu.npu_swiglu(x)
        return torch_npu.npu_rms_norm(x, w)[0]
    return x * torch.rsqrt(...) * w       def unfused_swiglu(x): return F.silu(a) * b
"""

from __future__ import annotations

import ast
import inspect
import re
from functools import cache, lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.steps.kept import list_callers
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.match.matching import Match
    from npufix.rules.substitution import Form

_FOR_NPU = re.compile(r"\b(?:torch_npu|mindspeed[\w.]*)\.(?:\w+\.)*(\w+)\(")
_FUSED = re.compile(r"npu|fused|fusion|flash|mindspeed", re.IGNORECASE)
_PREFIX = re.compile(r"^(npu|fused?|fusion|flash)_?|_?v\d+$")
_WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z0-9]+")
_HOW = frozenset(
    {
        "npu", "ascend", "fused", "fusion", "flash", "fast", "optimized", "oot", "kernel",
        "triton", "unfused", "eager", "native", "naive", "vanilla", "plain", "slow", "fallback",
        "reference", "ref", "impl", "torch", "pytorch", "python", "non", "not", "original", "orig",
        "basic", "default", "with",
    }
)  # fmt: skip
"""Words of a name that say how something is computed, not what."""


_FAMILIES = (
    ("npu_swiglu", "npu_geglu"),
    ("npu_rms_norm", "npu_gemma_rms_norm"),
)
"""Which of them is right says the configuration, or the weight: one beside stands for both."""


_REFERENCE = re.compile(r"(^|_)(ref|reference)(_impl(ementation)?)?$|^(ref|reference)_")


_MOST_HELPERS = 8
"""How far it is asked who calls whom."""
_FALLS_BACK = frozenset({"native", "naive", "pytorch", "torch", "python", "fallback"})


_ROUNDS = re.compile(r"(^|_)(loop(ed)?|sequential|serial|iterative)(?=_|$)")
_AT_ONCE = ("vectorized", "vectorised", "batched", "parallel")
"""What stands beside ``pairs_loop_method`` where it is chosen for want of memory."""


def is_reference(flow: FunctionFlow) -> bool:
    """Tell whether a function only shows what a kernel computes, or is there where none is.

    ``rms_norm_ref``; ``gated_delta_rule_native`` beside ``gated_delta_rule_npu``.
    """
    name = flow.function.name
    if _REFERENCE.search(name) is not None or only_shows(flow):
        return True
    if _ROUNDS.search(name) and any(
        _ROUNDS.sub(rf"\1{how}", name) in flow.names.functions for how in _AT_ONCE
    ):
        return True
    if not _falls_back(name):
        return _helps_fallbacks(flow)
    if flow.cls is None and _holds_kernels(flow):
        return True
    if flow.cls is not None and _has_stand_in(flow.cls, name):
        return True
    beside = flow.names.functions if flow.cls is None else {m.name for m in _methods(flow.cls)}
    what = _what(name)[0]
    others = [other for other in beside if other != name and _what(other)[0] == what]
    return not all(map(_falls_back, others))


def _helps_fallbacks(flow: FunctionFlow) -> bool:
    """Tell whether only fallbacks call a function: ``apply_torch`` beside ``apply``."""
    tree = flow.names.tree
    if flow.cls is not None or tree is None or "<locals>" in flow.qualname:
        return False
    if not _has_fallbacks(tree):
        return False
    known, names, found = list_callers(tree), [flow.function.name], False
    for name in names:  # grows
        callers = known.get(name, frozenset())
        if not callers or "" in callers or len(names) > _MOST_HELPERS:
            return False
        falling = {c for c in callers if _falls_back(c) and _stands_beside(tree, c)}
        found = found or bool(falling)
        names += sorted(callers - falling - {*names})
    return found


@lru_cache(maxsize=2)
def _has_fallbacks(tree: ast.Module) -> bool:
    """Tell whether a function of a module is called a fallback: in most modules none is."""
    return any(isinstance(n, FunctionNode) and _falls_back(n.name) for n in nodes_of(tree))


def _stands_beside(tree: ast.Module, name: str) -> bool:
    """Tell whether a module has another function for the same, which is no fallback."""
    others = (n.name for n in nodes_of(tree) if isinstance(n, FunctionNode) and n.name != name)
    what = _what(name)[0]
    return any(_what(other)[0] == what and not _falls_back(other) for other in others)


def _is_of_reference(flow: FunctionFlow) -> bool:
    """Tell whether a class is called a reference, and said to be one: ``class RefAttnBackend``.

    Not so the ``ReferenceEncoder`` that reads a reference.
    """
    if flow.cls is None or flow.names.tree is None or not _REF_CLASS.match(flow.cls.name):
        return False
    told = (ast.get_docstring(code, clean=False) for code in (flow.cls, flow.names.tree))
    return any(_IS_REFERENCE.search(text or "") for text in told)


_REF_CLASS = re.compile(r"_*Ref(erence)?[A-Z]")
_IS_REFERENCE = re.compile(r"(?i)\breference (backend|implementation|version)")
_SHOWS = re.compile(
    r"(?i)\bnaive (\w+ )?implementation\b"
    r"|\bfor (debugging|prototyping|testing)( and \w+)? (only|purposes)\b"
)


def only_shows(flow: FunctionFlow) -> bool:
    """Tell whether code says that it is there to be read, or to test others by.

    Its docstring does, or it is called naive, and so is whatever calls it in its module, unless a
    setting chooses it: ``naive_attention`` of ``class NaiveAttention``; not ``self.experts =
    NaiveMoe(config)`` of a layer, which knows no other experts.
    """
    if _SHOWS.search(ast.get_docstring(flow.function, clean=False) or ""):
        return True
    if _is_of_reference(flow):
        return True
    own, tree = flow.cls or flow.function, flow.names.tree
    if not _is_naive(own.name) or tree is None:
        return False
    is_class = flow.cls is not None
    uses = [
        _is_naive(getattr(code, "name", "")) or (is_class and is_chosen)
        for code in tree.body
        if getattr(code, "name", "") != own.name
        for is_chosen in _list_uses(code, own.name)
    ]
    return all(uses) and (is_class or bool(uses))


def _list_uses(code: ast.AST, name: str, *, is_chosen: bool = False) -> Iterator[bool]:
    """Yield of each use of a name in some code whether something decides on it."""
    if isinstance(code, ast.Name) and code.id == name:
        yield is_chosen
    is_chosen = is_chosen or isinstance(code, ast.If | ast.IfExp | ast.Dict)
    for part in ast.iter_child_nodes(code):
        yield from _list_uses(part, name, is_chosen=is_chosen)


def _is_naive(name: str) -> bool:
    return "naive" in (word.lower() for word in _WORD.findall(name))


def _has_stand_in(cls: ast.ClassDef, name: str) -> bool:
    """Tell whether something else may be called in place of a method of the class.

    ``self.act = self._gelu_python if slow else F.gelu``, or in two branches of an ``if``.
    """
    assigned = [n for n in nodes_of(cls) if isinstance(n, ast.Assign) and len(n.targets) == 1]
    values: dict[str, set[str]] = {}
    for node in assigned:
        choices = (
            [node.value.body, node.value.orelse]
            if isinstance(node.value, ast.IfExp)
            else [node.value]
        )
        values.setdefault(ast.unparse(node.targets[0]), set()).update(map(ast.unparse, choices))
    return any(f"self.{name}" in some and len(some) > 1 for some in values.values())


def _holds_kernels(flow: FunctionFlow) -> bool:
    """Tell whether a module holds kernels of Triton: ``torch_attention`` says what one computes."""
    decorators = (d for f in flow.names.functions.values() for d in f.decorator_list)
    return any(
        (flow.names.dotted(d.func if isinstance(d, ast.Call) else d) or "") == "triton.jit"
        for d in decorators
    )


def _falls_back(name: str) -> bool:
    return not _FALLS_BACK.isdisjoint(word.lower() for word in _WORD.findall(name))


def find_choice(flow: FunctionFlow, match: Match, form: Form | None) -> str:
    """Return where the author has chosen what runs on an NPU, "" if that is not so.

    Without ``form`` it is only asked whether the code stands beside a test for an NPU.
    """
    if is_reference(flow):
        return "it is a reference for what a kernel computes: somebody has chosen already"
    statement = match.evaluation.statement
    for node in flow.npu_branches:
        leaves = isinstance(node, ast.If) and isinstance(node.body[-1], ast.Return)
        if _holds(node, statement.lineno) or (leaves and statement.lineno > node.lineno):
            return "code for an NPU stands beside it: somebody has chosen already"
    wanted = () if form is None else _list_fused_calls(form.replacement)
    if not wanted or flow.names.tree is None:
        return ""
    beside: list[ast.AST] = [b for branch in _other_branches(flow, statement) for b in branch]
    beside += _other_choices(statement, match.evaluation.code)
    called = _handed_on(flow, statement)
    called = called or _find_fused(flow, [*beside, *_instead_of_calls(flow)], wanted)
    if not called:
        called = next((c for f in _siblings(flow) if (c := _find_fused(flow, f.body, wanted))), "")
    return f"{called} stands beside it: somebody has chosen already" if called else ""


def may_hand_on(flow: FunctionFlow) -> bool:
    """Tell whether a function has a way out before its own code: ``if rope.is_fused: return``."""
    tests = (n for n in flow.function.body if isinstance(n, ast.If))
    return any(
        isinstance(n.test, ast.Attribute) and isinstance(n.body[-1], ast.Return) for n in tests
    )


def _handed_on(flow: FunctionFlow, statement: ast.stmt) -> str:
    """Return what all parameters are handed to where it says itself that it can do more.

    ``if rope.is_fused: return rope(q, k, cos, sin)`` before the code for whoever cannot.
    """
    args = flow.function.args
    needed = [a.arg for a in args.args[: len(args.args) - len(args.defaults)] if a.arg != "self"]
    for node in flow.function.body:
        if node.lineno >= statement.lineno:
            break
        match node:
            case ast.If(test, [*_, ast.Return(ast.Call(called, given, keywords))]):
                names = {ast.unparse(code) for code in (*given, *(k.value for k in keywords))}
                text = ast.unparse(called)
                asked = {ast.unparse(n.value) for n in walk(test) if isinstance(n, ast.Attribute)}
                if len(needed) > 1 and names >= {*needed} and text in asked:
                    return text
    return ""


def is_written(match: Match, form: Form) -> bool:
    """Tell whether code calls already what the form would write: ``torch.addcmul(c, a, b)``.

    That is read as ``c + a * b``, which the form looks for.
    """
    code, wanted = match.evaluation.code, _returned(form.replacement)
    if not isinstance(code, ast.Call) or not wanted or wanted == _returned(form.pattern):
        return False
    # ``x[mask].sum()`` for ``where(mask, x, 0).sum()``, ``.long()`` behind something else
    if match.evaluation.node.op in {wanted, Op.CAST}:
        return False
    return last_name(code.func).rstrip("_") == wanted


@cache
def _returned(function: Callable[..., object]) -> str:
    """Return which operator the last statement of a function calls, "" if it is no call."""
    last = ast.parse(inspect.getsource(function)).body[0].body[-1]  # type: ignore[attr-defined]
    value = last.value if isinstance(last, ast.Return) else None
    return last_name(value.func) if isinstance(value, ast.Call) else ""


@cache
def _list_fused_calls(replacement: Callable[..., object]) -> tuple[str, ...]:
    """Return the operators for NPUs that a replacement calls: ``npu_rms_norm``."""
    called = dict.fromkeys(_FOR_NPU.findall(inspect.getsource(replacement)))
    kin = (name for family in _FAMILIES if set(called) & {*family} for name in family)
    return tuple(dict.fromkeys((*called, *kin)))


def _holds(node: ast.AST, line: int) -> bool:
    first = getattr(node, "lineno", 0)
    return bool(first <= line <= (getattr(node, "end_lineno", None) or first))


def _other_branches(flow: FunctionFlow, statement: ast.stmt) -> Iterator[Sequence[ast.stmt]]:
    """Yield what runs instead of a statement, or instead of the function that holds it."""
    assert flow.names.tree is not None  # noqa: S101 - asked before
    line = statement.lineno
    for node in nodes_of(flow.names.tree):
        if not isinstance(node, (ast.If, ast.Try)):
            continue
        branches = _branches(node)
        inside = [b for b in branches if b[0].lineno <= line <= (b[-1].end_lineno or b[-1].lineno)]
        if inside:
            yield from (b for b in branches if b not in inside)
        elif _holds(flow.function, node.lineno) and (node.end_lineno or node.lineno) < line:
            yield from (b for b in branches if isinstance(b[-1], (ast.Return, ast.Continue)))


def _other_choices(statement: ast.stmt, code: ast.expr | ast.stmt) -> Iterator[ast.expr]:
    """Yield what an expression is instead of the one that holds some code: ``a if c else b``."""
    for node in walk(statement):
        if isinstance(node, ast.IfExp):
            for one, other in ((node.body, node.orelse), (node.orelse, node.body)):
                if any(inner is code for inner in walk(one)):
                    yield other


def _instead_of_calls(flow: FunctionFlow) -> Iterator[ast.stmt]:
    """Yield what others do instead of calling this one: ``F.rms_norm(x)`` or ``self.norm(x)``.

    So they do in a branch that returns before: ``if w is not None: return npu_rms_norm(x, w)[0]``.
    """
    name = flow.function.name

    def calls(code: ast.AST | Sequence[ast.AST]) -> bool:
        parts = [code] if isinstance(code, ast.AST) else code
        if flow.cls is None:
            return any(isinstance(n, ast.Name) and n.id == name for n in walk(*parts))
        return any(isinstance(n, ast.Attribute) and n.attr == name for n in walk(*parts))

    beside = flow.names.functions.values() if flow.cls is None else _methods(flow.cls)
    for method in beside:
        if method is flow.function or not calls(method):
            continue
        for node in (n for n in walk(method) if isinstance(n, ast.If)):
            others = [b for b in _branches(node) if not calls(b)]
            if calls(node) or any(isinstance(b[-1], ast.Return) for b in others):
                yield from (statement for b in others for statement in b)


def _branches(node: ast.If | ast.Try) -> list[list[ast.stmt]]:
    if isinstance(node, ast.If):
        return [b for b in (node.body, node.orelse) if b]
    return [b for b in (node.body, *(h.body for h in node.handlers), node.orelse) if b]


def _siblings(flow: FunctionFlow) -> Iterator[FunctionNode]:
    """Yield functions of the module that compute the same in another way, by their names.

    Beside ``unfused_swiglu`` that is ``fused_swiglu``, beside ``forward_native`` the
    ``forward_oot`` of the class, beside ``EagerNorm.forward`` the ``NpuNorm.forward``.
    """
    name, cls = flow.function.name, flow.cls
    functions = flow.names.functions.values() if cls is None else _methods(cls)
    yield from (f for f in functions if f.name != name and _are_alike(name, f.name))
    if cls is not None:  # the ``_norm`` that only ``unfused_norm`` calls, beside ``fused_norm``
        yield from (f for f in functions if f.name != name and re.match(r"_*(npu|fused)_", f.name))
    for other in flow.names.classes.values() if cls is not None else ():
        if cls is not None and other is not cls and _are_alike(cls.name, other.name):
            yield from (f for f in _methods(other) if f.name == name)


def _methods(cls: ast.ClassDef) -> list[FunctionNode]:
    return [node for node in cls.body if isinstance(node, FunctionNode)]


def _are_alike(name: str, other: str) -> bool:
    """Tell whether a name says how something is computed that another one computes as well."""
    (own, how), (its, _) = _what(name), _what(other)
    return bool(own) and how and own == its


def _what(name: str) -> tuple[tuple[str, ...], bool]:
    """Return ``swiglu`` for ``unfused_swiglu``, and whether the name says how it is computed."""
    words = [word.lower() for word in _WORD.findall(name)]
    what = tuple(word for word in words if word not in _HOW)
    return what, len(what) < len(words)


def _find_fused(flow: FunctionFlow, code: Iterable[ast.AST], wanted: Sequence[str]) -> str:
    """Return the call of one of these operators, or of a relative, in some statements.

    What is called on an NPU only, in code that has another way as well, is no choice of a way.
    """
    asks = [n for n in flow.npu_branches if isinstance(n, ast.If) and n.orelse]
    for call in (n for statement in code for n in walk(statement) if isinstance(n, ast.Call)):
        if any(_holds(node, call.lineno) for node in asks):
            continue
        if _is_fused(flow, call, wanted):
            return ast.unparse(call.func)
        inner = flow.names.functions.get(call.func.id) if isinstance(call.func, ast.Name) else None
        if inner is not None and any(
            _is_fused(flow, n, wanted) for n in walk(inner) if isinstance(n, ast.Call)
        ):
            return ast.unparse(call.func)
    return ""


def _is_fused(flow: FunctionFlow, call: ast.Call, wanted: Sequence[str]) -> bool:
    """Tell whether a call is one of the operators or, as ``fused_rms_norm``, a relative."""
    name = last_name(call.func) or ""
    if name in wanted:
        return True
    whole = f"{flow.names.dotted(call.func) or ''} {ast.unparse(call.func)}"
    kinds = {_PREFIX.sub("", one.lower()).replace("_", "") for one in wanted}
    called = name.lower().replace("_", "")  # ``fused_rmsnorm`` is ``npu_rms_norm``
    if called in kinds and whole.startswith("torch.nn.functional."):
        return True  # ``F.rms_norm`` where there is one
    return _FUSED.search(whole) is not None and any(kind in called for kind in kinds)
