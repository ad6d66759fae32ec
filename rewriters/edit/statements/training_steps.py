"""What training does beside the model: batches loaded, gradients clipped and reduced."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal, behind_arguments
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_FUSED = "torch_npu.optim.NpuFused"
_PARALLEL = re.compile(
    r"DistributedDataParallel|\bDDP\b|FSDP|FullyShardedDataParallel|fully_shard|hsdp|fsdp"
)
_HELD_BACK = re.compile(
    r"no_sync|set_requires_gradient_sync|set_is_last_backward|require_backward_grad_sync"
    r"|require_grad_sync|[aA]ccelerator|[dD]eep[sS]peed"
)
_ACCUMULATES = re.compile(r"(?i)accum|grad_acc|iters_to_|micro_?batch")


def find_clipping(here: Surroundings) -> Iterator[Proposal]:
    """Yield ``clip_grad_norm_`` in front of the step of a fused optimizer of torch_npu."""
    for node in here.nodes:
        match node:
            case ast.Call(function, [ast.Call() as parameters, limit], keywords) if (
                here.flow.names.dotted(function) or ""
            ).endswith("clip_grad.clip_grad_norm_") or (
                here.flow.names.dotted(function) == "torch.nn.utils.clip_grad_norm_"
            ):
                optimizer, made = _optimizer_after(here, node)
                if made is None or {k.arg for k in keywords} - {"norm_type"}:
                    continue
                power = "".join(f", {here.text(k.value)}" for k in keywords)
                text = f"{optimizer}.clip_grad_norm_fused_({here.text(limit)}{power})"
                same = bool(made.args) and ast.unparse(made.args[0]) == ast.unparse(parameters)
                yield Proposal(
                    node,
                    changes=(Change(here.span(node), text),),
                    shown=text,
                    proven=frozenset({"all-parameters"} if same else ()),
                )


def _optimizer_after(here: Surroundings, clip: ast.Call) -> tuple[str, ast.Call | None]:
    """Return the one optimizer whose step comes behind, and its constructor if it is fused."""
    steps = {
        ast.unparse(n.func.value)
        for n in here.nodes
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "step"
        and n.lineno > clip.lineno and "optim" in ast.unparse(n.func.value).lower()
    }  # fmt: skip
    if len(steps) != 1 or here.flow.names.tree is None:
        return "", None
    (name,) = steps
    made = [
        n.value
        for n in walk(here.flow.names.tree)
        if isinstance(n, ast.Assign) and any(ast.unparse(t) == name for t in n.targets)
    ]
    if len(made) != 1 or not isinstance(made[0], ast.Call):
        return name, None
    is_fused = (here.flow.names.dotted(made[0].func) or "").startswith(_FUSED)
    return name, made[0] if is_fused else None


def find_early_reductions(here: Surroundings) -> Iterator[Proposal]:
    """Yield backward passes of accumulated gradients, each of which reduces them over the ranks."""
    if _PARALLEL.search("".join(here.lines)) is None:
        return
    if _HELD_BACK.search(here.text(here.flow.cls or here.flow.function)):
        return
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(_, "backward")):
                loop = here.loop_of(node)
                if isinstance(loop, (ast.For, ast.While)) and _is_accumulated(loop):
                    yield Proposal(node, _ADVICE)


_ADVICE = (
    "the gradients are reduced over all ranks in every round, and needed in the last: run forward "
    "and backward of the others below `with model.no_sync():` (DDP, FSDP1), or call "
    "model.set_requires_gradient_sync(is_last) before them (fully_shard). FSDP keeps whole "
    "gradients until then"
)


def _is_accumulated(loop: ast.For | ast.While) -> bool:
    """Tell whether a loop runs so many rounds for one step of the optimizer."""
    for node in walk(loop):
        if isinstance(node, ast.If) and _steps(node) and _counts_rounds(node.test):
            return True
    # for _ in range(accumulation_steps): ... with the step behind it
    return (
        isinstance(loop, ast.For)
        and _ACCUMULATES.search(ast.unparse(loop.iter)) is not None
        and not _steps(loop)
    )


def _steps(node: ast.AST) -> bool:
    return any(
        isinstance(n, ast.Call) and last_name(n.func) == "step"
        and isinstance(n.func, ast.Attribute) and "optim" in ast.unparse(n.func.value).lower()
        for n in walk(node)
    )  # fmt: skip


def _counts_rounds(test: ast.expr) -> bool:
    text = ast.unparse(test)
    return _ACCUMULATES.search(text) is not None and ("%" in text or "last" in text or "==" in text)


_LOADERS = frozenset({"torch.utils.data.DataLoader", "torch.utils.data.dataloader.DataLoader"})
_TRAINS = re.compile(r"(?i)train")
_BESIDE = re.compile(r"(?i)val|test|eval|valid|predict|infer")
_FEW = 1


def find_data_loaders(here: Surroundings) -> Iterator[Proposal]:
    """Yield loaders of training data without worker processes that stay, or pinned batches."""
    for node in here.nodes:
        if not isinstance(node, ast.Call) or here.flow.names.dotted(node.func) not in _LOADERS:
            continue
        named = {k.arg: k.value for k in node.keywords}
        if None in named or not _is_for_training(here, node):
            continue
        added = dict(_missing(named))
        changes = [Change(here.span(named[name]), "True") for name in added if name in named]
        text = "".join(f", {name}=True" for name in added if name not in named)
        at = behind_arguments(node, here.lines)
        if text and at is not None:
            changes.append(Change(at, text))
        if added and (at is not None or not text):
            shown = f"DataLoader(..., {', '.join(f'{name}=True' for name in added)})"
            yield Proposal(node, changes=tuple(changes), shown=shown)
        elif _has_few_workers(named):
            yield Proposal(node, _WORKERS)


_WORKERS = (
    "one process at most makes the batches: num_workers=8, persistent_workers=True, "
    "pin_memory=True, prefetch_factor=4; at most the cores of the host divided by its NPUs"
)


def _is_for_training(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether the names around say that batches to train with are loaded."""
    statement = here.statement_of(call)
    near = [*here.flow.qualname.split("."), here.text(call)]
    if isinstance(statement, ast.Assign):
        near += [ast.unparse(target) for target in statement.targets]
    words = " ".join(near)
    return _TRAINS.search(words) is not None and _BESIDE.search(words) is None


def _has_few_workers(named: dict[str | None, ast.expr]) -> bool:
    match named.get("num_workers"):
        case None:
            return True
        case ast.Constant(int(count)):
            return count <= _FEW
    return False


def _missing(named: dict[str | None, ast.expr]) -> Iterator[tuple[str, bool]]:
    """Yield the settings that are off though worker processes load the data."""
    match named.get("num_workers"):
        case None:
            return
        case ast.Constant(int(count)) if count <= _FEW:
            return
    certain = isinstance(named["num_workers"], ast.Constant)
    for name in ("pin_memory", "persistent_workers"):
        if name == "persistent_workers" and not certain:
            continue  # an error where there are no workers
        match named.get(name):
            case None | ast.Constant(False):
                yield name, True
