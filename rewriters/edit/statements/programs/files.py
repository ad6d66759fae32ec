"""Settings in files that are no Python: scripts of the shell that start a program, and YAML.

A rule whose ``files`` names their endings is found here, line by line. In: a text. Out: the
``Site`` of each rule that has something to say, with the new text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.edit.statements.programs.launchers import Setting
    from npufix.rules.substitution import Substitution

ENDINGS = (".sh", ".bash", ".yaml", ".yml")
"""What the names of such files end with."""
_MOST_LINES = 2000
_BEGINS = re.compile(
    r"torchrun|accelerate|deepspeed|python|msrun|optim|_target_|_component_|class_path|dataloader"
)


def may_have_settings(text: str) -> bool:
    """Tell whether a file that is no Python is worth keeping: it starts or configures a run."""
    return _BEGINS.search(text) is not None and text.count("\n") < _MOST_LINES


def find_settings(text: str, name: str, rules: Sequence[Substitution]) -> Iterator[Site]:
    """Yield the sites of a file with a name, one for each rule: all its changes together."""
    # Every command asks which files these are, few of them find any.
    from npufix.rewriters.edit.statements.programs.launchers import find_environment
    from npufix.rewriters.edit.statements.programs.yaml_settings import find_yaml_settings
    from npufix.rewriters.graph.modules.names import source_lines
    from npufix.rewriters.match.suppressions import names_of_comments

    finders: Mapping[str, Callable[[Sequence[str]], Iterator[Setting]]] = {
        "environment": find_environment,
        "yaml-settings": find_yaml_settings,
    }
    hidden = names_of_comments(text)
    lines = source_lines(text)
    for rule in rules:
        if not name.endswith(rule.files or "\0") or hidden & {"", rule.id.lower(), rule.name}:
            continue
        settings = list(finders[rule.search](lines))
        if settings:
            yield _site(rule, lines, settings)


def _site(rule: Substitution, lines: Sequence[str], settings: Sequence[Setting]) -> Site:
    from npufix.rewriters.edit.site import Basis, Proof, Rewrite, Site
    from npufix.rewriters.graph.modules.scopes import MODULE

    new = list(lines)
    for setting in sorted(settings, key=lambda s: -s.line):
        kept = () if setting.replaces else (lines[setting.line - 1],)
        new[setting.line - 1 : setting.line] = [setting.text, *kept]
    text = "".join(new)
    first = min(setting.line for setting in settings)
    shown = "".join(setting.text for setting in settings).strip()
    (form,) = rule.forms
    return Site(
        rule=rule,
        form=form,
        function=MODULE,
        line=first,
        code=lines[first - 1].strip(),
        lines=frozenset(setting.line for setting in settings),
        proofs=tuple(Proof(condition, Basis.OPEN) for condition in form.conditions),
        rewrite=Rewrite(text, text, shown, first),
        problem="",
        operators=frozenset(),
        function_lines=(1, len(lines)),
    )
