"""Environment variables: what a run had set, and the lines that set what it had not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rules.diagnostic import Recording


@dataclass(frozen=True, slots=True)
class Setting:
    """An environment variable and the value to give it."""

    name: str
    value: str
    enough: Callable[[str], bool] | None = None
    """Whether another value is as good; ``None``: only ``value`` is."""

    def is_set(self, recording: Recording) -> bool | None:
        """Tell whether the run had it; ``None`` where the dump does not record the variable.

        Profilers record a fixed list of variables, those that are not set as empty.
        """
        found = find_recorded(recording, self.name)
        if found is None:
            return None
        return found == self.value or (self.enough is not None and self.enough(found))

    @property
    def line(self) -> str:
        """Return what to type."""
        return f"export {self.name}={self.value}"


def find_recorded(recording: Recording, name: str) -> str | None:
    """Return the value of a variable, "" if it was not set, ``None`` if that is not recorded."""
    value = recording.environment.variables.get(name)
    return None if value is None else value.strip()


def at_least(least: int) -> Callable[[str], bool]:
    """Return a test for values that are numbers and no smaller."""
    return lambda text: text.isdecimal() and int(text) >= least


def lines_to_set(recording: Recording, *settings: Setting) -> str:
    """Return the lines that set what the run had not, and which of them it may have had."""
    wanted = [setting for setting in settings if not setting.is_set(recording)]
    unknown = [setting.name for setting in wanted if setting.is_set(recording) is None]
    text = "; ".join(setting.line for setting in wanted)
    if unknown:
        text += f" (unless set: the dump does not record {', '.join(unknown)})"
    return text


def advice(*parts: str) -> str:
    """Join what is to do, without the parts that are done already."""
    return "; ".join(filter(None, parts))
