"""Why a scan says nothing of code that makes the host wait, or of what matches a rule."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.facts.chosen import is_reference
from npufix.rewriters.facts.occasions import is_hot, occasion
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.modules.scopes import MODULE

if TYPE_CHECKING:
    from collections.abc import Iterable

    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.scopes import Scope

_WAITS = re.compile(
    r"\.(item|tolist|cpu|numpy|nonzero|synchronize|empty_cache|double|any|all)\(|float64"
    r"|\b(torch|th)\.(any|all|nonzero|equal|tensor|unique)\("
)
"""What searches for waits, and for double precision, look at."""
_DOUBLES = re.compile(r"\.double\(|float64")
_OCCASIONS = {
    Occasion.HOST: "it runs on the host, or on tensors of the host",
    Occasion.ASIDE: "no step runs it: it belongs to validation, metrics, debugging or the like, or "
    "keeps what it has computed",
    Occasion.CALL: "it runs once a call, or once when something is built, and not in each step",
}


def say_left_out(sites: Iterable[Site]) -> str:
    """Return why a scan of a folder leaves out, or ranks last, what matches at a line."""
    for site in sites:
        if (why := _OCCASIONS.get(site.occasion)) is not None:
            return f"A scan of the folder leaves this out or ranks it last: {why}."
    return ""


def say_silence(scope: Scope, flow: FunctionFlow, text: str, line: int) -> str:
    """Return why nothing is said of a wait at a line; "" where there is none."""
    statements = [n for n in ast.walk(scope.function) if isinstance(n, ast.stmt)]
    at = [s for s in statements if s.lineno <= line <= (s.end_lineno or s.lineno)]
    innermost = max(at, key=lambda s: s.lineno, default=None)
    if innermost is None or not _WAITS.search(text):
        return ""
    of_doubles = _DOUBLES.search(text) is not None
    why = _why(scope, flow, innermost, of_doubles=of_doubles)
    return f"Nothing is said of a wait or of double precision here: {why}."


def _why(scope: Scope, flow: FunctionFlow, code: ast.stmt, *, of_doubles: bool) -> str:
    line = code.lineno
    if is_reference(flow):
        return "the function is a reference for what a kernel computes, or stands in for one"
    when = _OCCASIONS.get(occasion(flow, code=code))
    if when is not None:
        return when
    is_known = of_doubles or scope.function.name == MODULE
    if not is_known and not is_hot(scope, flow.names.tree):
        return (
            "nothing in this file says that a step runs the function, neither its name, its class "
            "nor who calls it"
        )
    tests = [
        ast.unparse(n.test)
        for n in ast.walk(scope.function)
        if isinstance(n, ast.If)
        and n.lineno < line
        and n.body[0].lineno <= line <= (n.end_lineno or n.lineno)
    ]
    if tests:
        return (
            f"it runs only as `if {tests[-1]}` decides, which asks a setting, looks for an error "
            "or comes now and then, or the host waits there anyway"
        )
    return (
        "what is read lies on the host as far as the source shows, is one number, or is needed by "
        "what comes next"
    )
