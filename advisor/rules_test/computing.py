"""What substitutions compute: the same, and visibly not the same after a slip. Needs torch.

``python -m npufix.advisor.rules_test.computing FILE...`` is the child process of
``npufix rules test``: it tells of each rule as a line of JSON.
"""

from __future__ import annotations

import faulthandler
import importlib
import inspect
import os
import random
import re
import select
import signal
import sys
from contextlib import suppress
from dataclasses import replace
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import msgspec

from npufix.advisor.rules_test.mutations import mutations_of, without_defaults
from npufix.rewriters.verification.judge.verify_rule import (
    Originals,
    SeededDraw,
    bind_torch,
    verify_rule,
)
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rules.substitution import Form, Substitution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.advisor.rules_test.subject import Subject

_SLIPS_FROM = 0
SEEDS = (_SLIPS_FROM, *(random.Random(0).randrange(2**31) for _ in range(3)))  # noqa: S311 - no secret
"""The first is that of the slips: what a pattern does with its inputs is found out once."""
_ROUNDS = 12
_STAGES = (2, 6, 24)
"""Rounds that must refute a slip; what a rule is verified with is the largest number."""
_HANGING = 60
"""Seconds after which a slip does not answer any more; usual are fractions of one."""
_MOST_READ = 4096


def check_inputs(subject: Subject) -> Iterator[str]:
    """Check that ``inputs`` gives a value to every variable."""
    for form in _forms(subject):
        wanted = set(inspect.signature(form.pattern).parameters)
        lacking = sorted(wanted - set(bind_torch(form.inputs)(SeededDraw(0))))
        if lacking:
            yield f"{form.inputs.__name__} gives no value to {', '.join(lacking)}"


def check_equivalence(subject: Subject) -> Iterator[str]:
    """Check that pattern and replacement compute the same on ``inputs``."""
    forms = _forms(subject)
    for form in forms:
        name = f"{form.pattern.__name__} -> {form.replacement.__name__}"
        known = [_originals_of(forms), *(Originals() for _ in SEEDS[1:])]
        runs = zip(SEEDS, known, strict=True)
        verdicts = [verify_rule(form, seed, _ROUNDS, seen) for seed, seen in runs]
        shorter = without_defaults(form)
        verdicts += [] if shorter is None else [verify_rule(shorter, rounds=_STAGES[0])]
        for verdict in verdicts:
            # Numbers and truth values are compared as they are; there is nothing to measure.
            plain = form.pattern.__annotations__.get("return") in {"bool", "int"}
            if verdict.status is not Status.EQUIVALENT or not verdict.cases:
                yield f"{name}: {verdict.status.value}: {verdict.reason or 'no input runs'}"
                break
            if not verdict.measures and not plain:
                yield f"{name}: nothing that it returns could be compared"
                break
        else:
            yield from (f"{name}: {p}" for p in _problems_of_ground(form, verdicts[0]))


def _problems_of_ground(form: Form, verdict: Verdict) -> Iterator[str]:
    """Yield where the kernels that ran are not those of the replacement."""
    code = inspect.getsource(form.replacement)
    called = set(re.findall(r"\b(?:torch_npu|mx_driving|mindspeed[\w.]*)\.(npu_\w+)\(", code))
    ran = set(re.findall(r"\bnpu_\w+", verdict.ground))
    if called != ran:
        yield f"it calls {sorted(called)}, but what ran was {sorted(ran)}: see `inputs`"


def check_mistakes(subject: Subject) -> Iterator[str]:
    """Check that each slip in a replacement is refuted on ``inputs`` of a form that uses it."""
    # What torch does not compile imports its compiler when it is called first: seconds of each
    # process that is forked below.
    importlib.import_module("torch._dynamo")
    forms: dict[Callable[..., Any], list[Form]] = {}
    for form in _forms(subject):
        forms.setdefault(form.replacement, []).append(form)
    known = _originals_of(_forms(subject))
    for replacement, own in forms.items():
        bind_torch(replacement)
        mutations = list(mutations_of(replacement))
        slips = [[replace(form, replacement=m.function) for form in own] for m in mutations]
        for mutation, stage in zip(mutations, find_stages(slips, known), strict=True):
            if stage == len(_STAGES):
                yield (
                    f"{replacement.__name__}, line {mutation.line}: nobody would notice if "
                    f"{mutation.slip}: "
                    "give `inputs` a case that shows it, leave it out, or end the line with "
                    f"`# no slip: {mutation.slip} (REASON)`"
                )


def find_stages(slips: Sequence[list[Form]], known: Originals | None = None) -> list[int]:
    """Return the stage that refutes each slip, how many there are if none does.

    In another process, which a slip may crash or stop for good (a fork may be made while torch
    holds a lock): that is the first stage, and one more process goes on with the next slip.
    """
    stages: list[int] = []
    while len(stages) < len(slips):
        reading, writing = os.pipe()
        sys.stdout.flush()
        child = os.fork()
        if not child:
            _tell_stages(slips[len(stages) :], writing, known or Originals())
        os.close(writing)
        stages += _read_stages(reading, child)
        os.waitpid(child, 0)
        if len(stages) < len(slips):
            stages.append(0)
    return stages


def _read_stages(reading: int, child: int) -> Iterator[int]:
    """Yield what a process tells, and end it where a slip has stopped it.

    From here: whoever limits a call in there has the clocks of the process, and a slip that has
    overwritten memory may wait for good where Python handles no signal.
    """
    with os.fdopen(reading, "rb", buffering=0) as told:
        while True:
            if not select.select([told], [], [], _HANGING)[0]:
                os.kill(child, signal.SIGKILL)
            part = told.read(_MOST_READ)
            if not part:
                return
            yield from part


def _tell_stages(slips: Sequence[list[Form]], writing: int, originals: Originals) -> NoReturn:
    """Write the stage of each slip as a byte, and end this process."""
    try:
        os.close(2)  # how it crashes is nobody's business
        faulthandler.disable()
        for wrong in slips:
            stage = 0
            with suppress(Exception):  # what raises is refuted
                # One form may show at once what another shows in no round.
                while stage < len(_STAGES) and not any(
                    refute(form, stages=(_STAGES[stage],), known=originals) for form in wrong
                ):
                    stage += 1
            os.write(writing, bytes([stage]))
    finally:
        os._exit(0)


def refute(
    form: Form,
    seed: int = _SLIPS_FROM,
    stages: Sequence[int] = _STAGES,
    known: Originals | None = None,
) -> Verdict | None:
    """Return the refutation of a wrong form, for most after a few rounds; ``None`` if none is."""
    for rounds in stages:
        verdict = verify_rule(form, seed, rounds, known, is_slip=True)
        if verdict.status is Status.REFUTED:
            return verdict
    return None


@lru_cache(maxsize=1)
def _originals_of(_: tuple[Form, ...]) -> Originals:
    """Return what is known of the patterns of a rule, from one check to the next."""
    return Originals()


def _forms(subject: Subject) -> tuple[Form, ...]:
    assert isinstance(subject.rule, Substitution)  # noqa: S101 - the table in `running` sees to it
    return subject.rule.forms


def main(paths: list[str]) -> None:
    """Test the rules of some files and print what is found."""
    from npufix.advisor.rules_test.running import COMPUTING, run
    from npufix.advisor.rules_test.subject import read

    for path in paths:
        for outcome in run(read(Path(path)), COMPUTING):
            print(msgspec.json.encode(outcome).decode(), flush=True)  # noqa: T201 - to the parent


if __name__ == "__main__":
    main(sys.argv[1:])
