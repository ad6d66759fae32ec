"""Caches of keys and values: that grow into new memory each time, or have a fixed length."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.graph.modules.syntax import last_name, root_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings

GROWS = r"(?i)(cat|concat)\([\[(][^\n]*(past|cache)"
_CACHE = re.compile(r"(?i)past(?!e)|cache")
_OF_OTHERS = re.compile(r"(?i)pad|conv|splice|wave|frame|feat|score|stat")
"""What is no key and no value: what a convolution or a filter of sound sees, what was found."""

WRITES = r"(?i)(cache|_out|past|\b[kv]s?)\w*\[[^\n]*\] = "
_FIXED = re.compile(r"(?i)cache|past_?key|past_?value")
_PLACES = re.compile(
    r"(?i)pos(ition)?s?(_ids?)?$|places|loc(ation)?s?$|slots?(_mapping)?$|ind(ex|ices)$"
)
"""How a vector of places is called: ``input_pos``, ``cache_position``, not ``layer_idx``."""
_NO_PLACES = re.compile(r"int|int \| None|Optional\[int\]|[\w.]*BoolTensor")
"""What annotates one place, or a mask: ``torch.BoolTensor``."""
_IN_PIECES = (
    "what is read grows with each token, and every length is a new shape: "
    "torch_npu.npu_fused_infer_attention_score(q, keys, values, num_heads=heads, "
    "num_key_value_heads=kv_heads, input_layout='BSND', actual_seq_lengths_kv=lengths, "
    "scale=scale)[0] reads the cache up to its lengths, block_table that of pages; for latent "
    "attention give it query_rope and key_rope. Inference alone: float16 or bfloat16, no gradient"
)
_ATTENDS = frozenset({"softmax", "scaled_dot_product_attention"})


def find_static_caches(here: Surroundings) -> Iterator[Proposal]:
    """Yield where a cache of fixed length is written by an index, or attention reads its begin."""
    changes: list[Change] = []
    first: ast.Assign | None = None
    shown = places = ""
    for node in here.nodes:
        match node:
            case ast.Assign([ast.Subscript(base, ast.Tuple(parts)) as target], value) if _is_fixed(
                here, base
            ) and isinstance(value, ast.Name):
                copied = _copied(here, base, parts, value)
                if copied is None or here.whole_lines(node) is None:
                    continue
                changes.append(Change(here.span(node), copied[0]))
                if first is None:
                    first, (shown, places) = node, copied
                    asked = (("cache", here.text(target.value)), ("places", places))
    if first is not None:
        yield Proposal(first, changes=tuple(changes), shown=shown, asked=asked)
    elif (read := _read_in_pieces(here)) is not None:
        yield Proposal(read, _IN_PIECES)


def _copied(
    here: Surroundings, base: ast.expr, parts: Sequence[ast.expr], new: ast.Name
) -> tuple[str, str] | None:
    """Return ``k_out.index_copy_(2, places, new)`` and the places, for ``[:, :, places, :]``."""
    at = [n for n, part in enumerate(parts) if not isinstance(part, ast.Slice)]
    if len(at) != 1:
        return None
    (dim,) = at
    index = parts[dim]
    named = index.value if isinstance(index, ast.Subscript) else index
    if not isinstance(named, ast.Name | ast.Attribute) or not _PLACES.search(here.text(named)):
        return None
    if isinstance(index, ast.Subscript) and not isinstance(index.slice, ast.Slice):
        return None  # one place of several
    if here.is_tensor(new) is False or not _may_be_places(here, index):
        return None
    cut = [here.text(part) for part in parts[:dim]]
    if any(here.text(part) != ":" for part in parts[dim + 1 :]):
        return None
    text = here.text(base)
    if any(part != ":" for part in cut):
        while cut[-1] == ":":
            cut.pop()
        text = f"{text}[{', '.join(cut)}]"
    return f"{text}.index_copy_({dim}, {here.text(index)}, {new.id})", here.text(index)


def _may_be_places(here: Surroundings, index: ast.expr) -> bool:
    """Tell whether an index may be a vector of int64, and no number, slice or mask."""
    given = here.flow.function.args
    said = {a.arg: a.annotation for a in (*given.args, *given.kwonlyargs)}
    kind = said.get(root_name(index) or "")
    if kind is not None and _NO_PLACES.fullmatch(ast.unparse(kind)):
        return False
    at = here.evaluations.get(id(index))
    if at is None:
        return True
    facts = here.facts(at, x=at.node)
    other = facts.is_tensor("x") is False or facts.is_number("x") or at.node.op == "py:slice"
    return not other and facts.ndim("x") in {None, 1} and facts.dtype("x") in {None, "int64"}


def _is_fixed(here: Surroundings, base: ast.expr) -> bool:
    """Tell whether code is called a cache, or a name for one: ``k_out = self.k_cache``."""
    texts = [ast.unparse(base)]
    if isinstance(base, ast.Name):
        texts += [
            ast.unparse(n.value)
            for n in here.nodes
            if isinstance(n, ast.Assign)
            and any(isinstance(t, ast.Name) and t.id == base.id for t in n.targets)
        ]
    of_class = here.flow.cls is not None and _FIXED.search(here.flow.cls.name) is not None
    kept = isinstance(base, ast.Attribute)
    return any(map(_FIXED.search, texts)) or (of_class and kept)


def _read_in_pieces(here: Surroundings) -> ast.expr | None:
    """Return the first read of ``self.k_cache[:n, :end]`` beside attention that is written out."""
    calls = {last_name(n.func) for n in here.nodes if isinstance(n, ast.Call)}
    written = {
        ast.unparse(target.value)
        for n in here.nodes
        if isinstance(n, ast.Assign)
        for target in n.targets
        if isinstance(target, ast.Subscript)
    }
    if not calls & _ATTENDS:
        return None
    for node in here.nodes:
        match node:
            case ast.Subscript(base, ast.Tuple(parts), ast.Load()) if ast.unparse(
                base
            ) in written and _is_fixed(here, base):
                ends = [
                    p for p in parts[1:] if isinstance(p, ast.Slice) and p.upper and not p.lower
                ]
                if ends and all(isinstance(p, ast.Slice) for p in parts):
                    return node
    return None


def find_growing_caches(here: Surroundings) -> Iterator[Proposal]:
    """Yield the first ``cat`` of what is cached with what is new, that is cached again.

    A layer that keeps it ``if self.is_decoder``, as copies of BERT's do, is mostly an encoder.
    """
    if any(isinstance(n, ast.Attribute) and n.attr == "is_decoder" for n in here.nodes):
        return
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
            if any(isinstance(n, ast.Assign) and _stores(n, old, name) for n in again):
                return True  # ``cache["k"] = k``
            joined = {ast.unparse(t) for n in again if _joins(n) for t in n.targets}
            return any(_holds(n, name, joined) for n in again)
    return False


def _stores(statement: ast.Assign, old: ast.expr, name: str) -> bool:
    """Tell whether a statement puts a name in the place of what was joined to it."""
    kept = isinstance(old, ast.Attribute | ast.Subscript)
    same = ast.unparse(old) in map(ast.unparse, statement.targets)
    return kept and same and isinstance(statement.value, ast.Name) and statement.value.id == name


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
