"""What is known of a place in a module that a rule applies to."""

from __future__ import annotations

import msgspec


class RulePlace(msgspec.Struct, frozen=True):
    """A place where a rule applies, and what became of it."""

    rule: str
    name: str
    line: int
    function: str
    code: str
    replacement: str = ""
    why_not: str = ""
    """Why the code stays as it is; empty if it was replaced."""
    missing: tuple[str, ...] = ()
    """The conditions that nothing proves and nobody vouches for."""
    asked: tuple[str, ...] = ()
    """Those that each call answers; where one does not hold the old code runs."""
    vouched: tuple[str, ...] = ()
    """Those that the user vouches for, one by one."""
    by_name: tuple[str, ...] = ()
    """Those that the user vouches for by naming the rule."""
    unmeasured: tuple[str, ...] = ()
    """Those about time alone: the new code computes the same where they do not hold."""
    counted: bool = False
    """Whether each call asks: then it is known how often the new code ran."""
    verdict: str = ""
    """What a verification has found out, in one line."""

    @property
    def replaced(self) -> bool:
        """Whether the code was exchanged."""
        return not self.why_not


class NewImport(msgspec.Struct, frozen=True):
    """A name that the new code needs and the old module did not import."""

    name: str
    module: str
    member: str = ""


def place_key(path: str, rule: str, line: int) -> str:
    """Return by what a running program tells one place from another."""
    return f"{path}:{line}:{rule}"
