"""Findings that are one: said once in a project, or copied by a generator from one file."""

from __future__ import annotations

import ast
import re
from collections import Counter
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from npufix.advisor.project.generated import GENERATED_FILE, find_origin
from npufix.advisor.project.source_tree import without_links
from npufix.reports.code_digest import normal_form
from npufix.rewriters.edit.statements.host.sentences import FORM_LOGGED, ONLY_LOGGED
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rules.diagnostic import Place

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.project.source_tree import SourceTree

_IMPORT = re.compile(r"^from\s[^\n]+?\simport(?:[ \t]*\([^)]*\)|(?:\\\n|[^\n\\(])*)", re.MULTILINE)
_NEEDS_PACKAGE = frozenset({"mindspeed-installed", "mx-driving-installed"})
_OF_A_KIND = frozenset({"attention-in-pieces", "early-reductions", "growing-caches"})
_SETTINGS = frozenset({"optimizers", "data-loaders"})
_READS = "host-values"
_LOOPS = "loops"
_OF_ALL = frozenset(
    {MODULE, "__call__", "__init__", "compute_loss", "forward", "loss", "step", "training_step"}
)
"""Names of functions that have nothing else in common."""
_LONG = 48
"""Characters of code that nobody writes twice."""
_BY_THEMSELVES = _SETTINGS | {_LOOPS}
_OF_COMBINED = "gradients-for-all-parameters"
"""What nobody can tell for an optimizer of torch_npu but who knows the program."""


def fold(
    found: Sequence[Located], tree: SourceTree, *, to_write: bool, to_compare: bool = False
) -> list[Located]:
    """Return the findings without those that are another one again, which names their places.

    A rule that is about the whole project is said at its first place, and advice that is the same
    for several lines of a file (twenty ``.item()`` in one dictionary of numbers to log) at the
    first of them; so is a fused operator that serves a function several times. What a generator
    has copied, ``modeling_b.py`` out of ``modular_b.py`` and that out of ``modeling_a.py``, is
    said where it was copied from, unless generated files may be changed as well. What all loaders
    of training data get is one decision. What is no more than the call of a function of another
    file is said in that function. A setting in many configurations is one finding too, unless it
    is ``to_write``: then each file is. What a loop over rows reads in its rounds is said with the
    loop. Advice about a part of what another finding changes is not said beside it; advice never
    stands for what is written. Who has a list of known findings ``to_compare`` with is told advice
    by function: what is new in another one would be hidden.
    """
    covered = _list_covered(found)
    found = [item for item in found if item not in covered]
    first: dict[tuple[str, ...], Located] = {}
    owner: dict[Located, Located] = {}
    for item in sorted(found, key=lambda item: (_is_generated(item), not _is_written(item))):
        key = _find_shared_text(item, tree, to_write=to_write)
        if key is None and not (to_write or to_compare):
            key = _fused_as(item) or _decided_as(item)
        if key is None and not (to_write and item.site.rewrite is not None):
            key = _find_shared_advice(item, to_compare=to_compare)
        if key is not None:
            start = first.setdefault(key, item)
            owner |= {item: start} if start is not item else {}
    if not (to_write or to_compare):
        owner |= _reads_of_loops([item for item in found if item not in owner])
    if not to_compare:
        owner |= _join_advice([item for item in found if item not in owner])
    sources = _Sources(tree)
    if GENERATED_FILE not in tree.configuration.allow:
        owner |= _copies([item for item in found if item not in owner], sources)
    owner |= _calls([item for item in found if item not in owner], sources)
    if not (to_write or to_compare or tree.configuration.everywhere):
        owner |= _join_small([item for item in found if item not in owner])
    return _with_places(found, owner)


def _with_places(found: Sequence[Located], owner: Mapping[Located, Located]) -> list[Located]:
    """Return the findings that are left, each with the places of those that it stands for."""
    copies: dict[Located, list[Place]] = {}
    for item in owner:
        start = owner[item]
        while start in owner:  # a read of a loop that stands in ten files
            start = owner[start]
        finding = item.finding
        copies.setdefault(start, []).append(
            Place(finding.path, finding.line, finding.function, 0, 0)
        )
    return [
        item.with_places(copies[item]) if item in copies else item
        for item in found
        if item not in owner
    ]


def _join_advice(found: Sequence[Located]) -> dict[Located, Located]:
    """Say advice once about functions that were copied from file to file, with what they read.

    ``int((lengths + 1).sum())`` stands in the ``forward`` of ten models.
    """
    told = [item for item in found if not _is_written(item) and item.site.rule.search]
    return _join(told, [(i.site.problem, *_copied(i)) for i in told])


def _join_small(found: Sequence[Located]) -> dict[Located, Located]:
    """Say once what a class changes in several places, and what stands in copies of a function.

    ``torch.zeros(n).to(x)`` in three methods is one decision of who owns the class.
    """
    small = [item for item in found if _is_small(item) and not _is_generated(item)]
    asked = {i: ",".join(sorted(c.name for c in i.site.open_conditions)) for i in small}
    copied = [i for i in small if _is_own_name(i) or len(i.finding.code) > _LONG]
    owner = _join(copied, [(asked[i], *_copied(i), normal_form(_text(i))) for i in copied])
    small = [item for item in small if item not in owner and item.site.rule.search != _READS]
    return owner | _join(small, [(asked[i], *_in_class(i)) for i in small])


def _join(found: Sequence[Located], keys: Sequence[tuple[str, ...]]) -> dict[Located, Located]:
    first: dict[tuple[str, ...], Located] = {}
    pairs = [
        (item, first.setdefault((item.finding.rule, *key), item))
        for item, key in zip(found, keys, strict=True)
    ]
    return {item: start for item, start in pairs if start is not item}


def _copied(item: Located) -> tuple[str, str]:
    """Return what a copy of a function has in common with it."""
    return item.finding.function.rpartition(".")[2], normal_form(item.finding.code)


def _is_own_name(item: Located) -> bool:
    """Tell whether functions of this name are copies of each other: ``apply_mask``."""
    return item.finding.function.rpartition(".")[2] not in _OF_ALL


def _in_class(item: Located) -> tuple[str, str]:
    owner, _, name = item.finding.function.partition(".<locals>")[0].rpartition(".")
    return item.finding.path, owner or name


def _text(item: Located) -> str:
    return item.finding.replacement or ""


def _is_small(item: Located) -> bool:
    """Tell whether one operator takes the place of another: a loop is a decision of its own."""
    rule = item.site.rule
    return _is_written(item) and rule.table == "affinity" and rule.search not in _BY_THEMSELVES


def _list_covered(found: Sequence[Located]) -> set[Located]:
    """Return the advice about a part of code for which another finding has a text already.

    Not what a fused operator does where the text is none: a product of ``einsum`` in attention.
    """
    written: dict[tuple[str, str], list[Located]] = {}
    for item in found:
        if item.site.rewrite is not None:
            written.setdefault((item.finding.path, item.finding.function), []).append(item)
    return {
        item
        for item in found
        if item.site.rewrite is None
        for other in written.get((item.finding.path, item.finding.function), ())
        if 0 <= item.finding.line - other.finding.line <= other.finding.code.count("\n")
        and item.finding.code in other.finding.code
        and (item.site.rule.table != "fusion" or other.site.rule.table == "fusion")
    }


def _find_shared_text(item: Located, tree: SourceTree, *, to_write: bool) -> tuple[str, ...] | None:
    """Return what all findings share that are said at one place, ``None`` for one by itself."""
    site = item.site
    in_module = item.finding.function == MODULE
    is_setting = site.rule.files or (site.rule.search in _SETTINGS and in_module)
    if site.rule.once and site.rewrite is not None:
        called = site.rewrite.text.partition("(")[0]
        return None if to_write else (site.rule.id, called)
    if site.rule.search == "projections":  # who joins the layers of one model does so for all
        return (site.rule.id,)
    if site.rule.once or _is_of_project(item, tree) or (is_setting and not to_write):
        return site.rule.id, site.problem
    return None


def _fused_as(item: Located) -> tuple[str, ...] | None:
    """Return what the query and the key that one function turns share, or its two optimizers."""
    site = item.site
    if site.rule.table != "fusion" or site.rewrite is None:
        return None
    names = {condition.name for condition in site.open_conditions}
    waits = ",".join(sorted(names))
    if _OF_COMBINED in names:  # four or five questions, to be asked once in a project
        return site.rule.id, waits
    return site.rule.id, item.finding.path, item.finding.function, waits


def _decided_as(item: Located) -> tuple[str, ...] | None:
    """Return what changes share that are one decision: all loaders of a project get the same.

    So do the selections of a file by masks, and the numbers that one function copies to the
    device: ``torch.tensor([n]).to(x.device)``, line after line.
    """
    site = item.site
    if site.rewrite is None:
        return None
    if site.rule.search == "uploads":
        waits = ",".join(sorted(condition.name for condition in site.open_conditions))
        return site.rule.id, item.finding.path, item.finding.function, waits
    if site.rule.search == "data-loaders":
        return site.rule.id, item.finding.replacement or ""
    return (site.rule.id, item.finding.path) if site.rule.search == "selections" else None


def _find_shared_advice(item: Located, *, to_compare: bool) -> tuple[str, ...] | None:
    """Return what advice shares that is the same for several lines, ``None`` if it is none."""
    site, finding = item.site, item.finding
    kept = site.form.pattern.__name__ == FORM_LOGGED
    if site.rule.search == "clipping" and not to_compare:  # "once the optimizer is a ...:"
        return (site.rule.id, site.problem.partition(":")[0]) if site.rewrite is None else None
    if (site.rewrite is not None and not kept) or not site.rule.search:
        return None
    if to_compare:
        return site.rule.id, site.problem, finding.path, finding.function
    # the caches of a project are of a kind, and so are the numbers that it logs
    everywhere = site.rule.search in _OF_A_KIND or kept or site.problem in ONLY_LOGGED
    everywhere = everywhere or site.rule.search == "data-loaders"
    return site.rule.id, site.problem, "" if everywhere else finding.path


def _reads_of_loops(found: Sequence[Located]) -> dict[Located, Located]:
    """Return the reads of lengths in the rounds of a loop over rows, each with the loop.

    ``for i in range(n): out[i, : lengths[i].item()] = 1`` is one decision.
    """
    loops = [item for item in found if item.site.rule.search == _LOOPS]
    return {
        item: loop
        for item in found
        if item.site.rule.search == _READS
        for loop in loops
        if not (_is_written(item) and not _is_written(loop))
        and (item.finding.path, item.finding.function) == (loop.finding.path, loop.finding.function)
        and item.finding.line in loop.site.lines
    }


def _calls(found: Sequence[Located], sources: _Sources) -> dict[Located, Located]:
    """Return the calls of functions of other files that are findings of the same rule."""
    written = [item for item in found if item.site.rewrite is not None]
    helpers = {(i.finding.path, i.finding.function, i.site.rule.id): i for i in written}
    calls: dict[Located, Located] = {}
    for item in written:
        called, _, rest = item.finding.code.partition("(")
        if not rest.endswith(")") or not called.isidentifier():
            continue
        for path, names in sources.imports(item.finding.path).items():
            start = helpers.get((path, names.get(called, ""), item.site.rule.id))
            if start is not None and len(start.site.open_conditions) <= len(
                item.site.open_conditions
            ):
                calls[item] = start
    return calls


def _copies(found: Sequence[Located], sources: _Sources) -> dict[Located, Located]:
    """Return the findings in generated files, each with the one that it was copied from."""
    paths = {item.finding.path for item in found}
    made = {relative: find_origin(sources.files[relative].text) for relative in paths}
    keys = _keys(found)
    originals = {
        (item.finding.path, key): item
        for item, key in keys.items()
        if made[item.finding.path] is None
    }
    copies: dict[Located, Located] = {}
    for item, key in keys.items():
        if made[item.finding.path]:
            keys_there = ((path, key) for path in sources.of(item.finding.path))
            start = next((originals[one] for one in keys_there if one in originals), None)
            if start is not None and (_is_written(start) or not _is_written(item)):
                copies[item] = start
    return copies


def _is_of_project(item: Located, tree: SourceTree) -> bool:
    """Tell whether it waits for a package that the project may not have: one question for all."""
    names = {condition.name for condition in item.site.open_conditions}
    return bool(_NEEDS_PACKAGE & (names - tree.configuration.allow))


def _is_written(item: Located) -> bool:
    return item.site.rewrite is not None


def _is_generated(item: Located) -> bool:
    return any(condition.name == GENERATED_FILE for condition in item.site.open_conditions)


def _keys(found: Sequence[Located]) -> dict[Located, tuple[str, ...]]:
    """Return what a copy of each finding has as well: rule, function, code, and which of twins."""
    keys: dict[Located, tuple[str, ...]] = {}
    seen: Counter[tuple[str, ...]] = Counter()
    for item in sorted(found, key=lambda item: (item.finding.path, item.finding.line)):
        finding = item.finding
        function = finding.function.rpartition(".")[2]
        key = finding.rule, function, normal_form(finding.code)
        twin = (finding.path, finding.function, *key)
        keys[item] = (*key, str(seen[twin]))
        seen[twin] += 1
    return keys


class _Sources:
    """Which files a generated one is made of."""

    def __init__(self, tree: SourceTree) -> None:
        self.files = tree.files
        self._relative = {without_links(file.path): name for name, file in tree.files.items()}
        self._known: dict[str, list[str]] = {}
        self._imports: dict[str, Mapping[str, Mapping[str, str]]] = {}

    def of(self, relative: str) -> list[str]:
        """Return the file that one is generated from, what that one imports, and so on."""
        if relative not in self._known:
            self._known[relative] = []  # two files that import each other
            start = find_origin(self.files[relative].text) or ""
            made = str(PurePosixPath(relative).parent / PurePosixPath(start).name)
            below = [made, *self.imports(made)] if made in self.files else []
            deeper = [path for one in below[1:] for path in self.of(one)]
            self._known[relative] = list(dict.fromkeys([*below, *deeper]))
        return self._known[relative]

    def imports(self, relative: str) -> Mapping[str, Mapping[str, str]]:
        """Return the files that a file imports from, each with the new and old names."""
        if relative not in self._imports:
            found: dict[str, dict[str, str]] = {}
            file = self.files[relative]
            for node in _imports_in(file.text):
                if isinstance(node, ast.ImportFrom):
                    path = file.neighbour_path("." * node.level + (node.module or ""))
                    other = None if path is None else self._relative.get(without_links(path))
                    if other is not None:
                        names = {a.asname or a.name: a.name for a in node.names}
                        found.setdefault(other, {}).update(names)
            self._imports[relative] = found
        return self._imports[relative]


def _imports_in(source: str) -> Sequence[ast.stmt]:
    """Return the imports of a module from others; it is parsed only where their text is no code.

    ``from .b import (  # see a)`` is none as far as the bracket.
    """
    try:
        return ast.parse("\n".join(_IMPORT.findall(source))).body
    except SyntaxError:
        return ast.parse(source).body
