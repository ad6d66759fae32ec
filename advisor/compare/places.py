"""Which line of one run is which line of the other, where the code between them was changed.

Paths are matched by their ends, as the runs may lie in different folders. Within a function,
lines are matched by their text where both sources are known; else by how far most of their
kernels have moved. What is left of a function in both runs is its changed code.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.advisor.compare.joining import MOST_ROWS, by_change, round_known, whole
from npufix.reports.comparison import LineChange

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from npufix.advisor.compare.side import ComparedRun
    from npufix.advisor.project.source_tree import SourceTree

    Spent = dict[int, dict[str, float]]
    """Line -> Type -> time."""
    _Match = tuple[tuple[int, ...], tuple[int, ...], str]
    """Lines before and after, and their state."""

_ALIKE = 0.5
"""Share of their Types that two lines must have in common to be taken for the same."""
_STAYED, _MOVED = 5, 4
_MOST_PAIRS = 40_000
_TYPES_COMPARED = 3
_TYPES_SHOWN = 4


def line_changes(
    before: ComparedRun, after: ComparedRun, paths: Mapping[str, str]
) -> list[LineChange]:
    """Return what changed by line, the largest change first; ``paths``: see ``same_paths``."""
    if before.lines.rows.empty or after.lines.rows.empty:
        return []
    trees = before.tree, after.tree
    # One source for both says nothing about what has moved between them.
    if before.tree is None or after.tree is None or same_source(before.tree, after.tree):
        trees = None, None
    rows = [before.lines.rows, _rename_paths(after.lines.rows, paths)]
    there = {here: name for name, here in paths.items()}
    groups = [_by_function(side) for side in rows]
    numbers: list[dict[tuple[str, str, int], int]] = [{}, {}]
    states: list[str] = []
    complete = before.lines.complete and after.lines.complete
    for path, function in sorted({*groups[0], *groups[1]}):
        spent = [group.get((path, function), {}) for group in groups]
        texts = _texts(trees[0], path), _texts(trees[1], there.get(path, path))
        matches = _match_lines(spent[0], spent[1], *texts)
        # What a run does not list may be there all the same.
        for old, new, state in _pair_changed(matches) if complete else matches:
            for side, lines in ((0, old), (1, new)):
                numbers[side] |= {(path, function, line): len(states) for line in lines}
            states.append(state)
    return _changes(rows, numbers, states, (before.lines.complete, after.lines.complete))


def same_paths(before: Iterable[str], after: Iterable[str]) -> dict[str, str]:
    """Return path of the after run -> path of the before run that it is.

    A path that both have is itself. Others are matched by the longest common end, if each is the
    only best match of the other.
    """
    old, new = set(before), set(after)
    found = {path: path for path in old & new}
    by_name: dict[str, tuple[list[str], list[str]]] = defaultdict(lambda: ([], []))
    for position, rest in enumerate((old - new, new - old)):
        for path in sorted(rest):
            by_name[PurePosixPath(path.replace("\\", "/")).name][position].append(path)
    for ones, others in by_name.values():
        scores = {(one, other): _common_end(one, other) for one in ones for other in others}
        for (one, other), score in scores.items():
            row = [s for (a, b), s in scores.items() if (a == one) != (b == other)]
            if score > max(row, default=0):
                found[other] = one
    return found


def _common_end(one: str, other: str) -> int:
    parts = [PurePosixPath(path.replace("\\", "/")).parts[::-1] for path in (one, other)]
    same = 0
    for first, second in zip(*parts, strict=False):
        if first != second:
            break
        same += 1
    return same


def same_source(one: SourceTree | None, other: SourceTree | None) -> bool:
    """Tell whether two sources hold the same files."""
    if one is None or other is None:
        return False
    return one is other or (
        {name: file.sha256 for name, file in one.files.items()}
        == {name: file.sha256 for name, file in other.files.items()}
    )


def _rename_paths(rows: pd.DataFrame, paths: Mapping[str, str]) -> pd.DataFrame:
    return rows.assign(path=rows["path"].map(lambda path: paths.get(path, path)))


def _by_function(rows: pd.DataFrame) -> dict[tuple[str, str], Spent]:
    groups: dict[tuple[str, str], Spent] = {}
    columns = (rows[name].tolist() for name in ("path", "function", "line", "type", "total_ns"))
    for path, function, line, kind, spent in zip(*columns, strict=True):
        groups.setdefault((path, function), {}).setdefault(int(line), {})[kind] = spent
    return groups


def _texts(tree: SourceTree | None, path: str) -> list[str] | None:
    """Return the lines of a file without their spaces, the first at 1; None if not known."""
    if tree is None or path not in tree.files:
        return None
    return ["", *(" ".join(line.split()) for line in tree.files[path].text.splitlines())]


def _match_lines(
    old: Spent, new: Spent, old_text: list[str] | None, new_text: list[str] | None
) -> list[_Match]:
    """Return which lines are the same, and in what state; what is left of each side alone."""
    if old_text is not None and new_text is not None:
        pairs = _by_text(old, new, old_text, new_text)
    else:
        pairs = _by_move(old, new)
    left_old = sorted(set(old) - {line for line, _ in pairs})
    left_new = sorted(set(new) - {line for _, line in pairs})
    return [
        *(((a,), (b,), "same" if a == b else "moved") for a, b in pairs),
        *(((a,), (), "gone") for a in left_old),
        *(((), (b,), "new") for b in left_new),
    ]


def _pair_changed(matches: list[_Match]) -> list[_Match]:
    """Put what is left of both sides together: it is the changed code of the function."""
    gone = tuple(line for old, new, _ in matches if not new for line in old)
    come = tuple(line for old, new, _ in matches if not old for line in new)
    if not gone or not come:
        return matches
    return [*(match for match in matches if match[0] and match[1]), (gone, come, "changed")]


def _by_text(
    old: Spent, new: Spent, old_text: list[str], new_text: list[str]
) -> list[tuple[int, int]]:
    """Match lines of the same text, the first with the first."""
    sides = []
    for lines, texts in ((old, old_text), (new, new_text)):
        named: dict[tuple[str, int], int] = {}
        seen: Counter[str] = Counter()
        for line in sorted(lines):
            text = texts[line] if line < len(texts) else ""
            if text:
                named[text, seen[text]] = line
                seen[text] += 1
        sides.append(named)
    return sorted((sides[0][key], sides[1][key]) for key in sides[0].keys() & sides[1].keys())


def _by_move(old: Spent, new: Spent) -> list[tuple[int, int]]:
    """Match lines by the distance that most of the time has moved, again for what is left."""
    likes = {
        (a, b): round(like * like * min(sum(old[a].values()), sum(new[b].values())) + 1)
        for a, b in _candidates(old, new)
        if (like := _likeness(old[a], new[b])) >= _ALIKE
    }
    pairs: list[tuple[int, int]] = []
    while likes:
        votes: Counter[int] = Counter()
        for (a, b), like in likes.items():
            # Of a line that is where it was it takes less to believe that it is the same.
            votes[b - a] += like * (_STAYED if a == b else _MOVED)
        # Both ways round the same is chosen: of two equal distances neither.
        most = max(votes.values())
        best = sorted((abs(move), move) for move, count in votes.items() if count == most)
        if len(best) > 1 and best[0][0] == best[1][0]:
            break
        found = [(a, b) for a, b in likes if b - a == best[0][1]]
        pairs += found
        olds, news = {a for a, _ in found}, {b for _, b in found}
        likes = {(a, b): like for (a, b), like in likes.items() if a not in olds and b not in news}
    return sorted(pairs)


def _candidates(old: Spent, new: Spent) -> list[tuple[int, int]]:
    """Return which lines may be the same: any two, but of endless functions those of one number."""
    if len(old) * len(new) > _MOST_PAIRS:
        return [(line, line) for line in old if line in new]
    return [(a, b) for a in old for b in new]


def _likeness(one: Mapping[str, float], other: Mapping[str, float]) -> float:
    """Return the share of their Types that two lines have in common, of those with most time."""
    first, second = set(_hottest(one)), set(_hottest(other))
    return len(first & second) / (len(first | second) or 1)


def _hottest(spent: Mapping[str, float]) -> list[str]:
    """Return the Types with the most time; a report has them as one text."""
    names = sorted(spent, key=lambda name: (-spent[name], name))
    return [part for name in names for part in name.split(", ")][:_TYPES_COMPARED]


def _changes(
    rows: list[pd.DataFrame],
    numbers: list[dict[tuple[str, str, int], int]],
    states: list[str],
    complete: tuple[bool, bool],
) -> list[LineChange]:
    """Sum up the rows of each group, and put the two runs side by side."""
    both = pd.DataFrame({"number": range(len(states)), "state": states})
    lines: list[dict[int, list[int]]] = []
    types: list[dict[int, list[str]]] = []
    names = ("before", "after")
    for name, side, number, is_all in zip(names, rows, numbers, complete, strict=True):
        keys = zip(side["path"], side["function"], side["line"].astype(int), strict=True)
        own = side.assign(number=np.fromiter((number[key] for key in keys), np.int64, len(side)))
        sums = own.groupby("number")[["total_ns", "calls"]].sum()
        both = both.join(sums.add_prefix(f"{name}_"), on="number")
        # What is matched has no time in the other run if that lists all its lines.
        if is_all:
            both = both.fillna({f"{name}_total_ns": 0.0, f"{name}_calls": 0.0})
        found: dict[int, set[int]] = defaultdict(set)
        for key, at in number.items():
            found[at].add(key[2])
        lines.append({at: sorted(of) for at, of in found.items()})
        types.append(_types(own))
    places = {number: key[:2] for own in numbers for key, number in own.items()}
    ordered = by_change(both, ["number"]).head(MOST_ROWS)
    shown = ["number", "state", "before_total_ns", "after_total_ns", "before_calls", "after_calls"]
    columns = [ordered[name].tolist() for name in shown]
    return [
        LineChange(
            *places[number], state, lines[0].get(number, []), lines[1].get(number, []),
            whole(before), whole(after), round_known(before_calls), round_known(after_calls),
            types[0].get(number, []), types[1].get(number, []),
        )
        for number, state, before, after, before_calls, after_calls in zip(*columns, strict=True)
    ]  # fmt: skip


def _types(rows: pd.DataFrame) -> dict[int, list[str]]:
    """Return for each group the Types that take most of its time."""
    spent = rows.groupby(["number", "type"])["total_ns"].sum().reset_index()
    spent = spent.sort_values(["total_ns", "type"], ascending=[False, True], kind="stable")
    found: dict[int, list[str]] = {}
    for number, text in zip(spent["number"].tolist(), spent["type"].tolist(), strict=True):
        found.setdefault(number, []).extend(str(text).split(", "))
    return {number: types[:_TYPES_SHOWN] for number, types in found.items()}
