"""A version of the user's code, loaded: in this process, or in one that has nothing else."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.packages import package_of
from npufix.rewriters.graph.modules.syntax import parse_once
from npufix.rewriters.verification.calls.device import is_device, is_virtual
from npufix.rewriters.verification.inputs.load import Loaded, import_whole, load
from npufix.rewriters.verification.inputs.overlay import World
from npufix.rewriters.verification.inputs.source.parameters import read_told
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Target
from npufix.rewriters.verification.reference import npu_operators
from npufix.rewriters.verification.sandbox.remote import (
    RemoteLoaded,
    RemoteTarget,
    TargetFacts,
    held,
    list_workers,
    runs_with_target,
)
from npufix.rewriters.verification.verdict import BackendLimitError

if TYPE_CHECKING:
    from npufix.rewriters.edit.job import Job

ORIGINAL, CHANGED = ("original", "probe"), ("patched", "portable")
"""The versions that one process loads, and those that the other one does."""


def load_version(job: Job, text: str, tag: str) -> Target:
    """Return the function of a job in the version ``text``, which is called ``tag``.

    Raises:
        LoadError: it cannot be loaded.
        BackendLimitError: it cannot run here, whatever it is.

    """
    workers = list_workers()
    if not workers:
        return _load(job, text, tag)
    worker = workers[tag in CHANGED]
    facts: TargetFacts = worker.call(_NAME, (job, text, tag), {})
    return RemoteTarget(worker, facts, facts.on_npu)  # type: ignore[return-value] # what a judge asks a target for, it has


@runs_with_target
def _hold(job: Job, text: str, tag: str) -> TargetFacts:
    """Load a version, and keep it for those who ask."""
    target = _load(job, text, tag)
    held.append(target)
    loaded = target.loaded
    known = RemoteLoaded(loaded.filename, loaded.missing, loaded.way)
    number = len(held) - 1
    return TargetFacts(
        number,
        known,
        job.qualname,
        target.name,
        target.has_modes,
        target.on_npu,
        target.sizes,
    )


_NAME = f"{__name__}:{_hold.__qualname__}"


def _load(job: Job, text: str, tag: str) -> Target:
    _prepare(job)
    world = World(_other_texts(job, changed=tag in CHANGED), _folders(job))
    with world.entered():
        loaded: Loaded = load(text, job.path, job.root, job.qualname, tag)

    def find(name: str) -> object:
        with world.entered():
            return loaded.find(name)

    known = replace(loaded, find=find)
    on_npu = is_device() and not job.on_host
    told = read_told(find_function(parse_once(job.original), job.qualname))
    return Target(known, job.qualname, on_npu=on_npu, world=world.entered, told=told)


def find_failing_import(job: Job) -> str:
    """Return what importing the patched file raises where the original does not, "" if nothing."""

    def raised(text: str, tag: str) -> str:
        workers = list_workers()
        asked = (job, text, tag)
        return str(workers[tag in CHANGED].call(_WHOLE, asked, {})) if workers else _import(*asked)

    found = raised(job.patched, "patched")
    return found if found and not raised(job.original, "original") else ""


@runs_with_target
def _import(job: Job, text: str, tag: str) -> str:
    _prepare(job)
    with World({}, _folders(job)).entered():
        return import_whole(text, job.path, job.root, tag)


_WHOLE = f"{__name__}:{_import.__qualname__}"


def _prepare(job: Job) -> None:
    """Have the operators of torch_npu that the code calls, if it is not the real one."""
    if not is_device():
        npu_operators.install(job.torch_npu_version)
        if re.search(r"(?m)^(import|from) torch_npu\b", job.patched):
            # Importing it is what gives tensors this; they are none of its own here.
            npu_operators.have_is_npu()
        return
    npu_operators.stand_in_for_einops()
    if is_virtual() and "mindspeed" in job.patched:
        raise BackendLimitError("MindSpeed does not run on the virtual NPU")
    if is_virtual() and "mx_driving" in job.patched:
        raise BackendLimitError("mx_driving does not run on the virtual NPU")


def _other_texts(job: Job, *, changed: bool) -> dict[str, str]:
    texts = {o.path: o.patched if changed else o.original for o in job.others}
    return {path: text for path, text in texts.items() if text is not None}


def _folders(job: Job) -> tuple[str, ...]:
    return str(Path(job.root)), str(package_of(Path(job.path))[1])
