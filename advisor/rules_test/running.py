"""Which tests a rule of each kind has, and running them."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tempfile
from typing import TYPE_CHECKING

import msgspec

from npufix.rewriters.verification.workers.backends import Backend, child_environment
from npufix.rules.cluster_diagnostic import ClusterDiagnostic
from npufix.rules.diagnostic import Diagnostic
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.advisor.rules_test.subject import Subject
    from npufix.rules.registry import Rule

    Check = Callable[[Subject], Iterator[str]]

ANY = (
    "every_kind.identifiers", "every_kind.documentation", "every_kind.versions",
    "every_kind.translations",
)  # fmt: skip
_WARNINGS = (  # what they find is no failure
    "every_kind.translations",
)
READING: Mapping[type[Rule], tuple[str, ...]] = {
    Substitution: (
        *ANY, "substitutions.kernels", "substitutions.forms", "substitutions.examples",
        "substitutions.look_alikes", "substitutions.near_misses",
    ),
    Diagnostic: (*ANY, "recordings.empty_recordings", "recordings.amounts"),
    ClusterDiagnostic: (*ANY, "recordings.empty_jobs"),
}  # fmt: skip
"""By kind of rule, the checks that import no torch, as module and ``check_`` function."""
COMPUTING = ("computing.inputs", "computing.equivalence", "computing.mistakes")
"""Those of substitutions that run them."""


class Outcome(msgspec.Struct, frozen=True):
    """What one check says about one rule."""

    rule: str
    check: str
    """``look-alikes``, ``equivalence``."""
    problems: list[str] = []
    """Each with what to do; none if the rule passes."""
    warnings: list[str] = []


def check_named(name: str) -> Check:
    """Return a check by its module and name: ``substitutions.examples``."""
    module, _, function = name.partition(".")
    found: Check = getattr(
        importlib.import_module(f"npufix.advisor.rules_test.{module}"), f"check_{function}"
    )
    return found


def run(subject: Subject, checks: Sequence[str] = ()) -> Iterator[Outcome]:
    """Yield the outcome of each check, by default of those that import no torch."""
    for name in checks or READING[type(subject.rule)]:
        try:
            problems = list(check_named(name)(subject))
        except Exception as error:  # noqa: BLE001 - whatever the functions of a rule raise
            problems = [f"the rule raises {type(error).__name__}: {error}"]
        words = name.partition(".")[2].replace("_", "-")
        found = {"warnings" if name in _WARNINGS else "problems": problems}
        yield Outcome(subject.rule.id, words, **found)


def run_computing(subjects: Sequence[Subject]) -> Iterator[Outcome]:
    """Yield the outcomes of the checks that need torch, run in a process of its own."""
    left = [s for s in subjects if isinstance(s.rule, Substitution)]
    if not left:
        return
    with tempfile.TemporaryDirectory(prefix="npufix-rules-") as home:
        child = subprocess.Popen(  # noqa: S603 - our own module, no shell
            [sys.executable, "-m", "npufix.advisor.rules_test.computing",
             *(str(s.path) for s in left)],
            stdout=subprocess.PIPE, cwd=home,
            env=child_environment(Backend.REFERENCE, os.environ, home),
        )  # fmt: skip
        expected = [(s.rule.id, name) for s in left for name in COMPUTING]
        with child:
            for line in child.stdout or ():
                expected.pop(0)
                yield msgspec.json.decode(line, type=Outcome)
    if expected:
        rule, name = expected[0]
        what = f"the process that runs it ended with exit code {child.returncode}"
        yield Outcome(rule, name.partition(".")[2], [f"{what}; is torch installed?"])
