"""Write a call that tells two versions apart as a Python program of its own.

The program holds both texts and the inputs in numbers; it needs torch alone, unless the code
calls torch_npu or could only be loaded with stand-ins: then it takes those of npufix.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch

from npufix.rewriters.graph.modules.packages import package_of
from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.device import is_virtual
from npufix.rewriters.verification.calls.nudges import compute_from, is_floating, link
from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.values import Flavour, MadeArgument, Spec, materialise
from npufix.rewriters.verification.inputs.histories import list_calls
from npufix.rewriters.verification.inputs.load import find_beside
from npufix.rewriters.verification.inputs.objects.offers import DESCENT, spell_kind
from npufix.rewriters.verification.inputs.objects.state import list_tables
from npufix.rewriters.verification.inputs.objects.training_loops import LossOfWeights
from npufix.rewriters.verification.inputs.objects.weights import (
    bind_optimizers,
    fill_optimizers,
    leave_gradients,
    list_modules,
    list_trained,
    move_weights,
    remember,
    remembering,
    take_steps,
)
from npufix.rewriters.verification.inputs.overlay import write_program_part
from npufix.rewriters.verification.inputs.source.parameters import tie_ends
from npufix.rewriters.verification.inputs.source.slicing import slice_module
from npufix.rewriters.verification.judge.programs import replay
from npufix.rewriters.verification.judge.programs.expressions import (
    CannotSpellError,
    write_expression,
)
from npufix.rewriters.verification.sandbox.remote import runs_with_target
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.inputs.load import Loaded
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.target import Target
    from npufix.rewriters.verification.judge.observe_case import CaseRun
    from npufix.rewriters.verification.judge.shrink import Counterexample

_RUN_S = 10.0
_OTHER_NAME = "unexpected keyword argument"
_NPU = ("torch_npu", "mindspeed", "mx_driving", "einops")
_HEAD = '''"""A counterexample by npufix: two versions of {qualname} that differ.

{words}

Run it with a Python that has {needs}. It prints what differs and exits
with status 1; with 0, if the two agree where it runs.
"""

from __future__ import annotations

import os

os.environ.update(PYTORCH_JIT="0", TORCHDYNAMO_DISABLE="1", TORCH_DEVICE_BACKEND_AUTOLOAD="0")

import collections
import contextlib
import itertools
import random
import sys
import types
import unittest.mock
import zlib
from math import inf, nan
from typing import Any

import torch
'''
_INSTALL = """
from npufix.rewriters.verification.reference import npu_operators

npu_operators.install({version!r})  # operators of torch_npu as reference kernels on the CPU
"""
_LOAD = """

def load(text, name):
    module = types.ModuleType(name)
    module.__package__ = {package!r}
    sys.modules[name] = module
    exec(compile(text, name, "exec", dont_inherit=True), module.__dict__)
    return module
"""
_LOAD_PARTLY = """
from npufix.rewriters.verification.inputs.load import load as load_as_far_as_possible


def load(text, name):
    module = types.ModuleType(name)
    sys.modules[name] = module
    loaded = load_as_far_as_possible(text, {path!r}, {root!r}, {qualname!r}, name)
    module.__dict__.update(loaded.namespace)
    return module
"""
_PREPARED = '''

def having(made, **attributes):
    for name, value in attributes.items():
        setattr(made, name, value)
    return made


def prepared(module):
    """Return the call, the object that it is made on, and the arguments."""
    torch.manual_seed(0)
    made = {made}{mode}{before}
    arguments = {{
{arguments}    }}
    earlier = {earlier}
{bound}
    def call(passed):
        {within}return {function}({given})

    return {returned}, made, arguments, earlier
'''
_BOUND = """    modules = (v for v in arguments.values() if isinstance(v, torch.nn.Module))
    arguments[{!r}].param_groups[0]["params"] = [p for m in modules for p in m.parameters()]
"""
_EVALUATED = """    for held in arguments.values():
        if isinstance(held, torch.nn.Module):
            held.eval()
"""
_LINKED = "passed = link(passed, {!r})\n        "
_SHARED = "    arguments[{1!r}] = arguments[{0!r}]\n"
_ELSEWHERE = "    made, arguments = elsewhere(made, arguments)\n"
_MAIN = """

def run(text, name):
    try:
        call, made, arguments, earlier = prepared(load(text, name))
    except Exception as error:
        return {{"the call raises": f"{{type(error).__name__}}: {{error}}"}}
    how = {how!r}
    more = {{"module": sys.modules[name], "earlier": earlier}}
    return observe(call, made, arguments, how, seed={seed!r}, steps={steps!r}, **more)


if __name__ == "__main__":
    sys.exit(show(run(ORIGINAL, "original"), run(CHANGED, "changed"), {what!r}, {least!r}))
"""


@dataclass(frozen=True, slots=True)
class Versions:
    """The original and what it became."""

    job: Job
    original: Target
    changed: str
    loaded: Loaded | None
    """What the changed text became; None if it does not load."""


class Program(NamedTuple):
    """A program that shows a difference, or why there is none."""

    text: str
    why_not: str = ""


@runs_with_target
def write_program(versions: Versions, shown: Counterexample, words: str) -> Program:
    """Return a program that shows a difference.

    It has been run: in this process, where it must end with status 1.
    """
    try:
        call = _call_of(versions.original.on_host(), shown.one)
    except CannotSpellError as error:
        return Program("", f"the call cannot be written as text: {error}")
    ways = {loaded.way for loaded in (versions.original.loaded, versions.loaded) if loaded}
    # A parameter may have another name: only who passes it by name sees that.
    calls = [call, replace(call, by_name=True)] if _OTHER_NAME in words else [call]
    for partly in (False, True):
        if partly or "partly" not in ways:
            whole = partly or ways != {"exactly"}
            if is_virtual() and _needs_npufix(versions, call, whole=whole, partly=partly):
                return Program("", "its operators of torch_npu run on the virtual NPU only")
            for one in calls:
                text = _text(versions, one, shown, words, partly=partly, whole=whole)
                if try_call(lambda: _run(text), _RUN_S).error == "SystemExit: 1":  # noqa: B023 - at once
                    return Program(text)
    return Program("", "a program that holds both versions and this call sees none")


def _run(text: str) -> None:
    code = compile(text, "counterexample", "exec", dont_inherit=True)
    exec(code, {"__name__": "__main__"})  # noqa: S102 - the text was put together here


def _text(  # noqa: PLR0913 - what the program consists of
    versions: Versions,
    call: _Call,
    shown: Counterexample,
    words: str,
    *,
    partly: bool,
    whole: bool,
) -> str:
    job, one = versions.job, shown.one
    texts = [_find_needed(t, job.qualname, whole=whole) for t in (job.original, versions.changed)]
    prepared = _prepare(versions.original, one, call)
    npufix = _needs_npufix(versions, call, whole=whole, partly=partly) or "npufix" in prepared
    head = _HEAD.format(
        qualname=job.qualname,
        words=_wrap(words),
        needs="torch and npufix" if npufix else "torch",
    )
    if npufix:
        head += _INSTALL.format(version=job.torch_npu_version)
    main = _MAIN.format(
        how=(one.gradients, *call.constants, *(["second"] if one.second else [])),
        seed=one.case.seed,
        steps=one.case.steps,
        what=shown.difference.what,
        least=shown.difference.least,
    )
    quoted = f"\nORIGINAL = {_quote(texts[0])}\n\nCHANGED = {_quote(texts[1])}\n"
    loading = _loading(job, partly=partly)
    if job.others:
        loading += _others(job)
        main = main.replace("show(run(", "show(in_its_world(").replace(", run(", ", in_its_world(")
    return f"{head}{quoted}{loading}{prepared}\n\n{_runtime()}{main}"


def _others(job: Job) -> str:
    """Return what gives each version its own version of the other files of the change."""
    texts = {o.path: (o.original, o.patched) for o in job.others if o.path != job.path}
    return write_program_part(texts, (job.root, str(package_of(Path(job.path))[1])))


def _needs_npufix(versions: Versions, call: _Call, *, whole: bool, partly: bool) -> bool:
    """Say whether a program cannot do with torch alone."""
    job = versions.job
    texts = [_find_needed(t, job.qualname, whole=whole) for t in (job.original, versions.changed)]
    return partly or "npufix" in call.made or any(w in t for w in _NPU for t in texts)


def _loading(job: Job, *, partly: bool) -> str:
    if partly:
        return _LOAD_PARTLY.format(path=job.path, root=job.root, qualname=job.qualname)
    package, folder = package_of(Path(job.path))
    folders = "".join(f"sys.path.append({str(f)!r})\n" for f in dict.fromkeys((folder, job.root)))
    return _LOAD.format(package=package) + "\n\n" + folders


def _find_needed(text: str, qualname: str, *, whole: bool) -> str:
    """Return the statements of a module that a function needs, as they are written."""
    tree = None if whole else try_call(lambda: parse_once(text), CALL_S).value
    if not isinstance(tree, ast.Module):
        return text
    lines = text.splitlines(keepends=True)
    parts = []
    for statement in slice_module(tree, qualname.partition(".")[0]):
        decorators: Sequence[ast.expr] = getattr(statement, "decorator_list", [])
        first = min([statement.lineno, *(d.lineno for d in decorators)])
        parts.append("".join(lines[first - 1 : statement.end_lineno]).rstrip() + "\n")
    lazy = "from __future__ import annotations"
    if lazy in text and not any(lazy in part for part in parts):
        parts.insert(0, lazy + "\n")
    return "".join(parts)


def _quote(text: str) -> str:
    if "'''" in text or text.rstrip("\n").endswith(("\\", "'")):
        return repr(text)
    return f"r'''\n{text}'''"


def _wrap(words: str) -> str:
    plain = words.replace("\\", "/").replace('"', "'")
    return textwrap.fill(plain, 76, break_long_words=False, break_on_hyphens=False)


def _runtime() -> str:
    """Return the text of what every program does with its call."""
    source = inspect.getsource(replay)
    return re.sub(r"  # noqa.*", "", source[source.index("def generator") :])


def _call_before(target: Target, one: CaseRun, calls: str) -> str:
    """Return the text that calls methods before, with the training between them."""
    text = f"\n    for number, (method, given) in enumerate({calls}):\n        method(**given)"
    made = target.make_object(one.case.assignment.recipe)
    own = _spell(move_weights)
    return text + (f"\n        {own}(made, number)" if list_trained(made) else "")


def _bind(one: CaseRun, call: _Call) -> str:
    """Return the text that has optimisers train what is beside them."""
    made = {n: s for n, s in one.case.assignment.specs.items() if isinstance(s, MadeArgument)}
    own = {n: s for n, s in made.items() if n in call.arguments and not s.kind}
    given = fill_optimizers({n: s.make() for n, s in own.items()})
    plain = [n for n, text in call.arguments.items() if text == DESCENT]
    losses = any(isinstance(value, LossOfWeights) for value in given.values())
    if losses or (plain and not list_modules(given)):
        fill, bind = _spell(fill_optimizers), _spell(bind_optimizers)
        return f"    {bind}({fill}(arguments), {one.case.seed})\n"
    return "".join(map(_BOUND.format, plain))


def _spell_remembered(call: _Call) -> str:
    """Return the text that says what optimisers have kept of earlier steps."""
    remembers = any(f".{remembering.__name__}(" in text for text in call.arguments.values())
    return f"    {_spell(remember)}(arguments, made)\n" if remembers else ""


def _spell_left(call: _Call) -> str:
    """Return the text that leaves the gradients of a step before."""
    held = "arguments" if call.made == "None" else "{**arguments, 'self': made}"
    return f"    {_spell(leave_gradients)}({held})\n"


def _spell(function: Callable[..., object]) -> str:
    """Return how a program names a function of npufix."""
    return f"__import__({function.__module__!r}, fromlist=['']).{function.__name__}"


def _prepare(target: Target, one: CaseRun, call: _Call) -> str:
    """Return the function of the program that makes the object and the arguments."""
    keywords = set(call.arguments) if call.by_name else target.keywords(call.arguments)
    specs = one.case.assignment.specs
    texts = {n: f"passed[{n!r}]" for n in call.arguments}
    spread = [p.name for p in target.parameters() if p.spread and p.name in texts]
    texts |= {n: f"*{texts[n]}" for n in spread}
    texts |= {n: f"iter({t})" for n, t in texts.items() if getattr(specs.get(n), "walked", False)}
    given = [f"{n}={t}" if n in keywords else t for n, t in texts.items()]
    function = f"module.{target.qualname.partition('.<locals>')[0]}"
    function += ".fget" if target.is_property else ""
    if target.applied is not None:
        function = f"module.{target.applied.__qualname__}.apply"
    given = (["made"] if call.made != "None" else []) + given
    if target.takes_steps:
        given.insert(0, function)
        function = _spell(take_steps)
    pairs = target.told.linked
    linked = _LINKED.format(pairs) if pairs else ""
    needed = (link, is_floating, compute_from) if pairs else ()
    autocast = 'with torch.autocast("cpu", torch.bfloat16):\n            '
    is_module = target.owner is not None and issubclass(target.owner, torch.nn.Module)
    mode = f"\n    made.train({one.case.training})" if is_module else ""
    if call.made != "None" and not (is_module or one.case.training):
        held = "(m for m in vars(made).values() if isinstance(m, torch.nn.Module))"
        mode = f"\n    for held in {held}:\n        held.eval()"
    return "".join(f"\n\n{inspect.getsource(one)}" for one in needed) + _PREPARED.format(
        made=call.made,
        mode=mode,
        before=_call_before(target, one, call.before) if call.before else "",
        arguments="".join(f"        {n!r}: {text},\n" for n, text in call.arguments.items()),
        earlier="{" + ", ".join(f"{n!r}: {t}" for n, t in call.earlier.items()) + "}"
        if call.earlier
        else None,
        bound=_bind(one, call)
        + _spell_remembered(call)
        + (_spell_left(call) if one.case.left else "")
        + ("" if one.case.training else _EVALUATED)
        + (_SHARED.format(*one.case.shared) if any(one.case.shared) else "")
        + (_ELSEWHERE if one.device else ""),
        returned="on_meta(call)" if one.device else "call",
        function=function,
        within=linked + (autocast if one.case.autocast else ""),
        given=", ".join(given),
    )


@dataclass(frozen=True, slots=True)
class _Call:
    """The texts of a call."""

    arguments: Mapping[str, str]
    made: str
    """The object that it is made on; ``None`` for a function."""
    constants: tuple[str, ...]
    """The arguments that take no gradient."""
    earlier: Mapping[str, str] = field(default_factory=dict)
    """Those of a call that comes first."""
    before: str = ""
    """The methods that are called before, each with its arguments."""
    by_name: bool = False
    """Whether all arguments are passed by name."""


def _call_of(target: Target, one: CaseRun) -> _Call:
    case, namespace = one.case, target.loaded.namespace
    recipe = case.assignment.recipe
    used = target.prepare(case, one.dtype)
    made = "None"
    if target.owner is not None and recipe is not None:
        given = recipe.given(target.loaded.find)
        owner = recipe.owner(target.owner, target.loaded.find)
        if recipe.attributes is None:
            # What a stand-in configuration is asked for is known once it has been asked.
            try_call(lambda: target.invoke((owner(**given),), used.arguments), CALL_S)
        made = _make(target, recipe, given)
    else:
        try_call(lambda: used.call(used.arguments), CALL_S)
    fresh = target.prepare(case, one.dtype)
    specs = case.assignment.specs
    arguments = {}
    for name, value in fresh.arguments.items():
        asked = used.arguments[name] if isinstance(specs[name], MadeArgument) else value
        arguments[name] = _argument(specs[name], asked, namespace, one.dtype)
    first = () if fresh.earlier is None else fresh.earlier.items()
    own = specs if case.earlier is None else case.earlier.specs
    earlier = {name: _argument(own[name], value, namespace) for name, value in first}
    dtype = torch.float32 if case.float32_weights else one.dtype
    if made != "None":
        tables = list_tables(target.make_object(recipe), recipe.arguments if recipe else ())
        made = f"with_weights({', '.join([made, str(dtype), *map(repr, tables)])})"
    made = f"coarsened({made})" if recipe is not None and recipe.coarse else made
    for name, number in recipe.filled if recipe is not None else ():
        made = f"filled({made}, {name!r}, {number})"
    return _Call(arguments, made, tuple(sorted(used.constants)), earlier, _list_before(target, one))


def _list_before(target: Target, one: CaseRun) -> str:
    """Return the text of the methods that are called before, and with what."""
    recipe, namespace = one.case.assignment.recipe, target.loaded.namespace
    history = () if recipe is None else recipe.history

    def make(given: Mapping[str, Spec], seed: int, flavour: Flavour) -> dict[str, object]:
        find, digits = target.loaded.find, one.case.digits
        return materialise(tie_ends(given), flavour, seed, one.dtype, digits, find=find)

    specs = [earlier for earlier in history for _ in range(earlier.times)]
    texts = []
    for earlier, (method, given) in zip(specs, list_calls(history, make), strict=True):
        kinds = dict(earlier.arguments)
        pairs = (f"{n!r}: {_argument(kinds[n], v, namespace)}" for n, v in given.items())
        texts.append(f"(made.{method}, {{{', '.join(pairs)}}})")
    return f"[{', '.join(texts)}]" if texts else ""


def _make(target: Target, recipe: Recipe, given: Mapping[str, object]) -> str:
    owner = f"module.{recipe.kind or target.qualname.rpartition('.')[0]}"
    late = dict(recipe.late)
    values = materialise(late, "ordinary", 0, torch.float32)
    held = [f"{n}={_argument(late[n], value, {})}" for n, value in values.items()]
    if recipe.attributes is not None:
        way = f"__import__({recipe.__module__!r}, fromlist=['']).Recipe"
        made = f"{way}(attributes={recipe.attributes!r}).build({owner})"
    else:
        specs = dict(recipe.arguments)
        namespace = target.loaded.namespace
        texts = (f"{n}={_argument(specs[n], value, namespace)}" for n, value in given.items())
        made = f"{owner}({', '.join(texts)})"
        chosen = [(p.split("."), v) for p, v in recipe.chosen if p.startswith("self.")]
        held += [f"{p[1]}={v!r}" for p, v in chosen if len(p) == 2]  # noqa: PLR2004
    return f"having({made}, {', '.join(held)})" if held else made


def _find_in(namespace: Mapping[str, object], name: str) -> object:
    first, _, inner = name.partition("/")
    return find_beside(namespace.get(first), inner) if inner else namespace.get(first)


def _argument(
    spec: Spec,
    value: object,
    namespace: Mapping[str, object],
    dtype: torch.dtype = torch.float32,
) -> str:
    if isinstance(spec, MadeArgument) and spec.given is not None:
        kinds = dict(spec.given)
        find = partial(_find_in, namespace)
        held = materialise(kinds, "ordinary", 0, torch.float32, find=find)
        texts = (f"{n}={_argument(kinds[n], v, namespace, dtype)}" for n, v in held.items())
        made = f"{spell_kind(spec.kind)}({', '.join(texts)})"
        made = f"torch.nn.Sequential({made}, {made})" if spec.doubled else made
        return f"with_weights({', '.join([made, str(dtype)])})"
    if not isinstance(spec, MadeArgument) or not spec.code:
        return write_expression(value, namespace)
    weights = value.parameters() if isinstance(value, torch.nn.Module) else ()
    low = {p.dtype for p in weights} - {torch.float32}
    return f"{spec.code}.to({low.pop()})" if low else spec.code
