"""The same wrong changes in the replacements of npufix's own rules."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import itertools
import json
import linecache
import multiprocessing
import random
import sys
import types
from typing import TYPE_CHECKING, Any

from benchmarks.mutations import wrong
from benchmarks.mutations.edits import Source

if TYPE_CHECKING:
    from collections.abc import Iterator
    from multiprocessing.connection import Connection
    from pathlib import Path

    from npufix.rules.substitution import Form

_MORE = 40
"""Rounds, for what was called equivalent."""


def run_rules(results: Path, known: set[tuple[str, str, str]], each: int, seed: int) -> None:
    """Verify changed replacements of all rules, and write down each verdict as it comes.

    ``each``: so many changes of a form, drawn by the seed.
    """
    import torch

    # imported before any process forks
    from npufix.rewriters.verification.judge.verify_rule import verify_rule  # noqa: F401
    from npufix.rules.registry import all_rules

    torch.set_num_threads(1)
    with results.open("a", encoding="utf-8") as file:
        for rule in all_rules():
            for number, form in enumerate(rule.forms):
                drawn = random.Random(f"{seed} {rule.id} {number}")  # noqa: S311 - the same each time
                for kind, line, changed in itertools.islice(_mutants(form, drawn), each):
                    row = {"sense": "wrong", "seed": seed, "kind": kind, "line": line,
                           "function": f"rules/{rule.id} form {number}"}  # fmt: skip
                    if ("wrong", row["function"], kind) in known:
                        continue
                    row |= _verify_apart(changed)
                    file.write(json.dumps(row) + "\n")
                    file.flush()


def _verify_apart(form: Form) -> dict[str, str]:
    """Return the verdict, of a process of its own: a wrong call of an operator may end it."""
    context = multiprocessing.get_context("fork")
    mine, theirs = context.Pipe(duplex=False)
    process = context.Process(target=_verify, args=(form, theirs))
    process.start()
    theirs.close()
    try:
        found: dict[str, str] = mine.recv()
    except EOFError:
        found = {"status": "not verified", "reason": "an operator ended the process"}
    process.join()
    return found


def _verify(form: Form, pipe: Connection) -> None:
    from npufix.rewriters.verification.judge.verify_rule import verify_rule

    try:
        verdict = verify_rule(form)
        found = {"status": verdict.status.value, "reason": verdict.reason[:200]}
    except Exception as error:  # noqa: BLE001 - of a changed rule
        found = {"status": "refuted", "reason": f"it raises {error}"[:200]}
    if found["status"] == "equivalent":  # many more inputs, of other seeds
        found["larger"] = verify_rule(form, seed=1000, rounds=_MORE).reason[:200]
    pipe.send(found)


def _mutants(form: Form, drawn: random.Random) -> Iterator[tuple[str, str, Form]]:
    """Yield a form with one change of each kind in its replacement."""
    function: Any = form.replacement
    module = sys.modules[function.__module__]
    source = Source(inspect.getsource(module))
    # What stands in the signature is a name for a part of the match: no default of it is written.
    scope = next(n for n in source.tree.body if getattr(n, "name", "") == function.__name__)
    inside = [n for statement in scope.body for n in ast.walk(statement)]  # type: ignore[attr-defined] # a function
    operators = list(wrong.OPERATORS.items())
    for kind, operator in drawn.sample(operators, len(operators)):
        edits = [edit for node in inside for edit in operator(source, node)]
        for edit in drawn.sample(edits, min(1, len(edits))):
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
