"""Data loaders whose batches the device waits for: how they are made."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal, behind_arguments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

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
