"""Loaders of training data: worker processes that stay, pinned batches, enough of both."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.edit.statements.proposal import Change, Proposal, more_arguments
from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_LOADERS = frozenset(
    {
        "torch.utils.data.DataLoader",
        "torch.utils.data.dataloader.DataLoader",
        "torchdata.stateful_dataloader.StatefulDataLoader",
    }
)
_TRAINS = re.compile(r"(?i)train|(?<![a-z])(drop_last=True|shuffle=(?!False|None|0\b))")
"""Also ``shuffle=sampler is None``: who only evaluates writes ``shuffle=False``."""
_BESIDE = re.compile(r"(?i)val|test|eval|valid|predict|infer|calib|demo|debug|dummy|sanity|smoke")
_EACH_TIME = re.compile(
    r"_*(\w+_)?(epoch|forward|learn|optimi[sz]e|round|step|update)(_(?!loaders?|data)\w*)?"
)
"""What is called again and again: workers of a loader that it makes are started anew each time."""
_IN_MEMORY = re.compile(
    r"\bTensorDataset\(|\bfrom_numpy\(|(?i:(^|[._])(replay|rollout|experience)\w*buffer(\[.*\])?$)"
    r"|(Replay|Rollout|Experience)\w*\(|(?i:(^|[._])(replay|rollout|experience)_(data(set)?|memory)$)"
)
_FEW = 1
_TOO_FEW = 2
"""Who writes that a loader has four has counted them: eight are a guess about the host."""
_ENOUGH = "8"
_COUNTS = ("num_workers", "workers_per_gpu")
_SETTINGS = ("pin_memory", "persistent_workers")
_WORKERS = (
    "one process at most makes the batches: num_workers=8, persistent_workers=True, "
    "pin_memory=True, prefetch_factor=4; at most the cores of the host divided by its NPUs"
)
_OF_TRAINER = (
    "the process that trains makes the batches too: dataloader_num_workers=8, "
    "dataloader_persistent_workers=True; at most the cores of the host divided by its NPUs"
)


class _Settings(NamedTuple):
    """What a loader is made with, and where more of it goes."""

    named: dict[str | None, ast.expr]
    table: ast.Call | ast.Dict
    """The call itself, or the dictionary that it takes as ``**settings``."""

    @classmethod
    def of(cls, call: ast.Call) -> _Settings | None:
        """Return what a call names, ``None`` if it names not all."""
        named = {k.arg: k.value for k in call.keywords}
        return None if None in named else cls(named, call)


def _settings_of(here: Surroundings, call: ast.Call) -> _Settings | None:
    """Return what a loader is made with, also of ``**settings`` that the function makes itself.

    ``None`` where it is filled elsewhere, or changed by settings of its own.
    """
    starred = [k.value for k in call.keywords if k.arg is None]
    if not starred:
        return _Settings.of(call)
    held: dict[str | None, ast.expr]
    match starred:
        case [ast.Name(name)]:
            bound = [
                n.value
                for n in here.nodes
                if isinstance(n, (ast.Assign, ast.AnnAssign)) and name in list_stored_names(n)
            ]
        case _:
            return None
    match bound:
        case [ast.Dict(keys, values) as table]:
            entries = zip(keys, values, strict=True)
            held = {str(k.value): v for k, v in entries if isinstance(k, ast.Constant)}
            whole = len(held) == len(keys)
        case [ast.Call(ast.Name("dict"), [], words) as table]:
            held = {k.arg: k.value for k in words}
            whole = None not in held
        case _:
            return None
    later = [n for n in here.nodes if isinstance(n, ast.Constant) and n.value in _SETTINGS]
    if not whole or any(id(n) not in {id(k) for k in getattr(table, "keys", ())} for n in later):
        return None  # ``settings["pin_memory"] = use_cuda``
    held |= {k.arg: k.value for k in call.keywords if k.arg is not None}
    return _Settings(held, table)


def find_data_loaders(here: Surroundings) -> Iterator[Proposal]:
    """Yield loaders of training data without enough workers that stay, or pinned batches."""
    for node in here.nodes:
        if not isinstance(node, ast.Call):
            continue
        name = here.flow.names.dotted(node.func)
        if name in _LOADERS:
            yield from _of_builder(here, node)
        given = _settings_of(here, node) if name in _LOADERS else _Settings.of(node)
        if given is None:
            continue
        named = given.named
        if (
            name in _LOADERS
            and not _has_other(here, node)
            and _is_for_training(here, node, named)
            and not _is_in_memory(here, node)
            and not _is_made_anew(here, node)
            and last_name(getattr(here.parents.get(id(node)), "func", node)) != "iter"
        ):
            yield from _propose(here, node, given, _pinned(here, named) | _missing(here, given))
        elif here.flow.function.name == MODULE and _is_configured(here, node, named):
            off = {} if "workers_per_gpu" in named else _missing(here, given)
            yield from _propose(here, node, given, off)
        elif name == "transformers.TrainingArguments" and "output_dir" in named:
            yield from _of_trainer(here, node, given)


def _of_builder(here: Surroundings, call: ast.Call) -> Iterator[Proposal]:
    """Yield the loader of a function that callers hand more settings, without workers that stay.

    ``def build_dataloader(data, workers, shuffle=True, **kwargs)`` of OpenMMLab. Advice, since an
    argument that a caller hands in as well is an error.
    """
    function = here.flow.function
    if isinstance(function, ast.Lambda) or function.args.kwarg is None:
        return
    rest, own = function.args.kwarg.arg, list_given(function)
    named = {k.arg: k.value for k in call.keywords}
    taken = own | {n.value for n in here.nodes if isinstance(n, ast.Constant)}
    match named.get(None), named.get("num_workers"):
        case ast.Name(name), ast.Name() | ast.Attribute() as count:
            trains = name == rest and "shuffle" in own and not _BESIDE.search(here.flow.qualname)
            if trains and not ({*named, *taken} & {"persistent_workers"}):
                yield Proposal(call, _say_started_anew(here.text(count), name))


def _say_started_anew(count: str, rest: str) -> str:
    return (
        "the processes that make the batches are started anew in each epoch: "
        f"persistent_workers={count} > 0, if no caller hands it in **{rest} too"
    )


def _pinned(here: Surroundings, named: dict[str | None, ast.expr]) -> dict[str, str]:
    """Return a test for a GPU as one for any device: ``pin_memory=device.type == "cuda"``."""
    match named.get("pin_memory"):
        case ast.Compare(
            ast.Attribute(_, "type") as kind, [ast.Eq()], [ast.Constant("cuda") as gpu]
        ):
            quote = here.text(gpu)[0]
            return {"pin_memory": f"{here.text(kind)} != {quote}cpu{quote}"}
    return {}


def _propose(
    here: Surroundings, call: ast.Call, settings: _Settings, given: dict[str, str]
) -> Iterator[Proposal]:
    """Yield a call with settings that are new or others, or advice where there is no worker."""
    named = settings.named
    count = next((n for n in _COUNTS if n in named), "")
    match named.get(count):
        case ast.Constant(int(number)) if _FEW < number <= _TOO_FEW:
            given = {count: _ENOUGH, **given}
    written = _with(here, call, settings, given)
    if written is not None:
        yield written
    elif not given and _has_few_workers(here, named):
        yield Proposal(call, _WORKERS)


def _with(
    here: Surroundings, call: ast.Call, settings: _Settings, given: dict[str, str]
) -> Proposal | None:
    """Return a call with other settings, ``None`` if there is nothing to change or no place."""
    named, table = settings
    changes = [
        Change(here.span(named[name]), text) for name, text in given.items() if name in named
    ]
    new = {name: value for name, value in given.items() if name not in named}
    if isinstance(table, ast.Dict):
        added = _more_entries(here, table, new)
    else:
        added = more_arguments(table, here.lines, *(f"{k}={v}" for k, v in new.items()))
    if not given or (new and added is None):
        return None
    changes += [added] if new and added is not None else []
    shown = ", ".join(f"{name}={value}" for name, value in given.items())
    return Proposal(call, changes=tuple(changes), shown=f"{last_name(call.func)}(..., {shown})")


def _more_entries(here: Surroundings, table: ast.Dict, new: dict[str, str]) -> Change | None:
    """Return what adds entries to a dictionary, on lines of their own where the last has one."""
    last = table.keys[-1] if table.keys else None
    if last is None:
        return None
    before = here.lines[last.lineno - 1][: here.span(last)[1]]
    joint = f",\n{before}" if before.isspace() else ", "
    quote = here.text(last)[0]
    *_, row, column = here.span(table.values[-1])
    text = "".join(f"{joint}{quote}{name}{quote}: {value}" for name, value in new.items())
    return Change((row, column, row, column), text)


def _is_for_training(here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]) -> bool:
    """Tell whether the names around say that batches to train with are loaded."""
    statement = here.statement_of(call)
    near = [*here.flow.qualname.split("."), ast.unparse(call)]
    near += [f"{name}={ast.unparse(value)}" for name, value in named.items()]
    if isinstance(statement, ast.Assign):
        near += [ast.unparse(target) for target in statement.targets]
    words = " ".join(near)
    return _TRAINS.search(words) is not None and _BESIDE.search(words) is None


def _has_other(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether another branch of the same ``if`` sets more: its author has chosen."""
    around = next((o for o in here.around(call) if isinstance(o, ast.If) and o.orelse), None)
    set_here = {k.arg for k in call.keywords}
    return around is not None and any(
        isinstance(n, ast.Call)
        and last_name(n.func) == last_name(call.func)
        and {k.arg for k in n.keywords} & set(_SETTINGS) > set_here & set(_SETTINGS)
        for n in ast.walk(around)
    )


def _is_in_memory(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether items are made already, so that a worker would only copy them.

    ``DataLoader(self.replay_buffer)``, ``DataLoader(TensorDataset(x, y))``; a worker would go on
    with a copy of what is filled meanwhile, ``DataLoader(ReplayDataset(memory), batch_size=None)``.
    """
    data = next((k.value for k in call.keywords if k.arg == "dataset"), None)
    data = call.args[0] if call.args else data
    if data is None:
        return False
    made = [here.text(data)]
    if isinstance(data, ast.Name):
        made += [
            here.text(n.value)
            for n in here.nodes
            if isinstance(n, ast.Assign) and data.id in map(ast.unparse, n.targets)
        ]
    return any(_IN_MEMORY.search(text) for text in made)


def _is_made_anew(here: Surroundings, call: ast.Call) -> bool:
    """Tell whether a loader is made for a single pass: workers would not pay, nor stay.

    ``def update(self): for batch in DataLoader(self.data): ...``
    """
    if here.loop_of(call) is not None or _EACH_TIME.fullmatch(here.flow.function.name):
        return True
    if here.flow.cls is None:
        return False  # a program may go through all of its data once
    inner = here.statement_of(call)
    targets = inner.targets if isinstance(inner, ast.Assign) else []
    names = {ast.unparse(target) for target in targets} | {ast.unparse(call)}
    passes = [
        n
        for n in here.nodes
        if isinstance(n, ast.For) and any(ast.unparse(part) in names for part in _parts(n.iter))
    ]
    return bool(passes) and all(here.loop_of(loop) is None for loop in passes)


def _parts(items: ast.expr) -> list[ast.expr]:
    """Return what a loop goes through, and what that is made of: ``enumerate(loader)``."""
    return [n for n in ast.walk(items) if isinstance(n, ast.expr)]


def _is_configured(here: Surroundings, call: ast.Call, named: dict[str | None, ast.expr]) -> bool:
    """Tell whether ``dict(...)`` configures the loader of the training data for OpenMMLab."""
    if not isinstance(call.func, ast.Name) or call.func.id != "dict":
        return False
    match here.parents.get(id(call)):
        case ast.Assign([ast.Name("data")]):  # mmcv 1.x: one table for all
            return "workers_per_gpu" in named and "train" in named
        case ast.Assign([ast.Name("train_dataloader")]):
            return "dataset" in named
    return False


def _of_trainer(here: Surroundings, call: ast.Call, settings: _Settings) -> Iterator[Proposal]:
    """Yield arguments of the Trainer of transformers, which by default starts no worker."""
    named = settings.named
    if "train" not in " ".join(map(str, named)):
        return
    if any(str(name).startswith("dataloader_") for name in named):
        match named.get("dataloader_num_workers"):
            case None | ast.Constant(0 | 1):
                yield Proposal(call, _OF_TRAINER)
        return
    given = {"dataloader_num_workers": _ENOUGH, "dataloader_persistent_workers": "True"}
    written = _with(here, call, settings, given)
    if written is not None:
        yield written


def _has_few_workers(here: Surroundings, named: dict[str | None, ast.expr]) -> bool:
    match next((named[n] for n in _COUNTS if n in named), None):
        case None:
            return True
        case ast.Constant(int(count)):
            # who writes 0 or 1 for one loader has chosen it, to debug or for a few texts; on
            # several devices one process is still too few
            shared = any(getattr(n, "id", "") == "DistributedSampler" for n in here.nodes)
            return ("num_workers" not in named or shared) and 0 < count <= _FEW
    return False


def _missing(here: Surroundings, settings: _Settings) -> dict[str, str]:
    """Return the settings that are off though worker processes load the data."""
    named = settings.named
    workers = next((named[n] for n in _COUNTS if n in named), None)
    match workers:
        case None:
            return {}
        case ast.Constant(int(count)) if count <= _FEW:
            return {}
        case ast.Constant():
            stays = "True"
        case ast.Name() | ast.Attribute() | ast.Subscript():  # an error where there are no workers
            stays = f"{here.text(workers)} > 0"
        case ast.Call(function) if last_name(function) == "cpu_count":
            stays = "True"
        case _:
            stays = ""
    wanted = {"pin_memory": "True"} | ({"persistent_workers": stays} if stays else {})
    # who writes ``pin_memory=False`` has a reason
    return {name: value for name, value in wanted.items() if name not in named}
