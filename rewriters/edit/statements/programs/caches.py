"""Caches of keys and values that grow by one token, each time into new memory."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.statements.proposal import Proposal

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

GROWS = r"(?i)(cat|concat)\([\[(][^\n]*(past|cache)"
_CACHE = re.compile(r"(?i)past(?!e)|cache")
_OF_OTHERS = re.compile(r"(?i)pad|conv|splice|wave|frame|feat|score|stat")
"""What is no key and no value: what a convolution or a filter of sound sees, what was found."""


def find_growing_caches(here: Surroundings) -> Iterator[Proposal]:
    """Yield the first ``cat`` of what is cached with what is new, that is cached again."""
    for node in here.nodes:
        match node:
            case ast.Call(function, [ast.List([old, new]) | ast.Tuple([old, new]), *_]) if (
                here.flow.names.dotted(function) in {"torch.cat", "torch.concat"}
            ):
                name = here.text(old)
                stored = here.parents.get(id(node))
                if (
                    _CACHE.search(name)
                    and not _OF_OTHERS.search(name)
                    and not _CACHE.search(here.text(new))
                    and _is_kept(here, stored, old)
                    and not _is_cut(here, ast.unparse(old))
                ):
                    yield Proposal(node, _advice(re.sub(r"\[\d\]$", "", name)))
                    return


def _advice(name: str) -> str:
    return (
        "all keys and values so far are copied for each token, and every length is a new shape: "
        f"allocate {name} once for the longest sequence and write the new rows with index_copy_ "
        "(in transformers: cache_implementation='static'); decode with "
        "torch_npu.npu_fused_infer_attention_score and actual_seq_lengths_kv, which leaves out the "
        "rest"
    )


def _is_kept(here: Surroundings, stored: ast.AST | None, old: ast.expr) -> bool:
    """Tell whether what is joined becomes the cache of the next call."""
    match stored:
        case ast.Assign([ast.Attribute() | ast.Subscript() as target]):
            return ast.unparse(target) == ast.unparse(old)
        case ast.Assign([ast.Name(name)]):
            again = [n for n in here.nodes if isinstance(n, (ast.Assign, ast.Return))]
            joined = {ast.unparse(t) for n in again if _joins(n) for t in n.targets}
            return any(_holds(n, name, joined) for n in again)
    return False


def _is_cut(here: Surroundings, name: str) -> bool:
    """Tell whether a cache is kept to a length: ``cache["k"] = cache["k"][:, :, -n:]``."""
    return any(
        isinstance(n, ast.Assign)
        and isinstance(n.value, ast.Subscript)
        and name in map(ast.unparse, n.targets)
        and ast.unparse(n.value.value) == name
        for n in here.nodes
    )


def _joins(statement: ast.Assign | ast.Return) -> TypeGuard[ast.Assign]:
    return isinstance(statement, ast.Assign) and "cat(" in ast.unparse(statement.value)


def _holds(statement: ast.Assign | ast.Return, name: str, joined: set[str]) -> bool:
    """Tell whether ``(key, value)`` is handed on: returned, or bound to a name like a cache.

    Both have grown: not so ``(x, positions)`` of a layer that keeps what it returns.
    """
    pairs = [statement.value]
    match statement.value:
        case ast.IfExp(_, chosen, other):
            pairs = [chosen, other]
        case ast.Tuple(parts):
            pairs += parts
    if isinstance(statement, ast.Assign) and not any(
        re.search(r"(?i)past|cache|present", ast.unparse(t)) for t in statement.targets
    ):
        return False
    return any(
        isinstance(pair, (ast.Tuple, ast.List))
        and len(pair.elts) == 2  # noqa: PLR2004 - key and value
        and name in map(ast.unparse, pair.elts)
        and joined.issuperset(map(ast.unparse, pair.elts))
        for pair in pairs
    )
