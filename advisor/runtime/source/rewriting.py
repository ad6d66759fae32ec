"""One module in, its code with the changes of the rules out; nothing of it is executed.

The changes are those of ``npufix patch --portable``, made by the same rewriter: the new code where
a tensor is on an NPU, the old code elsewhere. The code object belongs to the file on disk: what is
unchanged has its own lines there, what is new those of the statement that it stands for.
"""

from __future__ import annotations

import hashlib
import io
import marshal
import os
import tokenize
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.runtime.source.places import NewImport, RulePlace  # noqa: TC001 - msgspec reads them
from npufix.advisor.runtime.source.proving import keep

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator
    from types import CodeType

    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.runtime.source.proving import Prover
    from npufix.advisor.runtime.source.selection import RuleSelection

_MOST_BYTES = 4 << 20


class _Entry(msgspec.Struct, frozen=True):
    text: str
    places: tuple[RulePlace, ...]
    imports: tuple[NewImport, ...]
    problem: str
    neighbours: dict[str, str]
    code: bytes


@dataclass(frozen=True, slots=True)
class RewrittenModule:
    """What rewriting a module gave."""

    path: str
    text: str
    """The new source; empty if nothing was replaced."""
    places: tuple[RulePlace, ...]
    imports: tuple[NewImport, ...]
    """What the new code imports besides, at its top level."""
    code: CodeType | None
    """The new module, compiled; ``None`` if nothing was replaced."""
    problem: str = ""
    """Why the module could not be read."""

    def function(self, qualname: str, line: int = 0) -> CodeType | None:
        """Return the code of a function or method: ``LlamaMLP.forward``.

        ``line`` (``co_firstlineno``) tells two of one name apart.
        """
        found = [code for name, code in functions(self.code) if name == qualname]
        return next((code for code in found if not line or code.co_firstlineno == line), None)


def functions(code: CodeType | None) -> Iterator[tuple[str, CodeType]]:
    """Yield the functions in the code of a module, by their ``__qualname__``; classes as well."""
    yield from _below(code, "") if code is not None else ()


def _below(code: CodeType, prefix: str) -> Iterator[tuple[str, CodeType]]:
    for inner in code.co_consts:
        if hasattr(inner, "co_code"):
            name = f"{prefix}{inner.co_name}"
            yield name, inner
            is_function = bool(inner.co_flags & 0x2)  # CO_NEWLOCALS, which classes have not
            yield from _below(inner, f"{name}.<locals>." if is_function else f"{name}.")


def rewrite_module(
    path: str,
    data: bytes,
    selection: RuleSelection,
    store: Store | None = None,
    prover: Prover | None = None,
) -> RewrittenModule:
    """Return a module with its changes; with a prover only those that are proven.

    ``path`` is what its code objects are to name (``__file__``); modules of the same package are
    looked up beside it. What cannot be read is a ``problem``, never an exception.
    """
    file = Path(path)
    key = (os.fsencode(path), hashlib.sha256(data).digest(), selection.key.encode())
    # What is proven, the verifier keeps by itself, for as long as it holds.
    known = None if store is None or prover is not None else _recall(store.get(*key), file)
    if known is None:
        entry, _ = _search(file, data, selection, prover)
        if prover is not None and store is not None:
            keep(store, data, entry.places)
            store = None
        if store is not None:
            store.put(msgspec.msgpack.encode(entry), *key)
        known = entry, marshal.loads(entry.code) if entry.code else None  # noqa: S302 - just made
    entry, code = known
    return RewrittenModule(path, entry.text, entry.places, entry.imports, code, entry.problem)


def change_tree(
    path: str, data: bytes, selection: RuleSelection
) -> tuple[RewrittenModule, ast.Module | None]:
    """Return a module with its changes and its tree, with the positions of the file.

    For who needs one function of it; the tree is ``None`` where nothing was replaced.
    """
    entry, tree = _search(Path(path), data, selection)
    code = marshal.loads(entry.code) if entry.code else None  # noqa: S302 - just made
    return RewrittenModule(path, entry.text, entry.places, entry.imports, code, entry.problem), tree


def _recall(data: bytes | None, file: Path) -> tuple[_Entry, CodeType | None] | None:
    """Return an entry of an earlier start, if it still holds."""
    if data is None:
        return None
    try:
        entry = msgspec.msgpack.decode(data, type=_Entry)
        code = marshal.loads(entry.code) if entry.code else None  # noqa: S302 - from our folder
    except (msgspec.DecodeError, ValueError, EOFError, TypeError):
        return None
    if entry.neighbours:
        neighbour = _Neighbours(file)
        if any(_digest(neighbour(name)) != digest for name, digest in entry.neighbours.items()):
            return None
    return entry, code


def _digest(text: str | None) -> str:
    return "" if text is None else hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()


class _Neighbours:
    """The modules of the same package, and which of them were asked for."""

    def __init__(self, file: Path, data: bytes = b"", text: str = "", encoding: str = "") -> None:
        from npufix.advisor.project.source_tree import SourceFile

        self.file = SourceFile(file, file.name, data, text, encoding)
        self.asked: dict[str, str] = {}

    def __call__(self, module: str) -> str | None:
        found = self.file.neighbour(module)
        self.asked[module] = _digest(found)
        return found


def _search(
    file: Path, data: bytes, selection: RuleSelection, prover: Prover | None = None
) -> tuple[_Entry, ast.Module | None]:
    """Search a module and make its changes."""
    if len(data) > _MOST_BYTES:
        return _fail(f"larger than {_MOST_BYTES >> 20} MiB")
    try:
        encoding, _ = tokenize.detect_encoding(io.BytesIO(data).readline)
        # As Python reads it: one kind of line end.
        text = io.IncrementalNewlineDecoder(None, translate=True).decode(data.decode(encoding))
    except (SyntaxError, UnicodeDecodeError, LookupError) as error:
        return _fail(f"cannot be decoded: {error}")
    from npufix.advisor.runtime.source.changing import change

    neighbours = _Neighbours(file, data, text, encoding)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # what Python says about the code it says at import
            made = change(file, text, selection, neighbours, prover)
            code = b"" if made.tree is None else _compile(made.tree, file)
    except (SyntaxError, ValueError, RecursionError) as error:
        return _fail(f"cannot be read: {error}")
    except Exception as error:  # noqa: BLE001 - a fault of ours must never break an import
        return _fail(f"internal error: {type(error).__name__}: {error}")
    return _Entry(made.text, made.places, made.imports, "", neighbours.asked, code), made.tree


def _compile(tree: ast.Module, file: Path) -> bytes:
    return marshal.dumps(compile(tree, os.fspath(file), "exec", dont_inherit=True))


def _fail(problem: str) -> tuple[_Entry, None]:
    return _Entry("", (), (), problem, {}, b""), None
