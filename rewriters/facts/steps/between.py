"""What runs before, behind or between the steps of a training, by its name."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.steps.environments import acts, begins_episode
from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow

_EVALUATES = re.compile(r"_*evaluate(_(\w+_)?(model|policy|agent|epoch|loader|data(set)?))?")
_ENDS = re.compile(
    r"_*(exit|close|del|stop)_*"
    r"|_*(exit|close|shut_?down|clean_?up|tear_?down|terminate|destroy)(_\w+)?"
    r"|_*(release|resume|(off|on|re)_?load)_(\w+_)?(memory|weights?|param(eter)?s|model|optimi[sz]er|states?)"
    r"|_*(transport|publish|transfer)_(weights?|tensors?|param(eter)?s|states?)(_\w+)?"
    r"|_*(wake_up|sleep|\w*weights?_(update|sync)|(update|sync|broadcast)_weights_(from|to|in)_\w+)"
)
"""What is done when all steps are, ``shutdown``, ``__del__``, or between steps and a rollout."""
_KEEPS_AVERAGE = re.compile(r"^(EMA|Ema(?![a-z]))|E(MA|ma)$|MovingAverage")
_PUTS_ASIDE = re.compile(r"_*((re)?store|copy_to|swap|apply_shadow)(_\w+)?")
"""What averaged weights do around an evaluation: ``EMAModel.store``."""
_LOADS = frozenset({"from_pretrained", "load_dataset"})
_LEARNS = re.compile(
    r"(?i)backward|(^|_)(train|fit|learn|step|generate)(_|$)|trainer|data_?loader|optim"
)
"""What whoever loads a model goes on with, where all of a program is one function."""

_ALL = re.compile(r"_*(partial_)?fit_(transform|predict|pca|gmm|kde|kmeans|scaler)(_\w+)?")
_DATA_SETS = re.compile(r"\b(\w+Dataset|Dataset(Dict)?|DataLoader)\b")
_LOADER = re.compile(r"(?i)(^|_)(data_?)?loader$")
_COMPUTES = re.compile(
    r"(?i)backward|step|train|fit|learn|loss|model|net|forward|generate|sample|update|optim|criterion"
)


def runs_between(flow: FunctionFlow, *, in_loop: bool) -> bool:
    """Tell whether no step of a training waits for a function, or for the loop of one.

    An evaluation goes over its data ``in_loop``; what it does for one of them a step may do, too.
    """
    name = flow.function.name
    return (
        begins_episode(flow)
        or acts(flow)
        or _ENDS.fullmatch(name) is not None
        or _puts_average_aside(flow)
        or _loads_itself(flow)
        or _measures_data(flow)
        or _works_on_all(flow)
        or (in_loop and _EVALUATES.fullmatch(name) is not None)
    )


def _puts_average_aside(flow: FunctionFlow) -> bool:
    """Tell whether averaged weights take the place of a model's, or make room: for a while."""
    kept = flow.cls is not None and _KEEPS_AVERAGE.search(flow.cls.name) is not None
    return kept and _PUTS_ASIDE.fullmatch(flow.function.name) is not None


def _loads_itself(flow: FunctionFlow) -> bool:
    """Tell whether a function reads the tokenizer, or the data, for what it finds out once.

    Not so a script that trains, or makes texts, with what it has loaded.
    """
    if flow.function.name in {"main", MODULE}:
        return False
    called = {last_name(n.func) for n in nodes_of(flow.function) if isinstance(n, ast.Call)}
    return not called.isdisjoint(_LOADS) and not any(map(_LEARNS.search, called))


def _works_on_all(flow: FunctionFlow) -> bool:
    """Tell whether a function works once on all that there is: it makes a data set, or fits one.

    ``def mine_negatives(...) -> Dataset``, ``PCA.fit_transform``.
    """
    made = flow.function.returns
    named = "" if made is None else ast.unparse(made)
    return _ALL.fullmatch(flow.function.name) is not None or _DATA_SETS.search(named) is not None


def _measures_data(flow: FunctionFlow) -> bool:
    """Tell whether a function goes once over all data, and no model computes with it.

    ``for batch in data_loader: counts.append(torch.unique(batch.receivers))``, for a mean.
    """
    given = {name for name in list_given(flow.function) if _LOADER.search(name)}
    loops = [n for n in nodes_of(flow.function) if isinstance(n, ast.For)]
    if not any(isinstance(n.iter, ast.Name) and n.iter.id in given for n in loops):
        return False
    called = [last_name(n.func) for n in nodes_of(flow.function) if isinstance(n, ast.Call)]
    return not any(map(_COMPUTES.search, called))
