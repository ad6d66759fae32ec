"""How much a command says, and whether in colour: the options that all commands have."""

from __future__ import annotations

import os
from typing import Any

import click

from npufix.advisor.console import speaking

_QUIET, _VERBOSE, _COLOUR = "npufix.quiet", "npufix.verbose", "npufix.colour"

_SAY_ONE_THING = frozenset({"completion"})
"""Commands in which there is nothing to say more or less of."""


def is_quiet() -> bool:
    """Tell whether nothing but the result is wanted."""
    return bool(_option_value(_QUIET))


def is_verbose() -> bool:
    """Tell whether all details are wanted."""
    return bool(_option_value(_VERBOSE))


def wants_colour() -> bool | None:
    """Return whether to write in colour, ``None`` if the terminal decides.

    The command line counts most, then NO_COLOR and FORCE_COLOR.
    """
    said = _option_value(_COLOUR)
    if said is not None:
        return bool(said)
    if os.environ.get("NO_COLOR"):
        return False
    return True if os.environ.get("FORCE_COLOR") else None


def colour_is_asked_for() -> bool:
    """Tell whether ``--color`` was given: what is for programs has no colour otherwise."""
    return _option_value(_COLOUR) is True


def with_common_options(command: click.Command) -> click.Command:
    """Add the options that all commands have, if they are not there already."""
    names = {parameter.name for parameter in command.params}
    if "quiet" not in names:
        command.params.append(
            _option("-q", "--quiet", key=_QUIET, text="Print the line that matters, no more.")
        )
    if "verbose" not in names:
        command.params.append(_option("-v", "--verbose", key=_VERBOSE, text="Show all details."))
    _say_what_does_nothing(command)
    for parameter in command.params:
        if parameter.name == "verbose" and parameter.callback is None:
            parameter.callback = _remember(_VERBOSE)
    if "color" not in names:
        text = "With colours or not. Default: on a terminal; NO_COLOR, FORCE_COLOR."
        command.params.append(_option("--color/--no-color", key=_COLOUR, text=text))
    if "lang" not in names:
        command.params.append(speaking.option())
    if isinstance(command, click.Group):
        for part in command.commands.values():
            with_common_options(part)
    return command


def _say_what_does_nothing(command: click.Command) -> None:
    """Say of a command where they change nothing that all commands take these options."""
    module = getattr(command.callback, "__module__", "").rpartition(".")[2]
    for parameter in command.params if module in _SAY_ONE_THING else ():
        if isinstance(parameter, click.Option) and parameter.name in {"quiet", "verbose"}:
            parameter.help = "Taken as everywhere; changes nothing here."


def _option(*names: str, key: str, text: str) -> click.Option:
    return click.Option(
        names, is_flag=True, default=None, expose_value=False, callback=_remember(key), help=text
    )


def _remember(key: str) -> Any:  # noqa: ANN401 - a callback of click
    def callback(context: click.Context, parameter: click.Parameter, value: Any) -> Any:  # noqa: ANN401, ARG001 - same
        # What the group was given holds for its commands; a default takes nothing back.
        if value is not None and (value or key == _COLOUR):
            context.meta[key] = value
        if context.meta.get(_QUIET) and context.meta.get(_VERBOSE):
            raise click.UsageError("-q and -v contradict each other; give one of them")
        return value or (True if key == _VERBOSE and context.meta.get(key) else value)

    return callback


def _option_value(key: str) -> object:
    context = click.get_current_context(silent=True)
    return context.meta.get(key) if context is not None else None
