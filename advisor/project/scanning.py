"""Searching the files of a source tree, on all cores where that pays."""

from __future__ import annotations

import gc
import multiprocessing
import os
import warnings
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache, cached_property
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.console import stopping
from npufix.advisor.project.generated import find_origin, with_condition
from npufix.advisor.project.kept.found import FileSearch, Packer
from npufix.advisor.project.known_names import condition_names
from npufix.profiling_parsers.progress import advance
from npufix.reports.report import Problem
from npufix.rewriters.edit.statements.programs.configured import may_have_sites
from npufix.rewriters.edit.statements.programs.files import find_settings
from npufix.rewriters.match.suppressions import (
    Suppression,
    read_assumptions,
    read_suppressions,
    unknown_conditions,
    unknown_names,
)
from npufix.rewriters.write import child_processes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path

    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.project.kept.stored import Store
    from npufix.advisor.project.source_tree import SourceFile
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.prefilter import Words
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rules.substitution import Substitution

    Recorded = Callable[[str], Mapping[int, Sequence[RecordedCall]] | None]
    """The recorded operator calls of a file, by line."""

# Below this many characters of source a second process takes longer to start than it saves.
_WORTH_A_POOL = 1_000_000
_MOST_OF_A_GROUP = 200_000
"""Characters of source that one process gets at a time."""
# Collecting garbage as often as Python does by default takes half of the time of a large tree.
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 1_000_000

REPORT_IT = "please report it with the file"
"""What to do about a fault of ours."""


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
    store: Store | None = None
    """Where what was found is kept for the next time."""
    _read: dict[str, Collection[str]] = field(default_factory=dict)
    """Which neighbours the search of each file has read, as far as this process has seen it."""

    @cached_property
    def packer(self) -> Packer:
        """Return what makes bytes of what was found."""
        return Packer(self.rules)

    def rules_for(self, file: SourceFile) -> Sequence[Substitution]:
        """Return the rules that are wanted in a file."""
        ignored = self._find_ignored(file)
        if not ignored:
            return self.rules
        return [r for r in self.rules if not {r.id.lower(), r.name} & ignored]

    def _find_ignored(self, file: SourceFile) -> frozenset[str]:
        settings = self.configuration
        return (
            settings.find_ignored(file.path.resolve()) if settings.per_file_ignores else frozenset()
        )

    def look_up(self, file: SourceFile) -> FileSearch | None:
        """Return what is known to be in a file, if all that it depends on is as it was."""
        if not file.is_python or not may_have_sites(file.text):
            return self.file(file)  # in no time
        key = self._key(file)
        data = self.store.get(*key) if self.store is not None and key else None
        try:
            found, asked = (None, {}) if data is None else self.packer.unpack(data, file.text)
            if found is None or self.store is None or not all(map(file.answers, asked.items())):
                return None
        except Exception:  # noqa: BLE001 - whatever somebody else has put there
            return None
        self._read[file.relative] = [*asked]
        now = {name: (file.neighbour_digest(name), told) for name, (_, told) in asked.items()}
        if now != asked:  # a module is another one, not for this file
            self.store.put(self.packer.pack(found, now, file.text), *key)
        return found

    def list_read(self, file: SourceFile) -> Collection[str] | None:
        """Return which neighbours the search of a file has read, ``None`` if that is not known."""
        if not file.is_python or not may_have_sites(file.text):
            return ()
        if file.relative in self._read:
            return self._read[file.relative]
        key = self._key(file)
        data = self.store.get(*key) if self.store is not None and key else None
        return None if data is None else [*self.packer.unpack(data, file.text)[1]]

    def _key(self, file: SourceFile) -> tuple[bytes, ...]:
        """Return what tells a search of a file from any other, nothing if it is not to be kept."""
        if self.store is None or not file.is_python or not may_have_sites(file.text):
            return ()
        ignored = " ".join(sorted(self._find_ignored(file)))
        place = f"{ignored}|{file.line_width}|{file.relative}".encode("utf-8", "surrogateescape")
        recorded = repr(self.recorded(file.relative) or "").encode()
        return self.asked, place, recorded, file.sha256.encode()

    @cached_property
    def asked(self) -> bytes:
        """Return what is looked for, whatever the file."""
        rules = " ".join(rule.id for rule in self.rules)
        return f"search|{rules}|{sorted(self.known)}|{self.with_text}".encode()

    def file(self, file: SourceFile) -> FileSearch:
        """Search one file, and keep what is found."""
        asked: dict[str, set[str]] = {}
        found = self._search(file, lambda module, what: asked.setdefault(module, set()).add(what))
        self._read[file.relative] = [*asked]
        key = self._key(file) if found.problem is None else ()
        if self.store is not None and key:
            told = {name: file.ask_neighbour(name, asked[name]) for name in asked}
            self.store.put(self.packer.pack(found, told, file.text), *key)
        return found

    def _search(self, file: SourceFile, tell: Callable[[str, str], None]) -> FileSearch:
        """Search one file; what goes wrong there is its problem alone."""
        rules = self.rules_for(file)
        if not file.is_python:
            return FileSearch(tuple(find_settings(file.text, file.relative, rules)))
        try:
            too_large: list[str] = []
            sites = self._find_sites(file, rules, tell, too_large.append)
            comments = read_suppressions(file.text)
            granted = read_assumptions(file.text)
        except (SyntaxError, ValueError, RecursionError) as error:
            return FileSearch(problem=_report_unparsed(file.relative, error))
        except Exception as error:  # noqa: BLE001 - a rule's fault must not hide the other files
            stopping.check()
            return FileSearch(problem=_report_internal(file.relative, error))
        said = [
            f"{file.relative}: {name} holds so much that not all of it was looked at; split it"
            for name in too_large
        ]
        said += [f"{file.relative}: {text}" for text in unknown_names(comments, self.known)]
        wrong = unknown_conditions(granted, condition_names()) if granted else ()
        said += [f"{file.relative}: {sentence}" for sentence in wrong]
        sites = [_with_assumptions(site, granted) for site in sites]
        hidden = [(s, c) for s in sites if (c := _comment_on(s, comments)) is not None]
        left = {id(site) for site, _ in hidden}
        said += [f"{file.relative}: {text}" for text in _find_unused(comments, hidden, rules, self)]
        source = find_origin(file.text) if sites else None
        kept = [s if source is None else with_condition(s, source) for s in sites]
        kept = [k for s, k in zip(sites, kept, strict=True) if id(s) not in left]
        return FileSearch(tuple(kept), tuple(hidden), None, tuple(said))

    def _find_sites(
        self,
        file: SourceFile,
        rules: Sequence[Substitution],
        tell: Callable[[str, str], None],
        cut: Callable[[str], None],
    ) -> list[Site]:
        if not may_have_sites(file.text):
            return []
        # What was found before, in all files, is told without what finds.
        from npufix.rewriters.find import find_sites
        from npufix.rewriters.graph.modules.asking import Neighbours

        self.read_patterns()
        recorded = self.recorded(file.relative)
        found = find_sites(
            file.text, rules, recorded, Neighbours(cache(file.neighbour), tell),
            with_text=self.with_text, cut=cut, width=file.line_width,
        )  # fmt: skip
        return list(found)

    def read_patterns(self) -> Words:
        """Read what words the patterns need, once; it is kept, as it takes longer than a file."""
        return self._words

    @cached_property
    def _words(self) -> Words:
        from npufix.rewriters.match.prefilter import learn_ways, list_ways, words_for

        if self.store is not None:
            key = b"words", " ".join(rule.id for rule in self.rules).encode()
            kept = self.store.get(*key)
            try:
                learn_ways(self.rules, msgspec.json.decode(kept or b"", type=list[list[list[str]]]))
            except ValueError:  # nothing is kept
                self.store.put(msgspec.json.encode(list_ways(self.rules)), *key)
        return words_for(tuple(self.rules))

    def files(self, files: Sequence[SourceFile]) -> Iterator[tuple[SourceFile, FileSearch]]:
        """Yield what each file holds, in the order given."""
        known = {number: self.look_up(file) for number, file in enumerate(files)}
        left = [number for number in range(len(files)) if known.get(number) is None]
        workers = min(child_processes.processors(), len(left))
        size = sum(len(files[number].text) for number in left)
        pooled = workers > 1 and size >= _WORTH_A_POOL and _can_fork()
        with _collecting_rarely():  # who takes what is found reads trees as well
            found = _Pool(self, files, workers).results(left) if pooled else {}
            for number, file in enumerate(files):
                if not pooled:
                    advance("files", number, len(files))
                yield file, known.get(number) or found.get(number) or self.file(file)


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
    return Problem(relative, what, REPORT_IT, damaged=True)


def _can_fork() -> bool:
    # A child that starts anew would have to be sent every file, and to run the caller's program.
    return "fork" in multiprocessing.get_all_start_methods()


class _Pool:
    """Children that share the files with this process and send back what they found."""

    def __init__(self, search: Search, files: Sequence[SourceFile], workers: int) -> None:
        self.search = search
        self.files = files
        self.workers = workers

    def results(self, wanted: Sequence[int]) -> Mapping[int, FileSearch]:
        """Return what the files of these numbers hold."""
        from npufix.rewriters import find  # noqa: F401 - once, not in each child

        groups = _group(self.files, wanted)
        found: dict[int, FileSearch] = {}
        self.search.read_patterns()  # before each child does
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
                    for group, parts in zip(groups, pool.map(_work, groups), strict=True):
                        for number, data in zip(group, parts, strict=True):
                            found[number] = self._unpack(data, self.files[number].text)
                        advance(
                            "files", len(self.files) - len(wanted) + len(found), len(self.files)
                        )
            finally:
                pool.shutdown(cancel_futures=True)
        return found

    def _unpack(self, data: bytes, source: str) -> FileSearch:
        return self.search.packer.unpack(data, source)[0] if data else FileSearch()


def _group(files: Sequence[SourceFile], wanted: Sequence[int]) -> list[list[int]]:
    """Return numbers of files in groups: what imports the same is read by the same process.

    The largest first, so that no core waits for another at the end.
    """
    groups: dict[Path, list[list[int]]] = {}
    sizes: dict[int, int] = {}
    for number in wanted:
        of_folder = groups.setdefault(files[number].path.parent, [[]])
        if sizes.get(id(of_folder[-1]), 0) > _MOST_OF_A_GROUP:
            of_folder.append([])
        of_folder[-1].append(number)
        sizes[id(of_folder[-1])] = sizes.get(id(of_folder[-1]), 0) + len(files[number].text)
    found = [group for of_folder in groups.values() for group in of_folder]
    return sorted(found, key=lambda group: -sizes[id(group)])


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
        gc.freeze()  # else the lower threshold begins with a collection of all that was made
        gc.set_threshold(*usual)
        gc.unfreeze()


def _begin(search: Search, files: Sequence[SourceFile], parent: int) -> None:
    child_processes.begin(parent)
    _collect_rarely()
    _inherited.append((search, files))


def _work(group: Sequence[int]) -> list[bytes]:
    search, files = _inherited[0]
    found = [(search.file(files[number]), files[number].text) for number in group]
    return [b"" if f == FileSearch() else search.packer.pack(f, {}, text) for f, text in found]
