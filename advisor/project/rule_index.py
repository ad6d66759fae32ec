"""What is known of every rule without loading it, kept from when they were loaded last.

Without a source ``diagnose`` has no use for the rules that change code, without other ranks none
for those that compare them: two of three files need not be loaded to say which do not apply.
"""

from __future__ import annotations

from contextlib import suppress
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.project.kept.stored import Store
from npufix.rewriters.write.user_folders import private_cache_folder
from npufix.rules.registry import KINDS, every_rule, load_rule, rule_modules

if TYPE_CHECKING:
    from npufix.rules.registry import Rule


class KnownRule(msgspec.Struct, frozen=True, array_like=True):
    """One rule, without what it does."""

    id: str
    name: str
    kind: str
    """Which of the kinds of rules it is, by the name of that class."""
    requires: str
    is_for_gpus: bool
    """Whether it says what to do where the recording is of a GPU."""
    module: str
    """Where it is; "" for that of a plug-in."""

    def load(self) -> Rule:
        """Return the rule itself.

        Raises:
            RuleError: it cannot be loaded.

        """
        if self.module:
            return load_rule(self.module)
        return next(rule for rule in every_rule() if rule.id == self.id)


def known_rules() -> tuple[KnownRule, ...]:
    """Return what ``every_rule`` does, as far as it is known without loading the rules.

    Raises:
        RuleError: as ``every_rule``.

    """
    store = Store(private_cache_folder("rules"))
    kept = store.get(b"index")
    if kept is not None:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(kept, type=tuple[KnownRule, ...])
    found = _ask_every_rule()
    store.put(msgspec.json.encode(found), b"index")
    return found


def _ask_every_rule() -> tuple[KnownRule, ...]:
    modules = {load_rule(name).id: name for name in rule_modules()}
    return tuple(
        KnownRule(
            rule.id,
            rule.name,
            next(kind.__name__ for kind in KINDS if isinstance(rule, kind)),
            rule.requires,
            bool(getattr(rule, "gpu_advice", "")),
            modules.get(rule.id, ""),
        )
        for rule in every_rule()
    )
