"""Searching the files of a source tree, on all cores where that pays."""

from __future__ import annotations

import gc
import io
import multiprocessing
import os
import pickle  # only between this process and its own children
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.advisor.console import stopping
from npufix.advisor.project.generated import generated_from, with_condition
from npufix.advisor.project.known_names import condition_names
from npufix.profiling_parsers.progress import advanced
from npufix.reports.report import Problem
from npufix.rewriters.find import Site, find_sites
from npufix.rewriters.match.prefilter import words_for
from npufix.rewriters.match.suppressions import (
    Suppression,
    read_assumptions,
    read_suppressions,
    unknown_conditions,
    unknown_names,
)
from npufix.rewriters.write import child_processes
from npufix.rules.substitution import Condition, Form, Substitution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.project.source_tree import SourceFile
    from npufix.rewriters.match.recorded_call import RecordedCall

    Recorded = Callable[[str], Mapping[int, Sequence[RecordedCall]] | None]
    """The recorded operator calls of a file, by line."""

# Below this many characters of source a second process takes longer to start than it saves.
_WORTH_A_POOL = 1_000_000
# Collecting garbage as often as Python does by default takes half of the time of a large tree.
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 1_000_000


@dataclass(frozen=True, slots=True)
class FileSearch:
    """What the search of one file gave."""

    sites: tuple[Site, ...] = ()
    hidden: tuple[tuple[Site, Suppression], ...] = ()
    """What the user's comments say is to be left alone."""
    problem: Problem | None = None
    warnings: tuple[str, ...] = ()


@dataclass(frozen=True)
class Search:
    """What to look for, and where the answers to its conditions come from."""

    rules: Sequence[Substitution]
    configuration: Configuration
    recorded: Recorded
    known: frozenset[str]
    """Ids and names of all rules, in lower case, for comments that name one."""
    with_text: bool = True
    """Whether sites carry the text of the changed module; a report has no use for it."""

    def rules_for(self, file: SourceFile) -> list[Substitution]:
        """Return the rules that are wanted in a file."""
        ignored = self.configuration.ignored_in(file.path.resolve())
        return [r for r in self.rules if not {r.id.lower(), r.name} & ignored]

    def file(self, file: SourceFile) -> FileSearch:
        """Search one file; what goes wrong there is its problem alone."""
        try:
            rules = self.rules_for(file)
            recorded = self.recorded(file.relative)
            text = self.with_text
            sites = list(find_sites(file.text, rules, recorded, file.neighbour, with_text=text))
            comments = read_suppressions(file.text)
            granted = read_assumptions(file.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            return FileSearch(problem=_report_unparsed(file.relative, error))
        except Exception as error:  # noqa: BLE001 - a rule's fault must not hide the other files
            stopping.check()
            return FileSearch(problem=_report_internal(file.relative, error))
        said = [f"{file.relative}: {text}" for text in unknown_names(comments, self.known)]
        wrong = unknown_conditions(granted, condition_names())
        said += [f"{file.relative}: {sentence}" for sentence in wrong]
        sites = [_with_assumptions(site, granted) for site in sites]
        hidden = [(s, c) for s in sites if (c := _comment_on(s, comments)) is not None]
        left = {id(site) for site, _ in hidden}
        said += [f"{file.relative}: {text}" for text in _find_unused(comments, hidden, rules, self)]
        source = generated_from(file.text) if sites else None
        kept = [s if source is None else with_condition(s, source) for s in sites]
        kept = [k for s, k in zip(sites, kept, strict=True) if id(s) not in left]
        return FileSearch(tuple(kept), tuple(hidden), None, tuple(said))

    def files(self, files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, FileSearch]]:
        """Yield what each file holds, in the order given."""
        workers = min(child_processes.processors(), len(files))
        size = sum(len(file.text) for file in files)
        if workers < 2 or size < _WORTH_A_POOL or not _can_fork():  # noqa: PLR2004 - no pool of one
            with _collecting_rarely():
                for number, file in enumerate(files):
                    advanced("files", number, len(files))
                    yield file, self.file(file)
            return
        yield from _Pool(self, files, workers).results()


def _comment_on(site: Site, comments: Sequence[Suppression]) -> Suppression | None:
    return next((comment for comment in comments if comment.hides(site.rule, site.own_lines)), None)


def _with_assumptions(site: Site, comments: Sequence[Suppression]) -> Site:
    """Return the site with what comments on its lines, or on what it is in, vouch for."""
    covering = [comment.names for comment in comments if site.line in comment.covers]
    return site.assuming(frozenset().union(*covering)) if covering else site


def _find_unused(
    comments: Sequence[Suppression],
    hidden: Sequence[tuple[Site, Suppression]],
    rules: Sequence[Substitution],
    search: Search,
) -> Iterator[str]:
    """Yield the comments that hide nothing, where all the rules that they mean were looked for."""
    tried = {name for rule in rules for name in (rule.id.lower(), rule.name)}
    used = {comment for _, comment in hidden}
    for comment in comments:
        meant = (comment.names or search.known) & search.known
        if comment not in used and meant and meant <= tried:
            yield f"line {comment.line}: '{comment.text}' hides nothing"


def _report_unparsed(relative: str, error: Exception) -> Problem:
    line = getattr(error, "lineno", None)
    what = getattr(error, "msg", None) or str(error)
    where = f"{relative}:{line}" if line else relative
    remedy = "fix it, or leave the file out"
    return Problem(where, f"not valid Python: {what}", remedy, damaged=True)


def _report_internal(relative: str, error: Exception) -> Problem:
    what = f"internal error, the file was left out: {type(error).__name__}: {error}"
    return Problem(relative, what, "please report it with the file", damaged=True)


def _can_fork() -> bool:
    # A child that starts anew would have to be sent every file, and to run the caller's program.
    return "fork" in multiprocessing.get_all_start_methods()


class _Pool:
    """Children that share the files with this process and send back what they found."""

    def __init__(self, search: Search, files: Sequence[SourceFile], workers: int) -> None:
        self.search = search
        self.files = files
        self.workers = workers

    def results(self) -> Iterator[tuple[SourceFile, FileSearch]]:
        """Yield the result of each file, in their order."""
        # The largest first, so that no core waits for another at the end.
        order = sorted(range(len(self.files)), key=lambda i: -len(self.files[i].text))
        found: dict[int, FileSearch] = {}
        words_for(tuple(self.search.rules))  # read the patterns before each child does
        with warnings.catch_warnings():
            # The children touch nothing that the threads of other libraries hold.
            warnings.simplefilter("ignore", DeprecationWarning)
            pool = ProcessPoolExecutor(
                self.workers,
                multiprocessing.get_context("fork"),
                _begin,
                (self.search, self.files, os.getpid()),
            )
            try:
                with child_processes.ended_on_error():
                    for index, data in zip(order, pool.map(_work, order, chunksize=8), strict=True):
                        found[index] = _unpack(data, self.search.rules)
                        advanced("files", len(found), len(self.files))
            finally:
                pool.shutdown(cancel_futures=True)
        for index, file in enumerate(self.files):
            yield file, found[index]


_inherited: list[tuple[Search, Sequence[SourceFile]]] = []
"""In a child: what it works on. Arguments of a forked child's initializer are not copied."""


def _collect_rarely() -> None:
    """Look for garbage seldom: syntax trees are many objects, and none of them is garbage."""
    gc.freeze()
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)


@contextmanager
def _collecting_rarely() -> Iterator[None]:
    usual = gc.get_threshold()
    _collect_rarely()
    try:
        yield
    finally:
        gc.set_threshold(*usual)
        gc.unfreeze()


def _begin(search: Search, files: Sequence[SourceFile], parent: int) -> None:
    child_processes.begin(parent)
    _collect_rarely()
    _inherited.append((search, files))


def _work(index: int) -> bytes:
    search, files = _inherited[0]
    return _pack(search.file(files[index]), search.rules)


def _parts(rules: Sequence[Substitution]) -> Iterator[Substitution | Form | Condition]:
    """Yield what both processes have, in one order: rules hold functions, which cannot be sent."""
    for rule in rules:
        yield rule
        for form in rule.forms:
            yield form
            yield from form.conditions


class _Pickler(pickle.Pickler):
    def __init__(self, file: io.BytesIO, rules: Sequence[Substitution]) -> None:
        super().__init__(file, pickle.HIGHEST_PROTOCOL)
        self.places = {id(part): place for place, part in enumerate(_parts(rules))}

    def persistent_id(self, obj: object) -> object:
        place = self.places.get(id(obj))
        if place is None and isinstance(obj, Condition):  # not a rule's: that of a generated file
            return obj.name, obj.text
        return place


class _Unpickler(pickle.Unpickler):
    def __init__(self, file: io.BytesIO, rules: Sequence[Substitution]) -> None:
        super().__init__(file)
        self.parts = list(_parts(rules))

    def persistent_load(self, pid: object) -> object:
        if isinstance(pid, tuple):
            name, text = pid
            return Condition(name, text, lambda _site: None)
        if not isinstance(pid, int):
            raise TypeError(pid)
        return self.parts[pid]


def _pack(found: FileSearch, rules: Sequence[Substitution]) -> bytes:
    if found == FileSearch():
        return b""
    buffer = io.BytesIO()
    _Pickler(buffer, rules).dump(found)
    return buffer.getvalue()


def _unpack(data: bytes, rules: Sequence[Substitution]) -> FileSearch:
    if not data:
        return FileSearch()
    found: FileSearch = _Unpickler(io.BytesIO(data), rules).load()
    return found
