"""The names by which a user turns rules on and off: in a call, in YAML, in the environment."""

from __future__ import annotations

import difflib
import json
import os
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from npufix.advisor.project.kept.stored import Store
from npufix.advisor.runtime.source.selection import ATTENTION, RuleSelection
from npufix.rewriters.write.user_folders import private_cache_folder

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

SWITCHES: Mapping[str, tuple[str, ...]] = {
    "use_npu_fusion_attention": ATTENTION,
    "use_fused_rms_norm": ("npu101", "npu107", "npu108", "npu168"),
    "use_fused_rope": ("npu102",),
    "use_fused_swiglu": ("npu103",),
}
"""As openMind names them; the rules that each of them turns off, all at once."""
NOTHING = "disable_fused_options"
_LISTS = ("rules", "disable", "allow")
_TRUE = frozenset({"1", "true", "yes", "on"})
_FALSE = frozenset({"", "0", "false", "no", "off"})


class SwitchError(Exception):
    """A switch that does not exist or has no such value: ``message`` and ``remedy``."""

    def __init__(self, message: str, remedy: str) -> None:
        super().__init__(f"{message} -- {remedy}")
        self.message = message
        self.remedy = remedy


@dataclass(frozen=True, slots=True)
class Switches:
    """What was said about which rules are to be used, as it was said."""

    rules: tuple[str, ...] = ()
    """Ids or names; only these, if there are any."""
    disable: tuple[str, ...] = ()
    """Ids or names of rules, or switches."""
    allow: tuple[str, ...] = ()
    off: bool = False
    """Nothing is to be changed at all."""
    enable: tuple[str, ...] = ()
    """Rules and switches that were given as true: they win over ``disable`` of the project."""

    def merged(self, other: Switches) -> Switches:
        """Return both; where ``other`` names rules, those are the ones."""
        return Switches(
            other.rules or self.rules,
            (*self.disable, *other.disable),
            (*self.allow, *other.allow),
            self.off or other.off,
            (*self.enable, *other.enable),
        )

    def selection(self) -> RuleSelection:
        """Return the rules and conditions that are meant.

        Raises:
            SwitchError: a name means nothing.

        """
        if self == Switches():
            return RuleSelection()
        known = _rules()
        wanted = {one for name in self.rules for one in _rule_ids(name, known)}
        without = {one for name in self.disable for one in _rule_ids(name, known)}
        without -= {one for name in self.enable for one in _rule_ids(name, known)} - wanted
        allow = _conditions(self.allow, known)
        return RuleSelection(frozenset(wanted), frozenset(without), allow, self.named() - without)

    def named(self) -> frozenset[str]:
        """Return the ids of the rules that were asked for by name."""
        known = _rules() if self.rules or self.enable else {}
        return frozenset(n for name in (*self.rules, *self.enable) for n in _rule_ids(name, known))


def from_values(values: Mapping[str, object], where: str) -> Switches:
    """Return what keywords or the keys of a file say; every key must be known.

    Raises:
        SwitchError: one of them is not, or has a value of a wrong kind.

    """
    found = Switches()
    for key, value in values.items():
        found = found.merged(_parse_value(key, value, where))
    return found


def from_file(values: Mapping[str, object], where: str) -> Switches:
    """Return what a file says that holds the settings of a training program as well.

    Raises:
        SwitchError: a key is nearly one of ours, or has a value of a wrong kind.

    """
    own = {}
    for key, value in values.items():
        if _is_ours(key):
            own[key] = value
        elif key.startswith(("use_fused_", "use_npu_", "disable_fused", "npufix")) or _near(key):
            raise _report_unknown(key, where)
    return from_values(own, where)


def from_environment(variables: Mapping[str, str] = os.environ) -> Switches:
    """Return what NPUFIX_RULES, NPUFIX_DISABLE and NPUFIX_ALLOW say."""
    disable = _split(variables.get("NPUFIX_DISABLE", ""))
    off = any(name.lower() in {"all", *_TRUE} for name in disable)
    return Switches(
        rules=_split(variables.get("NPUFIX_RULES", "")),
        disable=() if off else tuple(n for n in disable if n.lower() not in _FALSE),
        allow=_split(variables.get("NPUFIX_ALLOW", "")),
        off=off,
    )


def _split(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def _parse_value(key: str, value: object, where: str) -> Switches:
    if key in _LISTS:
        names = _split(value) if isinstance(value, str) else value
        if not isinstance(names, (list, tuple, set, frozenset)) or not all(
            isinstance(name, str) for name in names
        ):
            raise SwitchError(f"{where}: {key} is {value!r}", "give a list of names")
        said = tuple(names)
        kinds = {"rules": Switches(said), "disable": Switches(disable=said)}
        return kinds.get(key) or Switches(allow=said)
    if not _is_ours(key):
        raise _report_unknown(key, where)
    if not isinstance(value, bool):
        raise SwitchError(f"{where}: {key} is {value!r}", "give true or false")
    if key == NOTHING:
        return Switches(off=value)
    return Switches(enable=(key,)) if value else Switches(disable=(key,))


def _is_ours(key: str) -> bool:
    return key in {*SWITCHES, *_LISTS, NOTHING} or _rule_name(key) in _rules()


def _rule_name(key: str) -> str:
    return key.lower().replace("_", "-")


@dataclass(frozen=True, slots=True)
class _Names:
    rules: Mapping[str, str]
    """The id of every rule, lower case, by id and by name."""
    conditions: frozenset[str]


@cache
def _names() -> _Names:
    """Return what can be named: kept for the next time, as all rules are loaded to know it."""
    store = Store(private_cache_folder("running"))
    kept = store.get(b"names")
    if kept is None:
        from npufix.advisor.project.known_names import condition_names
        from npufix.rules.registry import all_rules

        ids = {rule.id.lower(): rule.id.lower() for rule in all_rules()}
        ids |= {rule.name: rule.id.lower() for rule in all_rules()}
        kept = json.dumps([ids, sorted(condition_names())]).encode()
        store.put(kept, b"names")
    rules, conditions = json.loads(kept)
    return _Names(rules, frozenset(conditions))


def _rules() -> Mapping[str, str]:
    return _names().rules


def _rule_ids(name: str, known: Mapping[str, str]) -> tuple[str, ...]:
    if name in SWITCHES:
        return SWITCHES[name]
    found = known.get(_rule_name(name))
    if found is None:
        raise _report_unknown(name, "rules")
    return (found,)


def _conditions(names: Iterable[str], known: Mapping[str, str]) -> frozenset[str]:
    found: set[str] = set()
    for name in names:
        rule, colon, condition = name.rpartition(":")
        if condition not in _names().conditions:
            near = _closest(condition, _names().conditions)
            raise SwitchError(f"allow names no condition {condition}", near or "see npufix rules")
        one_rule = _rule_ids(rule, known) if colon else ()
        found |= {f"{one}:{condition}" for one in one_rule} if colon else {condition}
    return frozenset(found)


def _near(key: str) -> bool:
    return bool(difflib.get_close_matches(key, [*SWITCHES, NOTHING], 1, cutoff=0.8))


def _report_unknown(key: str, where: str) -> SwitchError:
    names = [*SWITCHES, NOTHING, *_LISTS, *_rules()]
    return SwitchError(
        f"{where}: there is no {key}",
        _closest(key.replace("-", "_"), names)
        or _closest(_rule_name(key), names)
        or f"there are {', '.join(SWITCHES)}, {NOTHING}, {', '.join(_LISTS)} and the rules"
        " (npufix rules)",
    )


def _closest(name: str, names: Iterable[str]) -> str:
    found = difflib.get_close_matches(name, sorted(names), 3, cutoff=0.6)
    return f"did you mean {' or '.join(found)}?" if found else ""
