"""Rules on a terminal: the list of all, and one with its documentation and an example."""

from __future__ import annotations

import inspect
import re
import textwrap
from typing import TYPE_CHECKING

from rich.syntax import Syntax
from rich.table import Table
from rich.text import Text

from npufix.rules.registry import documentation
from npufix.rules.substitution import Safety, Substitution

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.rules.registry import Rule

_TITLES = {
    "fusion": "Fusion: many small kernels become one",
    "affinity": "Affinity: an operator the NPU is slow at becomes one that it is fast at",
    "settings": "Settings: what the recording says about the run as a whole",
    "cluster": "Cluster: what the ranks of a job show beside each other",
}
_STYLES = {Safety.SAFE: "green", Safety.CONDITIONAL: "yellow", Safety.ADVICE: "cyan"}


def show_rules(rules: Sequence[Rule], console: Console, *, details: bool = False) -> None:
    """Print id, slow pattern and what the tool does about it; ``details`` adds what it needs."""
    for name in dict.fromkeys([*_TITLES, *(rule.table for rule in rules)]):
        own = [rule for rule in rules if rule.table == name]
        if not own:
            continue
        console.print(Text(_TITLES.get(name, name.capitalize()), "bold"))
        table = Table(box=None, pad_edge=False, show_header=False)
        table.add_column(no_wrap=True)
        table.add_column(no_wrap=True)
        table.add_column(overflow="fold")
        for rule in own:
            does = safety(rule)
            more = f" ({rule.name}; needs {rule.requires or 'nothing'})" if details else ""
            table.add_row(rule.id, Text(does.value, _STYLES[does]), f"{rule.summary}{more}")
        console.print(table)
        console.print()
    console.print("safe: written, each change verified. conditional: written where its conditions")
    console.print("are proven, or with --allow CONDITION. advice: said, never written.")
    console.print(Text("\nnpufix rules show ID explains one.", "dim"))


def safety(rule: Rule) -> Safety:
    """Return the most that the tool does for a rule."""
    if not isinstance(rule, Substitution) or rule.advice:
        return Safety.ADVICE
    conditional = all(form.conditions for form in rule.forms)
    return Safety.CONDITIONAL if conditional else Safety.SAFE


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
    if rule.replaces:
        console.print(Text(f"Kernels: {', '.join(rule.replaces)}"))
    if rule.becomes:
        console.print(Text(f"become:  {', '.join(rule.becomes)} (needs {rule.requires})"))
    else:
        console.print(Text(f"Needs {rule.requires}"))
    if rule.advice:
        console.print(Text(f"\nNever written: {rule.advice}"))
    if rule.silent:
        console.print(Text(f"\nSilent in other runs: {rule.silent}"))
    conditions = {c.name: c.text for form in rule.forms for c in form.conditions}
    if conditions:
        console.print()
        console.print("Conditions, where neither source nor profile proves them:", style="bold")
        for name, text in conditions.items():
            console.print(Text(f"  only if {text}: --allow {name}"))
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
