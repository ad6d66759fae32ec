"""Environments of reinforcement learning: what a simulator on the host hands out, and episodes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of

if TYPE_CHECKING:
    from npufix.rewriters.graph.dataflow import FunctionFlow

_ENVIRONMENT = re.compile(r"(Env(ironment)?|Task|Simulator|World)(V?\d+)?$")
_BEGINS_ANEW = re.compile(r"_*((\w+_)?resets?|sample_(init(ial)?|start)_(state|pose)s?)(_.*)?")
"""What an environment of reinforcement learning does when an episode ends."""
_STEP = re.compile(r"(^|[._])envs?\.step(_async)?$")
_WRAPPER = re.compile(r"(^|[.\w])(Env(ironment)?Wrapper|gym(nasium)?\.(Env|Wrapper))$")
_ACTS = re.compile(
    r"_*(predict|act|(predict|select|get|choose|sample|take|explore|compute)_(\w+_)?actions?)"
)
_OBSERVED = re.compile(r"(?i)(^|_)(obs(ervations?)?|states?|env)(_|$)")
_MANY_AT_ONCE = re.compile(r"VecEnv|Vectori[sz]ed")
_ON_DEVICE = re.compile(r"(?i)isaac|brax|mjx|warp|genesis|vmas|maniskill|legged|jax")
"""Simulators that compute on the device, thousands of environments at once."""


def begins_episode(flow: FunctionFlow) -> bool:
    """Tell whether an environment is put back to its start: ``AntEnv.reset_idx``."""
    names = [] if flow.cls is None else [flow.cls.name, *map(last_name, flow.cls.bases)]
    known = any(map(_ENVIRONMENT.search, names))
    return known and _BEGINS_ANEW.fullmatch(flow.function.name) is not None


def acts(flow: FunctionFlow) -> bool:
    """Tell whether a policy is asked by a simulator of the host: ``return actions.cpu().numpy()``.

    What goes in is copied each time, and what comes out is waited for.
    """
    given = list_given(flow.function)
    if not _ACTS.fullmatch(flow.function.name) or not any(map(_OBSERVED.search, given)):
        return False
    calls = (ast.unparse(n.func) for n in nodes_of(flow.function) if isinstance(n, ast.Call))
    return any(re.search(r"\.(cpu\(\)|detach\(\)|data)\.numpy$|\.(item|tolist)$", c) for c in calls)


def rolls_out(called: ast.expr) -> bool:
    """Tell whether a call takes the step of an environment: ``env.step(action)``."""
    steps = last_name(called) in {"step", "step_async"}  # to write code takes long
    return steps and _STEP.search(ast.unparse(called)) is not None


def wraps_simulator(flow: FunctionFlow) -> bool:
    """Tell whether a class hands on what a simulator of the host says, one number at a time.

    ``class ChessEnv(gym.Env)``, and what asks another one:
    ``rewards, done = self._env.step(actions); return torch.tensor(rewards, device=self.device)``.
    """
    cls, tree = flow.cls, flow.names.tree
    if cls is None or tree is None:
        return False
    bases = [flow.names.dotted(base) or ast.unparse(base) for base in cls.bases]
    named = " ".join((cls.name, *bases, *flow.names.imports.values()))
    if _MANY_AT_ONCE.search(named) or _ON_DEVICE.search(named):
        return False
    is_environment = _ENVIRONMENT.search(cls.name) or any(map(_ENVIRONMENT.search, bases))
    return any(map(_WRAPPER.search, bases)) or bool(is_environment and _asks_another(cls))


def _asks_another(cls: ast.ClassDef) -> bool:
    """Tell whether a class takes the steps of a simulator that it holds: ``self._env.step(a)``."""
    calls = (ast.unparse(n.func) for n in nodes_of(cls) if isinstance(n, ast.Call))
    return any(re.fullmatch(r"self\._?(base_)?(env|game|sim)\.step", called) for called in calls)
