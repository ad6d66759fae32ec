"""The list of all rules on a terminal, one block a table."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text

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
