"""Optimizers whose class or settings stand in a table, a dictionary or a configuration."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal, behind_arguments
from npufix.rewriters.facts.module_facts import mentions
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

CONFIGURED = re.compile(r"""\btype\s*=\s*['"](AdamW|Adam|SGD)['"]""")
"""How a configuration file, which imports nothing of torch, names an optimizer."""
_CLASSES = frozenset({"Adam", "AdamW", "SGD", "Adadelta", "RMSprop"})
_DECIDED = frozenset({"fused", "foreach", "capturable", "differentiable"})
"""Settings beside which ``fused`` is an error, or which decide about it."""
_TABLE = (
    "its class comes out of a table: give torch.optim.AdamW the setting fused=True; instead of "
    "Adam and SGD take torch_npu.optim.NpuFusedAdam and NpuFusedSGD"
)
_COMBINED = (
    "write type='NpuFused{0}', which mmengine registers where torch_npu is installed; with mmcv of "
    "1.x register torch_npu.optim.NpuFused{0} in mmcv.runner.OPTIMIZERS first. Measure it: one "
    "model lost 10 % with it"
)
_SCALED = (
    "write type='NpuFusedAdamW', which mmengine registers where torch_npu is installed: torch_npu "
    "ignores what a GradScaler tells the fused AdamW of torch"
)


def find_optimizers(here: Surroundings) -> Iterator[Proposal]:
    """Yield optimizers that could be fused, which the pattern of a constructor does not show."""
    for node in here.nodes:
        if isinstance(node, ast.Call):
            named = {k.arg: k.value for k in node.keywords}
            if named.keys() & _DECIDED:
                continue
            yield from _made(here, node, named)
            yield from _configured(here, node, named)
            yield from _of_trainer(here, node, named)


def _made(
    here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``torch.optim.AdamW(params, **settings)`` and ``table[name](params)``."""
    if here.flow.names.dotted(call.func) == "torch.optim.AdamW" and None in named and call.args:
        given = _settings(here, named[None])
        if given is not None and given & _DECIDED:
            return
        proven = {"fused-undecided"} if given is not None else set()
        proven |= set() if _scales(here) else {"no-grad-scaler"}
        yield from _written(here, call, ", fused=True", proven)
    elif call.args and _is_table(here, call.func):
        yield Proposal(call, _TABLE)


def _is_table(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code picks a class of ``torch.optim`` by name."""
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
    return False


def _holds_classes(here: Surroundings, table: ast.Dict) -> bool:
    names = [here.flow.names.dotted(value) or "" for value in table.values]
    return any(n.startswith("torch.optim.") and n.rpartition(".")[2] in _CLASSES for n in names)


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


def _configured(
    here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``dict(type="AdamW", lr=...)`` of the configurations of OpenMMLab."""
    match call.func, named.get("type"):
        case ast.Name("dict"), ast.Constant(str(kind)) if kind in _CLASSES and "lr" in named:
            if not _is_for_optimizer(here, call) or None in named:
                return
            if kind != "AdamW":
                yield Proposal(call, _COMBINED.format(kind))
            elif _scales(here):
                yield Proposal(call, _SCALED)
            else:
                yield from _written(
                    here, call, ", fused=True", {"fused-undecided", "parameters-on-npu"}
                )


def _is_for_optimizer(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a dictionary is what an optimizer is made of."""
    match here.parents.get(id(call)):
        case ast.keyword(name) | ast.Assign([ast.Name(name)]) if name and "optim" in name.lower():
            return True
    return False


def _of_trainer(
    here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``TrainingArguments(optim="adamw_torch")`` of transformers."""
    match named.get("optim"):
        case ast.Constant("adamw_torch") as chosen if last_name(call.func).endswith(
            ("TrainingArguments", "Config")
        ):
            quote = here.text(chosen)[0]
            text = f"{quote}adamw_torch_fused{quote}"
            proven = {"fused-undecided", "parameters-on-npu"}
            proven |= set() if {"fp16", None} & named.keys() else {"no-grad-scaler"}
            yield Proposal(
                chosen,
                form="by_default",
                changes=(Change(here.span(chosen), text),),
                shown=f"optim={text}",
                proven=frozenset(proven),
            )


def _written(here: Surroundings, call: ast.Call, text: str, proven: set[str]) -> Iterator[Proposal]:
    at = behind_arguments(call, here.lines)
    if at is not None:
        shown = re.sub(r"\s+", " ", here.text(call)).rstrip(" ,)")
        yield Proposal(
            call,
            changes=(Change(at, text),),
            shown=f"{shown}{text})",
            proven=frozenset(proven),
        )


def _scales(here: Surroundings) -> bool:
    """Tell whether gradients are scaled, as far as this file says."""
    words = ("GradScaler", "scaler", "AmpOptimWrapper", "loss_scale", "fp16")
    return mentions(here.flow.names, words) or any(
        isinstance(n, ast.Constant) and n.value in words
        for n in (walk(here.flow.names.tree) if here.flow.names.tree else ())
    )
