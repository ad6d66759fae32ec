"""What is computed once for each recording, as several rules ask for it."""

from __future__ import annotations

from functools import wraps
from typing import TYPE_CHECKING, Concatenate, ParamSpec, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.rules.diagnostic import Recording

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def kept(
    function: Callable[Concatenate[Recording, Parameters], Result],
) -> Callable[Concatenate[Recording, Parameters], Result]:
    """Have a function remember what it said of a recording; nobody may change what it returns.

    All other arguments must be hashable.
    """

    @wraps(function)
    def asked(
        recording: Recording, /, *args: Parameters.args, **kwargs: Parameters.kwargs
    ) -> Result:
        key = (function, args, tuple(sorted(kwargs.items())))
        if key not in recording.kept:
            recording.kept[key] = function(recording, *args, **kwargs)
        found: Result = recording.kept[key]
        return found

    return asked
