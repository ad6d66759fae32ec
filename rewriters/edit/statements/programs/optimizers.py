"""What training does beside the model: optimizers, gradients clipped."""

from __future__ import annotations

import ast
import re
from itertools import pairwise
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.programs.trainer_arguments import of_subclasses, of_trainer
from npufix.rewriters.edit.statements.proposal import Proposal, more_arguments, put, text_after
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.facts.module_facts import mentions
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_CLASSES = frozenset({"Adam", "AdamW", "SGD", "Adadelta", "RMSprop"})
_MADE_FUSED = re.compile(r"Fused\w*(Adam|SGD|LAMB|Lamb)")
_OF_CUDA = "apex.optimizers.F"
_OF_APEX = {
    "apex.optimizers.FusedAdam": "NpuFusedAdamW",
    "apex.optimizers.FusedLAMB": "NpuFusedLamb",
    "apex.optimizers.FusedSGD": "NpuFusedSGD",
}
"""What NVIDIA's apex fuses, and the class of torch_npu.optim."""
_FUSES = re.compile(r"(use_|is_|can_)?fused(_(adam\w*|optim\w*|available|supported))?")
"""Says that an optimizer is fused, and not ``use_fused_attn`` or ``unfused``."""
_FUSED = re.compile(r"\bfused\b")
_SAY = frozenset({"print", "debug", "info", "log"})
_MAKES_OTHERS = re.compile(r"(Config|Factory|Registry|Builder)$")
DECIDED = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings beside which ``fused`` is an error, or which decide about it."""
SHARDS = re.compile(r"FSDP|FullyShardedDataParallel|fully_shard|DTensor|[dD]eep[sS]peed|ZeroRedund")
_TABLE = (
    "its class is chosen at run time: give torch.optim.AdamW the setting fused=True; instead of "
    "Adam and SGD take torch_npu.optim.NpuFusedAdam and NpuFusedSGD"
)
_LISTED = (
    "its class is chosen at run time: give torch.optim.AdamW the setting fused=True, and write "
    "torch_npu.optim.NpuFusedAdam and NpuFusedSGD here for Adam and SGD, with zero_grad() without "
    "set_to_none=True; measure those, one model lost 10 % with them"
)
_PARTIAL = (
    "its class is handed on: write NpuFusedAdam or NpuFusedSGD of torch_npu.optim in its place"
)
_ADAMW = "torch.optim.AdamW"
_COMBINED_ONLY = frozenset({"torch.optim.Adam", "torch.optim.SGD"})
"""What has no fused form of torch on the NPU, but one of torch_npu."""
_SCALED = (
    "write type='NpuFusedAdamW', which mmengine registers where torch_npu is installed: torch_npu "
    "ignores what a GradScaler tells the fused AdamW of torch"
)


def find_optimizers(here: Surroundings) -> Iterator[Proposal]:
    """Yield optimizers that could be fused, which the pattern of a constructor does not show."""
    yield from _find_tables(here)
    yield from of_subclasses(here)
    for node in here.nodes:
        if isinstance(node, ast.Compare) and _decides_on_fusing(here, node):
            yield from _also_on_npu(here, node)
        if isinstance(node, ast.Call):
            if (fused := _OF_APEX.get(here.dotted(node.func) or "")) and not _has_own(here):
                yield Proposal(node, _say_apex(fused))
            named = {k.arg: k.value for k in node.keywords}
            if named.keys() & DECIDED:
                continue
            yield from _find_constructions(here, node, named)
            yield from _find_configured(here, node, named)
            yield from of_trainer(here, node, named)


def _find_tables(here: Surroundings) -> Iterator[Proposal]:
    """Yield a table of classes that other modules read: ``{"adamw": AdamW, "sgd": SGD}``."""
    if here.flow.function.name != MODULE or here.flow.names.tree is None:
        return
    nodes = list(walk(here.flow.names.tree))
    picked = {
        target.id: n.value
        for n in nodes
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Name)
    }
    calls = [n.func for n in nodes if isinstance(n, ast.Call)]
    calls += [picked[c.id] for c in calls if isinstance(c, ast.Name) and c.id in picked]
    called = {ast.unparse(c.value) for c in calls if isinstance(c, ast.Subscript)}
    for statement in here.flow.function.body:
        match statement:
            case ast.Assign([ast.Name(name)], ast.Dict(values=classes)) if name not in called:
                pass
            case ast.Assign([ast.Name(name)], ast.Call(ast.Name("dict"), [], keywords)):
                classes = [k.value for k in keywords]
            case _:
                continue
        known = [c for c in classes if could_be_fused(here, c)]
        if len(known) > 1 and not any(_MADE_FUSED.search(ast.unparse(c)) for c in classes):
            yield Proposal(known[0], _LISTED)


def _decides_on_fusing(here: Surroundings, test: ast.Compare) -> bool:
    """Tell whether ``device_type == "cuda"`` alone says that an optimizer is fused."""
    match test:
        case ast.Compare(ast.Name() | ast.Attribute(), [ast.Eq()], [ast.Constant("cuda")]):
            pass
        case _:
            return False
    inner: ast.AST = test
    for outer in here.around(test):
        match outer:
            # not with ``and torch.cuda.get_device_capability() >= (8, 0)``
            case ast.BoolOp(ast.And(), values) if not any(
                "cuda" in here.text(value) for value in values if value is not inner
            ):
                inner = outer
            case ast.keyword("fused"):
                return True
            case ast.Dict(keys, values):
                at = next((i for i, value in enumerate(values) if value is inner), None)
                key = None if at is None else keys[at]
                return isinstance(key, ast.Constant) and key.value == "fused"
            case ast.Assign([ast.Name(name)]):
                return _FUSES.fullmatch(name) is not None and _only_fuses(here, name)
            case _:
                return False
    return False


def _only_fuses(here: Surroundings, name: str) -> bool:
    """Tell whether nothing else depends on a name: no ``flash if use_fused else plain``."""
    tree = here.flow.names.tree
    of_module = here.flow.function.name == MODULE
    return all(
        any(_fuses(outer, inner, name) for inner, outer in pairwise((node, *here.around(node))))
        for node in walk(tree if tree is not None and of_module else here.flow.function)
        if isinstance(node, ast.Name) and node.id == name and isinstance(node.ctx, ast.Load)
    )


def _fuses(outer: ast.AST, inner: ast.AST, name: str) -> bool:
    """Tell whether what code stands in makes an optimizer fused by it, or only prints it."""
    match outer:
        case (
            ast.keyword("fused")
            | ast.Dict([ast.Constant("fused")])
            | ast.Assign([ast.Subscript(_, ast.Constant("fused"))])
        ):
            return True
        case ast.Assign([ast.Name(again)]):
            return again == name
        case ast.If(test, body):
            return inner is test and all(_FUSED.search(ast.unparse(s)) for s in body)
        case ast.IfExp(test, chosen):
            return inner is test and _FUSED.search(ast.unparse(chosen)) is not None
        case ast.Call(function):
            return last_name(function) in _SAY
    return False


def _also_on_npu(here: Surroundings, test: ast.Compare) -> Iterator[Proposal]:
    """Yield that an NPU has a fused optimizer of torch too: AdamW, and no other one."""
    made = {
        name.rpartition(".")[2]
        for n in here.nodes
        if isinstance(n, ast.Call)
        and (name := here.dotted(n.func) or "").startswith("torch.optim.")
        and "lr_scheduler" not in name
    }
    if made - {"AdamW"}:
        return
    quote = "'" if "'" in here.text(test.comparators[0]) else '"'
    devices = f"({quote}cuda{quote}, {quote}npu{quote})"
    text = f"{here.text(test.left)} in {devices}"
    proven = {"adamw-alone"} if made else set()
    proven |= set() if scales_gradients(here) else {"no-grad-scaler"}
    yield put(here, test, text, form="for_cuda", proven=proven)


def _find_constructions(
    here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``torch.optim.AdamW(params, **settings)``, ``table[name](p)``, ``partial(Adam)``."""
    if None in named and (call.args or len(named) == 1) and could_be_fused(here, call.func):
        yield from _of_settings(here, call, named[None])
    elif call.args and here.dotted(call.func) == _ADAMW and _is_one_of_many(here, call):
        proven = set() if scales_gradients(here) else {"no-grad-scaler"}
        yield from _write(here, call, "fused=True", proven | {"fused-undecided"})
    elif could_be_fused(here, call.func) and call.args and _empties_gradients(here):
        kind = (here.flow.names.dotted(call.func) or "").rpartition(".")[2]
        if isinstance(call.args[0], ast.List):
            return  # of one number or two: ``Adam([log_alpha])``
        if kind != "AdamW" or scales_gradients(here):  # else AdamW is fused as it is
            yield Proposal(call, _say_emptied(kind))
    elif call.args and _is_table(here, call.func) and not _is_for_others(here, call):
        yield Proposal(call, _TABLE)
    elif call.args and here.flow.names.dotted(call.func) == "functools.partial":
        kind = (here.flow.names.dotted(call.args[0]) or "").removeprefix("torch.optim.")
        if kind == "AdamW" and None not in named:
            proven = set() if scales_gradients(here) else {"no-grad-scaler"}
            yield from _write(here, call, "fused=True", proven)
        elif kind in {"Adam", "SGD"}:
            yield Proposal(call, _PARTIAL)


def _names_few(params: ast.expr) -> bool:
    """Tell whether an optimizer is for a number or two: ``[self.log_alpha]``."""
    match params:
        case ast.List(elts) if len(elts) < 4:  # noqa: PLR2004 - as in rule fused-optimizer
            return all(isinstance(e, ast.Name | ast.Attribute) for e in elts)
    return False


def _of_settings(here: Surroundings, call: ast.Call, settings: ast.expr) -> Iterator[Proposal]:
    """Yield an optimizer whose settings are in a dictionary."""
    given = _settings(here, settings)
    if _has_fused(here) or (given is not None and given & DECIDED):
        return
    called = here.dotted(call.func) or ""
    if called == _ADAMW:
        proven = {"fused-undecided"} if given is not None else set()
        proven |= set() if scales_gradients(here) else {"no-grad-scaler"}
        yield from _write(here, call, "fused=True", proven)
    elif called in _COMBINED_ONLY and _is_first_with_settings(here, call):
        yield Proposal(call, _say_handed_in(called.rpartition(".")[2]))


def _is_first_with_settings(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether no other optimizer before it, and no AdamW, gets settings from a dictionary.

    A factory of ten optimizers is one place to look at.
    """
    others = [
        n
        for n in here.nodes
        if isinstance(n, ast.Call)
        and any(k.arg is None for k in n.keywords)
        and (here.dotted(n.func) or "").startswith("torch.optim.")
    ]
    adamw = any(here.dotted(n.func) == _ADAMW for n in others)
    first = min(others, key=lambda n: (n.lineno, n.col_offset), default=None)
    return first is call and not adamw


def _has_own(here: Surroundings) -> bool:
    """Tell whether another branch updates with an Adam of torch, which the NPU runs."""
    called = {here.dotted(n.func) for n in here.nodes if isinstance(n, ast.Call)}
    return not called.isdisjoint({_ADAMW, "torch.optim.Adam"})


def _is_one_of_many(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a comprehension makes an optimizer for each of several models."""
    return any(isinstance(outer, COMPREHENSIONS) for outer in here.around(call))


def _has_fused(here: Surroundings) -> bool:
    """Tell whether the function makes a fused optimizer too, or decides about it.

    ``extra = dict(fused=True) if on_gpu else {}``, ``settings["fused"] = use_fused``; so may a
    function of the module that it calls, ``settings = make_settings(args)``. What NVIDIA's apex
    fuses runs on CUDA alone.
    """
    own, known = here.flow.function, here.flow.names.functions
    called = {last_name(n.func) for n in walk(own) if isinstance(n, ast.Call)}
    nodes = list(walk(own, *(known[name] for name in sorted(called & {*known}))))
    keys = {n.arg for n in nodes if isinstance(n, ast.keyword)}
    # ``if "fused" in name`` asks for another optimizer, and sets nothing
    handed = {ast.unparse(n.value) for n in nodes if isinstance(n, ast.keyword) and n.arg is None}
    tests = (n for n in nodes if isinstance(n, ast.Compare))
    tested = {id(n.left) for n in tests if ast.unparse(n.comparators[0]) not in handed}
    texts = (n for n in nodes if isinstance(n, ast.Constant) and id(n) not in tested)
    keys |= {n.value for n in texts if isinstance(n.value, str)}
    calls, dotted = (n.func for n in nodes if isinstance(n, ast.Call)), here.flow.names.dotted
    made = (last_name(c) for c in calls if not (dotted(c) or "").startswith(_OF_CUDA))
    return not DECIDED.isdisjoint(keys) or any(map(_MADE_FUSED.search, made))


def _empties_gradients(here: Surroundings) -> bool:
    """Tell whether gradients are set to None, which fused optimizers of torch_npu refuse."""
    tree = here.flow.names.tree
    sharded = SHARDS.search("".join(here.lines)) is not None
    return not sharded and any(
        isinstance(n, ast.Call)
        and last_name(n.func) == "zero_grad"
        and any(k.arg == "set_to_none" and ast.unparse(k.value) == "True" for k in n.keywords)
        for n in (walk(tree) if tree else ())
    )


def _say_apex(kind: str) -> str:
    return (
        f"what apex of NVIDIA fuses runs on CUDA alone: torch_npu.optim.{kind} takes the same "
        "groups (NpuFusedAdam for adam_w_mode=False); write weight_decay out, whose default is 0 "
        "in apex. It wants float32 or float16 parameters, a gradient for each of them in every "
        "step, and zero_grad() without set_to_none=True"
    )


def _say_emptied(kind: str) -> str:
    return (
        f"torch_npu.optim.NpuFused{kind} updates in a few kernels, and keeps its gradients: write "
        "zero_grad() without set_to_none=True beside it. Not for bfloat16 parameters; measure it"
    )


def _is_for_others(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether an optimizer is for the host or a number, or a class makes what it is told to.

    ``cpu_adam_optimizer(groups)``; ``cls([self.log_alpha])``; ``OptimizerConfig.build``
    """
    if _names_few(call.args[0]):
        return True
    for_many = here.flow.cls is not None and _MAKES_OTHERS.search(here.flow.cls.name) is not None
    return for_many or "cpu" in last_name(call.func).lower()


def _is_table(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code picks a class of ``torch.optim``, by name or in a branch."""
    match code:
        case ast.Call(ast.Name("getattr"), [module, *_]):
            return here.flow.names.dotted(module) == "torch.optim"
        case ast.Subscript(ast.Dict() as table):
            return _holds_classes(here, table)
        case ast.Subscript(ast.Name(name)):
            tree = here.flow.names.tree
            tables = [
                n.value
                for n in (*walk(here.flow.function), *(tree.body if tree else ()))
                if isinstance(n, ast.Assign)
                and any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
            ]
            return any(isinstance(t, ast.Dict) and _holds_classes(here, t) for t in tables)
        case ast.Name(name):  # ``optimizer_class = torch.optim.AdamW``, in one branch
            return any(
                _is_table(here, value) or could_be_fused(here, value)
                for value in _list_chosen(here, code, name)
            )
    return False


def _list_chosen(here: Surroundings, code: ast.expr, name: str) -> list[ast.expr]:
    """Return what a name may be bound to at a place: what its own branch binds before goes first.

    ``if kind == "lion": cls = Lion; return cls(params)`` makes no other.
    """

    def bound_in(nodes: Iterable[ast.AST]) -> list[ast.expr]:
        assigned = (n for n in nodes if isinstance(n, ast.Assign))
        return [
            n.value
            for n in assigned
            if any(isinstance(t, ast.Name) and t.id == name for t in n.targets)
        ]

    inner: ast.AST = here.statement_of(code)
    while inner is not here.flow.function and isinstance(inner, ast.stmt):
        before = (s for s in here.block_of(inner) if s.lineno < inner.lineno)
        if bound := bound_in(walk(*before)):
            return bound
        inner = next((o for o in here.around(inner) if isinstance(o, ast.stmt)), here.flow.function)
    return bound_in(here.nodes)


def _holds_classes(here: Surroundings, table: ast.Dict) -> bool:
    return any(could_be_fused(here, value) for value in table.values)


def could_be_fused(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is a class of ``torch.optim`` that could be fused."""
    module, _, name = (here.dotted(code) or "").rpartition(".")
    return module == "torch.optim" and name in _CLASSES


def _settings(here: Surroundings, code: ast.expr) -> frozenset[str] | None:
    """Return the names in a dictionary of settings, ``None`` if they are not written here."""
    if isinstance(code, ast.Name):
        bound = [
            n.value
            for n in walk(here.flow.function)
            if isinstance(n, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == code.id for t in n.targets)
        ]
        used = [n for n in walk(here.flow.function) if isinstance(n, ast.Name) and n.id == code.id]
        # Bound once and passed on once: nobody adds to it in between.
        return _settings(here, bound[0]) if len(bound) == 1 and len(used) == 2 else None  # noqa: PLR2004
    match code:
        case ast.Call(ast.Name("dict"), [], keywords) if all(k.arg for k in keywords):
            return frozenset(str(k.arg) for k in keywords)
        case ast.Dict(keys) if all(isinstance(k, ast.Constant) for k in keys):
            return frozenset(str(k.value) for k in keys if isinstance(k, ast.Constant))
    return None


def _find_configured(
    here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``dict(type="AdamW", lr=...)`` of the configurations of OpenMMLab."""
    match call.func, _kind_named(here, named.get("type")):
        case ast.Name("dict"), ast.Constant(str(kind)) if kind in _CLASSES and "lr" in named:
            if not _is_for_optimizer(here, call) or None in named:
                return
            # mmcv of 1.x knows no ``optim_wrapper = dict(optimizer=...)``, and mmengine no other
            old = scales_gradients(here) and isinstance(here.parents.get(id(call)), ast.Assign)
            if kind != "AdamW" or old:
                yield Proposal(call, _say_combined(kind))
            elif scales_gradients(here):
                yield Proposal(call, _SCALED)
            else:
                yield from _write(
                    here, call, "fused=True", {"fused-undecided", "parameters-on-npu"}
                )


def _kind_named(here: Surroundings, code: ast.expr | None) -> ast.expr | None:
    """Return ``"AdamW"`` where a class stands for it: ``type=AdamW``, ``optim_type = AdamW``."""
    tree = here.flow.names.tree
    if isinstance(code, ast.Name) and tree is not None:
        bound = [
            n.value
            for n in tree.body
            if isinstance(n, ast.Assign) and ast.unparse(n.targets[0]) == code.id
        ]
        code = bound[0] if len(bound) == 1 else code
    if code is not None and could_be_fused(here, code):
        return ast.Constant(last_name(code))
    return code


def _is_for_optimizer(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a dictionary is what an optimizer is made of."""
    match here.parents.get(id(call)):
        case ast.keyword(name) | ast.Assign([ast.Name(name)]) if name and "optim" in name.lower():
            return True
    return False


def _write(here: Surroundings, call: ast.Call, text: str, proven: set[str]) -> Iterator[Proposal]:
    added = more_arguments(call, here.lines, text)
    if added is not None:
        yield Proposal(
            call,
            changes=(added,),
            shown=text_after(here, call, [added]),
            proven=frozenset(proven),
        )


def scales_gradients(here: Surroundings) -> bool:
    """Tell whether gradients are scaled, as far as this file says."""
    words = ("GradScaler", "scaler", "AmpOptimWrapper", "loss_scale", "fp16")
    return mentions(here.flow.names, words) or any(
        isinstance(n, ast.Constant) and n.value in words
        for n in (walk(here.flow.names.tree) if here.flow.names.tree else ())
    )


def _say_handed_in(kind: str) -> str:
    return (
        f"torch_npu.optim.NpuFused{kind} updates in a few kernels and takes the same settings, but "
        "for foreach, maximize, capturable and differentiable. Measure it: one model lost 10 % "
        "with it"
    )


def _say_combined(kind: str) -> str:
    return (
        f"write type='NpuFused{kind}', which mmengine registers where torch_npu is installed; with "
        f"mmcv of 1.x register torch_npu.optim.NpuFused{kind} in mmcv.runner.OPTIMIZERS first. "
        "Measure it: one model lost 10 % with it"
    )
