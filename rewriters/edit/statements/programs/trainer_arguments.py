"""The optimizer that the Trainer of transformers is told to make: ``optim="adamw_torch"``."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_PROVEN = frozenset({"fused-undecided", "parameters-on-npu"})


def of_trainer(
    here: Surroundings, call: ast.Call, named: Mapping[str | None, ast.expr]
) -> Iterator[Proposal]:
    """Yield ``TrainingArguments(optim="adamw_torch")`` of transformers."""
    chosen = named.get("optim")
    if chosen is not None and _trains(call, named):
        scaled = not {"fp16", None}.isdisjoint(named)
        yield from _fuse(here, chosen, _PROVEN if scaled else _PROVEN | {"no-grad-scaler"})


def of_subclasses(here: Surroundings) -> Iterator[Proposal]:
    """Yield the default of arguments of one's own, which a command line may ask for fp16.

    ``class Arguments(TrainingArguments): optim: str = field(default="adamw_torch")``
    """
    tree = here.flow.names.tree
    if here.flow.function.name != MODULE or tree is None:
        return
    classes = [c for c in tree.body if isinstance(c, ast.ClassDef)]
    own = [c for c in classes if any(_is_of_trainer(base) for base in c.bases)]
    for field in (statement for cls in own for statement in cls.body):
        match field:
            case ast.AnnAssign(ast.Name("optim"), _, ast.Call(maker, _, keywords)):
                values = [k.value for k in keywords if k.arg == "default"]
                if last_name(maker) == "field" and values:
                    yield from _fuse(here, values[0], _PROVEN)
            case ast.AnnAssign(ast.Name("optim"), _, ast.Constant() as value):
                yield from _fuse(here, value, _PROVEN)


def _is_of_trainer(base: ast.expr) -> bool:
    return last_name(base).endswith("TrainingArguments")


def _fuse(here: Surroundings, chosen: ast.expr, proven: frozenset[str]) -> Iterator[Proposal]:
    match chosen:
        case ast.Constant("adamw_torch"):
            quote = here.text(chosen)[0]
            text = f"{quote}adamw_torch_fused{quote}"
            yield Proposal(
                chosen,
                form="by_default",
                changes=(Change(here.span(chosen), text),),
                shown=f"optim={text}",
                proven=proven,
            )


def _trains(call: ast.Call, named: Mapping[str | None, ast.expr]) -> bool:
    """Tell whether a call configures a Trainer of transformers or TRL: ``SFTConfig(...)``.

    A configuration of optimizers alone is read by others, which may know no ``adamw_torch_fused``.
    """
    name = last_name(call.func)
    if name.endswith("TrainingArguments"):
        return True
    asked = {"output_dir", "num_train_epochs", "per_device_train_batch_size"}
    return name.endswith("Config") and not asked.isdisjoint(map(str, named))
