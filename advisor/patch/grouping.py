"""What is left to decide, in groups: "these 3 assumptions allow 41 more changes"."""

from __future__ import annotations

import itertools
import shlex
from collections import Counter
from typing import TYPE_CHECKING, NamedTuple

from npufix.advisor.project.assumed import SETS
from npufix.advisor.project.generated import GENERATED_FILE

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npufix.advisor.diagnose.findings import Located
    from npufix.reports.report import Report

_GROUPS = 2
_FEW = 6
"""More conditions than these nobody reads before granting them."""


class Group(NamedTuple):
    """Conditions, as options of ``npufix patch``, and how many changes wait for nothing else."""

    options: str
    changes: int


def groups(found: Iterable[Located], allowed: frozenset[str]) -> list[Group]:
    """Return what to grant for the most changes, the best first; each is beside those before it.

    A set of ``--assume`` comes before single conditions where it allows as much, and what is
    written by hand before what is generated: there the copy is changed, not what it is made from.
    """
    missing = [m for m in (_missing(item, allowed) for item in found) if m]
    by_hand = [m for m in missing if GENERATED_FILE not in m]
    copied = [m - {GENERATED_FILE} for m in missing if GENERATED_FILE in m]
    made = list(itertools.islice(_best(by_hand), _GROUPS))
    also = f"--allow {GENERATED_FILE}"
    for options, changes in itertools.islice(_best(copied), min(1, _GROUPS - len(made))):
        made.append(Group(f"{options} {also}".strip(), changes))
    return made


def _best(missing: Sequence[frozenset[str]]) -> Iterator[Group]:
    """Yield groups for changes that wait for conditions, each for those still waiting."""
    while missing:
        options, granted, changes = max(_choices(missing), key=lambda c: c[2])
        if not changes:
            break
        yield Group(options, changes)
        missing = [m - granted for m in missing if not m <= granted]


def _missing(item: Located, allowed: frozenset[str]) -> frozenset[str]:
    """Return the conditions that a change still waits for; none if nothing would write it."""
    site = item.site
    if site.rewrite is None or site.rule.advice:
        return frozenset()
    return frozenset(condition.name for condition in site.open_conditions) - allowed


def _choices(missing: Sequence[frozenset[str]]) -> Iterable[tuple[str, frozenset[str], int]]:
    """Yield options, what they grant and how many changes they allow."""
    alike = Counter(missing)

    def allows(granted: frozenset[str]) -> int:
        return sum(count for names, count in alike.items() if names <= granted)

    yield "", frozenset(), allows(frozenset())
    for name, granted in SETS.items():
        yield f"--assume {name}", granted, allows(granted)
    for both in dict.fromkeys(some | other for some in alike for other in alike):
        if len(both) <= _FEW:
            yield f"--allow {','.join(sorted(both))}", both, allows(both)


def commands(
    found: Iterable[Located], allowed: frozenset[str], report: Report, given: Sequence[str] = ()
) -> list[str]:
    """Return the commands that grant each group, with what it brings.

    ``given`` are the options that have granted conditions already.
    """
    words = ["npufix", "patch", *filter(None, [report.dump]), "--source", report.source, *given]
    return [
        f"{shlex.join(words)} {group.options}  # allows {group.changes} more"
        + (", in generated files" if GENERATED_FILE in group.options else "")
        for group in groups(found, allowed)
    ]
