"""What is tested: a rule, the file that it is in, and the rules that it has to live with."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from npufix import rules
from npufix.rules.registry import RuleError, every_rule, file_of, rule_of

if TYPE_CHECKING:
    from types import ModuleType

    from npufix.rules.registry import Rule

_HOUSE = Path(str(rules.__file__)).resolve().parent


@dataclass(frozen=True)
class Subject:
    """A rule to be tested."""

    rule: Rule
    path: Path
    others: tuple[Rule, ...]
    """All other rules that are loaded beside it."""

    @property
    def ours(self) -> bool:
        """Whether it is a rule of this project, not of a plug-in."""
        return self.path.is_relative_to(_HOUSE)


def subject_of(rule: Rule) -> Subject:
    """Return a rule as what is tested, beside all that are registered."""
    others = tuple(other for other in every_rule() if other.id != rule.id)
    return Subject(rule, file_of(rule), others)


def read(path: Path) -> Subject:
    """Execute a rule file and return its rule; the file may be anywhere.

    Raises:
        RuleError: the file cannot be loaded, or holds no rule.

    """
    path = path.resolve()
    if path.is_relative_to(_HOUSE):
        for rule in every_rule():
            if file_of(rule) == path:
                return subject_of(rule)
    try:
        rule = rule_of(_execute(path))
    except RuleError as error:
        raise RuleError(f"{path}: {error}") from error
    except Exception as error:
        raise RuleError(f"{path} cannot be loaded: {type(error).__name__}: {error}") from error
    others = (other for other in every_rule() if file_of(other) != path)
    return Subject(rule, path, tuple(others))


def _execute(path: Path) -> ModuleType:
    """Import a file under the name that it has in its package, found by ``__init__.py``."""
    root, parts = path.parent, [path.stem]
    while (root / "__init__.py").is_file():
        root, parts = root.parent, [root.name, *parts]
    sys.path.append(str(root))  # a rule may import what stands beside it
    name = ".".join(parts)
    loaded = sys.modules.get(name)
    if loaded is not None and Path(str(loaded.__file__)).resolve() == path:
        return loaded
    if loaded is not None or len(parts) == 1:
        name = f"npufix_rule_{path.stem}"  # ``random.py`` is not the one of Python
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise RuleError("it is no Python file")
    sys.modules[name] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
