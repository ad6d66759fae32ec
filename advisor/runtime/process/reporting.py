"""What a run with changed modules has to say at its end."""

from __future__ import annotations

import os
import sys
from collections import Counter
from importlib.machinery import SourcelessFileLoader
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.runtime.calls.questions import NEW_EACH_TIME, NOT_READ_HERE, WITHIN_ONE
from npufix.advisor.runtime.source.places import RulePlace, place_key
from npufix.advisor.runtime.source.proving import recall
from npufix.advisor.runtime.source.selection import WITHOUT_ATTENTION
from npufix.reports.language import tr
from npufix.rules.shared.quantities import format_count

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.advisor.runtime.process.hook import Hook
    from npufix.advisor.runtime.source.rewriting import RewrittenModule

    Counts = tuple[Counter[str], Counter[tuple[str, str]]]
    """How often the new code ran, by place, and the old code on an NPU, by place and reason."""

_MOST_NAMES = 2
NOT_MEASURED = "Not measured is whether the new code is faster"
_MOST = 12
"""How many lines of a kind are printed; the JSON file has all."""


class FoundPlace(msgspec.Struct, frozen=True):
    """A place in a module of the program."""

    module: str
    path: str
    place: RulePlace
    ran: int = 0
    """How often the new code ran; it is not known of code that needs no NPU."""
    old_code_ran: dict[str, int] = {}
    """How often the old code ran on the NPU, by what did not hold."""
    verdict: str = ""


class RunSummary(msgspec.Struct, frozen=True):
    """All that is known of a run."""

    why_not: str
    """Why nothing was changed at all; empty if it was tried."""
    replaced: tuple[FoundPlace, ...] = ()
    left: tuple[FoundPlace, ...] = ()
    problems: dict[str, str] = {}
    """Modules that could not be searched or changed, and why."""
    notes: tuple[str, ...] = ()


def summarize(
    hook: Hook | None, why_not: str, earlier: Mapping[str, str], ran_before: Counts
) -> RunSummary:
    """Return what became of the modules so far; the fields of ``Applied`` say what each is."""
    if hook is None:
        return RunSummary(why_not)
    (taken, refused), (taken_before, refused_before) = counts(), ran_before
    ran, old_ran = taken - taken_before, refused - refused_before
    replaced: list[FoundPlace] = []
    left: list[FoundPlace] = []
    problems = dict(earlier)
    for name, module in sorted(hook.modules.items()):
        if module.problem:
            problems[name] = module.problem
        for place in module.places:
            key = place_key(module.path, place.rule, place.line)
            old_code = {c: n for (k, c), n in old_ran.items() if k == key}
            verdict = _verdict(hook, module, place)
            found = FoundPlace(name, module.path, place, ran[key], old_code, verdict)
            (replaced if place.replaced else left).append(found)
    without = "transformers" in sys.modules and hook.selection.is_without_attention
    notes = (WITHOUT_ATTENTION,) if without else ()
    return RunSummary("", tuple(replaced), tuple(left), problems | _unreadable(), notes)


def counts() -> Counts:
    """Return how often new code ran so far, and how often the old code did and why."""
    # Not before a changed module has loaded it: there is no torch where nothing was imported.
    asked = sys.modules.get("npufix.advisor.runtime.calls.at_run_time")
    return (Counter(), Counter()) if asked is None else (asked.taken.copy(), asked.refused.copy())


def _verdict(hook: Hook, module: RewrittenModule, place: RulePlace) -> str:
    """Return what a verification found out, in this start or an earlier one."""
    data = hook.sources.get(module.path)
    if place.verdict or data is None or not place.replaced:
        return place.verdict
    return recall(hook.store, data, place.rule, place.line)


def _unreadable() -> dict[str, str]:
    """Return the modules that use torch and have no source file to change."""
    found = {}
    for name, module in list(sys.modules.items()):
        loader = getattr(module, "__loader__", None)
        kind = type(loader).__name__
        if isinstance(loader, SourcelessFileLoader):
            why = "it is there as bytecode only"
        elif kind == "zipimporter":
            why = "it is inside of a zip file"
        else:
            continue
        if any(value is sys.modules.get("torch") for value in list(vars(module).values())):
            found[name] = why
    return found


def as_text(one: RunSummary) -> str:
    """Return a summary for a terminal of 80 columns."""
    if one.why_not:
        return f"npufix: nothing was changed: {one.why_not}\n"
    modules = {f.module for f in one.replaced}
    ran = [f for f in one.replaced if f.ran or f.old_code_ran]
    places, where = format_count(len(one.replaced), "place"), format_count(len(modules), "module")
    reached = f"; {len(ran)} reached on the NPU:" if ran else ""
    lines = [f"npufix: {places} replaced in {where}{reached}"]
    # Where the old code ran there may be something to do.
    lines += _cut(
        [_describe_replaced(f) for f in sorted(ran, key=lambda f: (not f.old_code_ran, -f.ran))]
    )
    uncounted = sum(not f.place.counted for f in one.replaced)
    if uncounted:
        lines.append(f"{format_count(uncounted, 'place')} run everywhere and are not counted.")
    unmeasured = {f"{f.place.rule}:{c}" for f in one.replaced for c in f.place.unmeasured}
    if unmeasured:
        lines.append(f"{NOT_MEASURED}: {', '.join(sorted(unmeasured))}; --measure does it.")
    lines += [f"{note}." for note in one.notes]
    if one.left:
        lines.append(f"{format_count(len(one.left), 'place')} left as they are:")
        lines += _cut(_describe_left(one.left))
    if one.problems:
        lines.append(f"{format_count(len(one.problems), 'module')} not changed:")
        lines += _cut([f"  {name}: {why}" for name, why in sorted(one.problems.items())])
    return "\n".join(lines) + "\n"


def _cut(lines: Sequence[str]) -> list[str]:
    more = len(lines) - _MOST
    return [*lines[:_MOST], *([f"  ... and {more} more (--json has all)"] if more > 0 else [])]


def _describe_replaced(found: FoundPlace) -> str:
    place = found.place
    said = [found.verdict or "not verified here"]
    if place.counted:
        said.insert(0, f"ran {found.ran} times" if found.ran != 1 else "ran once")
    said += [old_code(c, n) for c, n in sorted(found.old_code_ran.items(), key=lambda one: -one[1])]
    said += [f"you vouch for {', '.join(place.vouched)}"] if place.vouched else []
    said += [f"naming the rule vouches for {', '.join(place.by_name)}"] if place.by_name else []
    where = f"{_short(found)}:{place.line} {place.function}"
    return f"  {place.rule} {place.name} {where}\n    {'; '.join(said)}"


def old_code(what: str, times: int) -> str:
    """Return why the old code ran on the NPU, and what to do if it need not have."""
    ran = f"the old code ran {format_count(times, 'time')}"
    if what in {NEW_EACH_TIME, NOT_READ_HERE}:
        return f"{ran}: {what}; --allow NPU102:{WITHIN_ONE} vouches for them"
    return f"{ran}: {what} did not hold"


def _short(found: FoundPlace) -> str:
    """Return the file as the user knows it: below the current folder, or as a module."""
    here = f"{Path.cwd()}{os.sep}"
    inside = found.path.startswith(here) and "site-packages" not in found.path
    return found.path.removeprefix(here) if inside else found.module


def _describe_left(left: Sequence[FoundPlace]) -> list[str]:
    """Return one line for all places of a rule with the same reason."""
    groups = Counter((f.place.rule, f.place.name, f.place.why_not) for f in left)
    lines = []
    for (rule, name, why), number in groups.most_common():
        first = next(f for f in left if (f.place.rule, f.place.why_not) == (rule, why))
        where = f"{_short(first)}:{first.place.line}"
        more = f" and {number - 1} more" if number > 1 else ""
        said = "; ".join(filter(None, (why, _remedy(first.place))))
        lines.append(f"  {rule} {name} {where}{more}\n    {said}")
    return lines


def _remedy(place: RulePlace) -> str:
    if not place.missing:
        return ""
    if len(place.missing) > _MOST_NAMES:  # nobody knows as much about one place
        return ""
    return f"--allow {','.join(f'{place.rule}:{name}' for name in place.missing)} vouches for it"


def translate(text: str) -> str:
    """Return a report in the language of this process, part by part; names stay what they are."""
    lines = []
    for line in text.splitlines():
        bare = line.lstrip()
        said = tr(bare)
        if said == bare:
            said = "; ".join(tr(part) for part in bare.split("; "))
        lines.append(line[: len(line) - len(bare)] + said)
    return "\n".join(lines) + "\n"


def to_json(one: RunSummary) -> bytes:
    """Return a summary as JSON."""
    return msgspec.json.format(msgspec.json.encode(one), indent=1) + b"\n"
