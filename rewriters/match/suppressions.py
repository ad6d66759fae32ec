"""Comments of the user: ``# npufix: ignore[NPU101]`` leaves a place alone.

On a line of a statement the comment holds for that statement, on the line of a ``def`` or
``class`` for its whole body. ``# npufix: ignore-file`` above the first statement of a module holds
for the file. Without names in brackets every rule is meant. ``# npufix: assume[same-dtype]``
vouches for conditions in the same way, and always names them.
"""

from __future__ import annotations

import ast
import io
import re
import tokenize
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.graph.modules.names import FunctionNode

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from npufix.rules.substitution import Substitution


_COMMENT = re.compile(r"#\s*npufix:\s*ignore(?P<file>-file)?(?![\w-])(?:\s*\[(?P<names>[^\]]*)\])?")
_ASSUMED = re.compile(r"#\s*npufix:\s*assume(?P<file>-file)?\s*\[(?P<names>[^\]]+)\]")
_HINT = "npufix:"


@dataclass(frozen=True, slots=True)
class Suppression:
    """One comment and the lines that it holds for."""

    line: int
    names: frozenset[str]
    """Ids or names of rules, or names of conditions, in lower case; empty means every rule."""
    covers: range
    text: str

    def names_rule(self, rule_id: str, name: str) -> bool:
        """Tell whether a rule is meant."""
        return not self.names or bool(self.names & {rule_id.lower(), name.lower()})

    def hides(self, rule: Substitution, lines: Iterable[int]) -> bool:
        """Tell whether what a rule says about these lines is not wanted."""
        return self.names_rule(rule.id, rule.name) and any(line in self.covers for line in lines)


def read_suppressions(source: str) -> tuple[Suppression, ...]:
    """Return the comments of a module that tell npufix to leave something alone."""
    return _read(source, _COMMENT)


def names_of_comments(text: str) -> frozenset[str]:
    """Return what comments of a file that is no Python leave alone; "" stands for every rule."""
    found = (match["names"] or "" for match in _COMMENT.finditer(text))
    return frozenset(name.strip().lower() for names in found for name in names.split(","))


def read_assumptions(source: str) -> tuple[Suppression, ...]:
    """Return the comments of a module that vouch for conditions."""
    return _read(source, _ASSUMED)


def _read(source: str, wanted: re.Pattern[str]) -> tuple[Suppression, ...]:
    if _HINT not in source:
        return ()
    comments = list(_comments(source, wanted))
    if not comments:
        return ()
    tree = ast.parse(source)
    begin = _first_statement(tree)
    scopes = list(_scopes(tree))
    found = []
    for line, match in comments:
        names = frozenset(n.strip().lower() for n in (match["names"] or "").split(",") if n.strip())
        if match["file"]:
            # Further down it is a slip of the pen: it holds for nothing and is reported as unused.
            covers = range(1, len(source.splitlines()) + 2) if line < begin else range(0)
        else:
            covers = _smallest(scopes, line)
        found.append(Suppression(line, names, covers, match[0]))
    return tuple(found)


def _comments(source: str, wanted: re.Pattern[str]) -> Iterator[tuple[int, re.Match[str]]]:
    """Yield the lines with such a comment; the same text in a string is none."""
    try:
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT and (match := wanted.search(token.string)):
                yield token.start[0], match
    except (tokenize.TokenError, SyntaxError):  # what ast takes and tokenize does not: no comment
        return


def _first_statement(tree: ast.Module) -> int:
    """Return the line of the first statement behind the docstring."""
    code = tree.body[1:] if ast.get_docstring(tree, clean=False) is not None else tree.body
    return code[0].lineno if code else 1 << 30


def _scopes(tree: ast.Module) -> Iterator[tuple[range, range]]:
    """Yield where a comment may stand, and the lines that it holds for there."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.stmt):
            continue
        first, last = node.lineno, node.end_lineno or node.lineno
        body: list[ast.stmt] = getattr(node, "body", [])
        if not body:
            yield range(first, last + 1), range(first, last + 1)
            continue
        # The header of a block: a one-line ``if`` shares its line with the body.
        head = range(first, max(first + 1, _begin(body[0])))
        if isinstance(node, (FunctionNode, ast.ClassDef)):
            first = min([first, *(d.lineno for d in node.decorator_list)])
            yield range(first, head.stop), range(first, last + 1)
        else:
            yield head, head


def _begin(node: ast.stmt) -> int:
    decorators: list[ast.expr] = getattr(node, "decorator_list", [])
    return min([node.lineno, *(d.lineno for d in decorators)])


def _smallest(scopes: Sequence[tuple[range, range]], line: int) -> range:
    """Return what a comment on ``line`` holds for: the widest scope that begins there."""
    return max((covers for place, covers in scopes if line in place), key=len, default=range(0))


def unknown_names(suppressions: Iterable[Suppression], known: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each name that no rule has; ``known`` are ids and names, lower case."""
    for item in suppressions:
        for name in sorted(item.names - known):
            yield f"line {item.line}: no rule is called {name} in '{item.text}'"


def unknown_conditions(granted: Iterable[Suppression], known: frozenset[str]) -> Iterator[str]:
    """Yield a sentence for each name that no condition has."""
    for item in granted:
        for name in sorted(item.names - known):
            yield f"line {item.line}: no condition is called {name} in '{item.text}'"
