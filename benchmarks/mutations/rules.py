"""The same wrong changes in the replacements of npufix's own rules."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import json
import linecache
import sys
import types
from typing import TYPE_CHECKING, Any

from benchmarks.mutations import wrong
from benchmarks.mutations.edits import Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from npufix.rules.substitution import Form


def run_rules(results: Path, known: set[tuple[str, str, str]]) -> None:
    """Verify changed replacements of all rules, and write down each verdict as it comes."""
    import torch

    from npufix.rewriters.verification.judge.verify_rule import verify_rule
    from npufix.rules.registry import all_rules

    torch.set_num_threads(1)
    with results.open("a", encoding="utf-8") as file:
        for rule in all_rules():
            for number, form in enumerate(rule.forms):
                for kind, line, changed in _mutants(form):
                    row = {"sense": "wrong", "function": f"rules/{rule.id} form {number}",
                           "kind": kind, "line": line}  # fmt: skip
                    if ("wrong", row["function"], kind) in known:
                        continue
                    try:
                        verdict = verify_rule(changed)
                        row |= {"status": verdict.status.value, "reason": verdict.reason[:200]}
                    except Exception as error:  # noqa: BLE001 - of a changed rule
                        row |= {"status": "refuted", "reason": f"it raises {error}"[:200]}
                    if row["status"] == "equivalent":
                        row["larger"] = _ask_again(changed)
                    file.write(json.dumps(row) + "\n")
                    file.flush()


def _ask_again(form: Form) -> str:
    """Return what many more inputs show, of other seeds."""
    from npufix.rewriters.verification.judge.verify_rule import verify_rule

    return verify_rule(form, seed=1000, rounds=200).reason[:200]


def _mutants(form: Form) -> Iterator[tuple[str, str, Form]]:
    """Yield a form with one change of each kind in its replacement."""
    function: Any = form.replacement
    module = sys.modules[function.__module__]
    source = Source(inspect.getsource(module))
    lines, first = inspect.getsourcelines(function)
    inside = [n for n in ast.walk(source.tree)
              if first <= getattr(n, "lineno", 0) < first + len(lines)]  # fmt: skip
    for kind, operator in wrong.OPERATORS.items():
        edits = [edit for node in inside for edit in operator(source, node)]
        for edit in edits[:1]:
            changed = edit.apply(source.text)
            made = _load(changed, module.__name__, f"{function.__name__} with {kind}")
            other = getattr(made, function.__name__, None)
            if other is not None:
                line = changed.splitlines()[edit.line - 1].strip()
                yield kind, line, dataclasses.replace(form, replacement=other)


def _load(text: str, name: str, tag: str) -> types.ModuleType | None:
    try:
        code = compile(text, f"<{name} {tag}>", "exec")
    except SyntaxError:
        return None
    linecache.cache[code.co_filename] = len(text), None, text.splitlines(True), code.co_filename  # noqa: FBT003 - keep the ends
    module = types.ModuleType(name)
    exec(code, module.__dict__)  # noqa: S102 - a rule of this package, changed
    return module
