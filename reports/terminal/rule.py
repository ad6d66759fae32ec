"""One rule on a terminal: its documentation and an example before and after."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.text import Text

from npufix.rules.registry import documentation
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from rich.console import Console

    from npufix.rules.registry import Rule


def explain(rule: Rule, console: Console, *, details: bool = False) -> None:
    """Print what a rule does, why, and under which conditions; ``details`` adds all examples."""
    console.print(Text(f"{rule.id} {rule.name} ({rule.table})", style="bold"))
    console.print()
    for paragraph in documentation(rule).split("\n\n"):
        console.print(Text(" ".join(paragraph.split())))
        console.print()
    if not isinstance(rule, Substitution):
        console.print("Do:", style="bold")
        console.print(Text(rule.advice))
        if rule.requires:
            console.print(Text(f"\nNeeds {rule.requires}"))
    else:
        _explain_substitution(rule, console, details=details)


def _explain_substitution(rule: Substitution, console: Console, *, details: bool) -> None:
    console.print(Text(f"Kernels: {', '.join(rule.replaces)}"))
    console.print(Text(f"become:  {', '.join(rule.becomes)} (needs {rule.requires})"))
    if rule.advice:
        console.print(Text(f"\nNever written: {rule.advice}"))
    if rule.silent:
        console.print(Text(f"\nSilent in other runs: {rule.silent}"))
    conditions = {c.name: c.text for form in rule.forms for c in form.conditions}
    if conditions:
        console.print()
        console.print("Conditions, where neither source nor profile proves them:", style="bold")
        for name, text in conditions.items():
            console.print(Text(f"  --allow {name}: {text}"))
    for form in rule.forms if details else rule.forms[:1]:
        for title, function in (("Pattern", form.pattern), ("Replacement", form.replacement)):
            _code(title, inspect.getsource(function), console)
    for example in rule.rewritten if details else rule.rewritten[:1]:
        _code("Before", example.before, console)
        _code("After", example.after, console)


def _code(title: str, source: str, console: Console) -> None:
    console.print()
    console.print(title, style="bold")
    text = re.sub(r"  # (type: ignore|noqa).*", "", textwrap.dedent(source).strip())
    code = Syntax(text, "python", theme="ansi_dark", background_color="default", word_wrap=True)
    console.print(code)
