"""The one place where the user's code is called and anything it raises is caught."""

from __future__ import annotations

import re
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.verification.sandbox.limits import ExpiredError, alarm

if TYPE_CHECKING:
    from collections.abc import Callable

_LONGEST = 300
_WHEN = re.compile(r"\[ERROR\] [-:\d]+ \(PID:[^)]*\) ")
"""How torch_npu says when and where something went wrong: another each time."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a call returned or raised."""

    value: object = None
    error: str = ""
    """``TypeError: ...``; empty if the call returned."""
    kind: str = ""
    """The name of the exception's class."""
    where: str = ""
    """``file:line`` of the innermost frame."""

    @property
    def expired(self) -> bool:
        """Whether the call was stopped for taking too long."""
        return self.kind == ExpiredError.__name__


class PassedError(Exception):
    """What such a function raises for which no handler is."""


class RaisedError(RuntimeError, ValueError, TypeError, KeyError, IndexError, ArithmeticError):
    """What a function raises that is passed in order to fail; any handler is for it."""


def try_call(call: Callable[[], object], seconds: float) -> Outcome:
    """Call, and turn an exception into a value."""
    try:
        with warnings.catch_warnings(), alarm(seconds):
            warnings.simplefilter("ignore")
            return Outcome(call())
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # noqa: BLE001 - the user's code may raise anything, SystemExit included
        last = error.__traceback__
        while last is not None and last.tb_next is not None:
            last = last.tb_next
        where = f"{last.tb_frame.f_code.co_filename}:{last.tb_lineno}" if last is not None else ""
        kind = type(error).__name__
        text = _WHEN.sub("", " ".join(_say(error).split()))
        return Outcome(None, f"{kind}: {text}"[:_LONGEST].rstrip(": "), kind, where)


def _say(error: BaseException) -> str:
    """Return what an exception says: text that can be sent, whatever its own code does."""
    try:
        text = str(error)[: 4 * _LONGEST]
    except BaseException:  # noqa: BLE001 - as above
        return ""
    return text.encode("utf-8", "backslashreplace").decode()
