"""What has happened to an object before the call: other methods of its class have been called.

``Replay.latest`` reads what ``push`` has written. On a fresh object it finds nothing, so it is
called on some that have been filled: not quite, just, and once more than they hold::

    replay = Replay(capacity=8, dim=4)
    for _ in range(9):
        replay.push(row)
    replay.latest(2)
"""

from __future__ import annotations

import inspect
import itertools
import operator
import re
import sys
import time
from collections import deque
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.observe import CALL_S
from npufix.rewriters.verification.calls.surroundings import seed_everything
from npufix.rewriters.verification.calls.values import Batches, MadeArgument, Value, list_kinds
from npufix.rewriters.verification.inputs.objects.offers import with_other_numbers
from npufix.rewriters.verification.inputs.objects.weights import move_weights
from npufix.rewriters.verification.inputs.source.attributes import (
    compares_counter,
    list_attributes_read,
    list_attributes_written,
    list_counter_limits,
    list_keys,
)
from npufix.rewriters.verification.sandbox.try_call import try_call

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from npufix.rewriters.verification.calls.values import Flavour, Spec
    from npufix.rewriters.verification.inputs.recipes import Recipe
    from npufix.rewriters.verification.inputs.search_result import SearchResult
    from npufix.rewriters.verification.inputs.target import Assignment, Target

_CALLED_BY_NAME = frozenset({"__call__", "__enter__", "__setitem__"})
_MOST_FILLERS = 2
_MOST_CALLS = 17
"""Of what holds more, it is not known what more calls would show."""
_LONG = 150
"""Calls after which a counter is beyond what it is compared with: ``min(0.9, n / (n + 9))``."""
_MOST_LIMITS = 2
"""Numbers that a counter is held against, each of which costs as many calls."""
_LONG_S = 1.5
"""Of processor time, for so many calls: every version makes them in every dtype."""
_HOLDS_LONG = 0.9
_HOLDS_SHORT = 0.25
"""Shares that an average keeps: with the second, it has forgotten its start after some calls."""
_USUAL = (3, 1)
_TWO, _SOME = 2, 5
_APART = 7
"""Between sizes that are large: ``warmup=5, total=12`` for 500 and 10000."""
_EPOCHS = ((3, 1, 2, 0), (0, 3, 1, 2))
"""Of loaders that an object holds, with that of the compared call."""
_PLATEAU = 3
"""Calls of which one is better than all before it: what waits for the next one waits in two."""
_COUNTS_ON = r"epoch|step|iter"
_NAMES_ONE = r"(^|_)(key|id|idx|index|slot|page|item|token|symbol|name|tag)$"
"""A number or a text that is one of several: others in other calls, and the first one again."""
_MOST_NAMES = 5
_ANOTHER = 1
"""A call after which numbers are others than in those that are compared first."""
_BEFORE = 100
"""The seed of the first call that comes before; the numbers of the call itself are others."""
_SPECIAL = frozenset({"isnan", "isinf", "isfinite"})
_FIND_S = 0.5
"""For the arguments of one method."""


def _revisit(number: int) -> int:
    """Return which of several a call is about: 0, 3, 0, 1, 4, 0, 2: what is used last stays.

    What is there longest is not the smallest, nor the largest.
    """
    one = 0 if number % 3 == _TWO else (2 * number + 2) // 3
    return 3 * one % _MOST_NAMES


def _name_another(value: object, number: int) -> Value:
    """Return another key of the same kind; the same for 0."""
    if isinstance(value, int):
        return Value(value + number)
    return Value(f"{value}{number}" if number else value)


@dataclass(frozen=True, slots=True)
class Earlier:
    """Calls of another method, with the same kinds of arguments and other numbers in each."""

    method: str
    arguments: tuple[tuple[str, Spec], ...]
    times: int = 1
    varies: bool = True
    """Whether its plain flags and numbers are others in each call, too."""
    way: int = 0
    """Which way floats get better, on the whole: 1 upwards, -1 downwards; 0: each is more."""
    keys: frozenset[str] = frozenset()
    """Arguments by which it looks something up."""
    special: bool = False
    """Whether its tensors hold NaN and Inf."""

    @property
    def flavour(self) -> Flavour:
        """What numbers its tensors hold."""
        return "NaN and Inf" if self.special else "ordinary"

    def specs(self, number: int) -> dict[str, Spec]:
        """Return the arguments of one call, of all that come before: ``done`` in every third."""
        given = dict(self.arguments)
        for name, spec in given.items() if self.varies else ():
            if isinstance(spec, MadeArgument):
                given[name] = with_other_numbers(spec, number)
            value = spec.value if isinstance(spec, Value) and spec.given else None
            if isinstance(value, bool):
                given[name] = Value(value if number % 3 != 1 else not value)
            elif isinstance(value, float):
                given[name] = Value(value + self._later(number))
            elif type(value) is int and re.search(_COUNTS_ON, name):
                given[name] = Value(value + number)
            elif self._names_one(name, value):
                given[name] = _name_another(value, _revisit(number))
        return given

    def _names_one(self, name: str, value: object) -> bool:
        named = name in self.keys or re.search(_NAMES_ONE, name)
        return bool(named) and type(value) in {int, str}

    def about_others(self) -> Earlier:
        """Return calls that are about another one: another key."""
        given = (
            (n, _name_another(s.value, 1))
            if isinstance(s, Value) and self._names_one(n, s.value)
            else (n, s)
            for n, s in self.arguments
        )
        return replace(self, arguments=tuple(given)) if self.varies else self

    def _later(self, number: int) -> float:
        """Return how far a float is from that of the first call: 0, -0.5, 0, 1, 0.5, 1, 2 ..."""
        if not self.way:
            return number / 2
        steps, beyond = divmod(number, _PLATEAU)
        return self.way * (steps - (beyond == 1) / 2)

    def __str__(self) -> str:
        given = ", ".join(f"{name}={spec}" for name, spec in self.arguments)
        often = f"{self.times} calls of " if self.times > 1 else ""
        way = ("", ", rising with plateaus", ", falling with plateaus")[self.way]
        special = " of NaN and Inf" if self.special else ""
        return f"{often}{self.method}({given}){way}{special}"


def list_histories(
    target: Target,
    recipe: Recipe,
    combine: Callable[[Target], Iterator[Assignment]],
    runs: Callable[[Target, Assignment, int], bool],
    noted: SearchResult,
) -> Iterator[Recipe]:
    """Yield an object as a recipe makes it, after calls that write what the method reads.

    ``combine`` returns arguments that are worth a try for another method of the class, and ``runs``
    says whether so many calls with them run. ``noted`` takes the methods of which no call runs,
    and what no other one changes of that which they change little by little.
    """
    owner = target.owner
    if owner is None:
        return
    if issubclass(owner, torch.optim.Optimizer):  # of which one call is several steps
        for name in _list_switches(owner):
            yield replace(recipe, history=(Earlier(name, ()),))
        return
    read = {name for name, _ in list_attributes_read(owner, target.name)}
    own = list_attributes_written(owner, target.name)
    read |= own
    shared = _list_shared(owner, read)
    if shared:
        recipe = _with_room(target, recipe)
    uncalled = noted.uncalled
    known: dict[str, Earlier] = {}
    seconds: dict[str, float] = {}
    fillers = _choose(shared)
    for name in fillers:
        qualname = f"{target.qualname.rpartition('.')[0]}.{name}"
        other = replace(target, qualname=qualname, _parameters=None)
        # A fresh object takes much that it does not take again: ``best is None or score > best``.
        found = _find_running(combine(other), partial(runs, other), 2)
        found = found or _find_running(combine(other), partial(runs, other), 1)
        if found is None:
            uncalled.update({name: []} if name not in noted.called else {})
        else:
            uncalled.pop(name, None)
            noted.called.add(name)
            started = time.process_time()
            keys = list_keys(owner, name)
            fill = Earlier(name, tuple(found.specs.items()), keys=keys)
            known[name] = _vary(fill, found, other, runs)
            seconds[name] = (time.process_time() - started) / 2
    seen = own.union(*(shared[name] for name in known))
    for name in uncalled.keys() & shared.keys():
        evolving = {n for n, _ in list_attributes_read(owner, name)} & shared[name]
        uncalled[name] = sorted(evolving - seen)
    yield from _list_calls_of_one(target, recipe, known, seconds)
    yield from _list_calls_of_one(target, recipe, _with_special(owner, known), seconds)
    mixed = tuple(known[name] for name in shared if name in known)
    if len(known) > 1:  # in the order of the class
        yield replace(recipe, history=(*mixed, *mixed))
    held = getattr(target.make_object(recipe), "__dict__", {}).items()
    loaders = [name for name, value in held if isinstance(value, Batches)]
    for epochs in _EPOCHS if loaders and mixed else ():
        steps = ((*_begin_epoch(loaders, n), *mixed) for n in epochs[:-1])
        last = _begin_epoch(loaders, epochs[-1])
        yield replace(recipe, history=(*itertools.chain.from_iterable(steps), *last))


def _find_running(
    tried: Iterator[Assignment], runs: Callable[[Assignment, int], bool], times: int
) -> Assignment | None:
    """Return the first arguments that can be called with so many times, within some time."""
    until = time.process_time() + _FIND_S
    timely = itertools.takewhile(lambda _: time.process_time() < until, tried)
    return next((a for a in timely if runs(a, times)), None)


def _begin_epoch(loaders: Sequence[str], epoch: int) -> list[Earlier]:
    """Return what has the loaders of an object hold other numbers: accuracies rise and fall."""
    given = (("epoch", Value(epoch)),)
    return [
        Earlier(f"{name}.{Batches.set_epoch.__name__}", given, varies=False) for name in loaders
    ]


def _list_calls_of_one(
    target: Target, recipe: Recipe, known: Mapping[str, Earlier], seconds: Mapping[str, float]
) -> Iterator[Recipe]:
    """Yield an object after calls of one method: as many as it has room for, and very many."""
    counts = _list_counts(target.make_object(recipe))
    smaller = _with_less_room(target, recipe) if known and counts == [*_USUAL] else []
    for earlier in itertools.chain.from_iterable(map(_list_paces, known.values())):
        own = earlier.method == target.name  # the compared call is the last of as many
        often = [2 * n + 1 for n in counts[:1] if earlier.about_others() != earlier]
        for times in dict.fromkeys(max(n - own, 1) for n in (*counts, *often)):
            yield replace(recipe, history=(replace(earlier, times=times),))
        # What is full, and has seen one again, is asked for another: ``get(2)`` of an LRU cache.
        other = (earlier.about_others(),) if own and earlier.about_others() != earlier else ()
        yield from (replace(recipe, history=(replace(o, times=counts[0] + 1),)) for o in other)
        for small in smaller:
            rooms = _list_counts(target.make_object(small))[: -len(_USUAL)]
            for times in dict.fromkeys(n - own for n in rooms or (_SOME, _SOME + 1)):
                yield replace(small, history=(replace(earlier, times=times),))
    # Patience ends after two plateaus, if what is better does not renew it.
    for earlier in known.values():
        for way in (1, -1) if _has_scores(earlier) else ():
            for one in (recipe, *smaller):
                most = max(_list_counts(target.make_object(one)))
                yield replace(one, history=(replace(earlier, times=2 * most, way=way),))
    yield from _list_many_calls(target, recipe, known, seconds)


def _list_many_calls(
    target: Target, recipe: Recipe, known: Mapping[str, Earlier], seconds: Mapping[str, float]
) -> Iterator[Recipe]:
    """Yield an object after so many calls that a counter comes to what it is held against."""
    for name, earlier in known.items():
        if target.owner is None:
            return
        many = [_LONG] if compares_counter(target.owner, name) else []
        # the compared call is the last that a limit lets through, or the one after it
        limits = list_counter_limits(target.owner, name, target.make_object(recipe))
        limits = limits[:_MOST_LIMITS]
        many += [n + at for n in limits for at in range(-1, 2)]
        for times in many:
            if seconds[name] * times < _LONG_S:
                yield replace(recipe, history=(replace(earlier, times=times),))


def _list_paces(earlier: Earlier) -> list[Earlier]:
    """Return calls with flags that change, and with those that stay as they are.

    ``found_inf`` in every third call never lets a counter of good steps count.
    """
    flags = any(type(getattr(spec, "value", None)) is bool for _, spec in earlier.arguments)
    return [earlier, *([replace(earlier, varies=False)] if flags and earlier.varies else [])]


def _with_special(owner: type, known: Mapping[str, Earlier]) -> dict[str, Earlier]:
    """Return calls with NaN and Inf of methods that ask for such: one bad loss after the other."""
    codes = {n: getattr(inspect.unwrap(getattr(owner, n)), "__code__", None) for n in known}
    asking = (n for n, code in codes.items() if _SPECIAL & {*getattr(code, "co_names", ())})
    floats = (n for n in asking if "float" in list_kinds([s for _, s in known[n].arguments]))
    return {n: replace(known[n], special=True) for n in floats}


def _has_scores(earlier: Earlier) -> bool:
    """Say whether calls are given plain numbers that may be better than those before them."""
    floats = (s for _, s in earlier.arguments if isinstance(s, Value) and s.given)
    return earlier.varies and any(type(spec.value) is float for spec in floats)


def _vary(
    earlier: Earlier,
    known: Assignment,
    other: Target,
    runs: Callable[[Target, Assignment, int], bool],
) -> Earlier:
    """Return calls of a method with other plain values in each, if it takes them."""
    further = (replace(known, specs=earlier.specs(number)) for number in (1, 6, _MOST_CALLS))
    return replace(earlier, varies=all(runs(other, one, 1) for one in further))


def _list_shared(owner: type, read: set[str]) -> dict[str, set[str]]:
    """Return the methods that write something of what is read, and what, as the class has them.

    A private one only for what no other writes: ``push`` calls ``_store`` itself, but
    ``_advance`` of a scheduler may be called by its framework alone.
    """
    writes = {name: read & list_attributes_written(owner, name) for name in _list_own(owner)}
    for_all = {name for name in writes if not name.startswith("_") or name in _CALLED_BY_NAME}
    done = set().union(*(writes[name] for name in for_all))
    at_start = {name for name, _ in list_attributes_read(owner, "__init__")}
    for name in writes.keys() - for_all:
        writes[name] = set() if name in at_start else writes[name] - done
    return {name: written for name, written in writes.items() if written}


def _choose(shared: Mapping[str, set[str]]) -> list[str]:
    """Return the methods that together write most, first the one that writes most."""
    chosen: list[str] = []
    covered: set[str] = set()
    while len(chosen) < _MOST_FILLERS and len(chosen) < len(shared):
        left = [name for name in shared if name not in chosen]
        best = max(left, key=lambda n: (len(shared[n] - covered), len(shared[n])))
        chosen.append(best)
        covered |= shared[best]
    return chosen


def _list_own(owner: type) -> list[str]:
    """Return the methods of a class that others may call, in the order of its text."""
    found: dict[str, None] = {}
    for base in reversed(owner.__mro__):
        if base is object or base.__module__.partition(".")[0] == "torch":
            continue
        functions = (name for name, value in vars(base).items() if inspect.isfunction(value))
        callable_ = (n for n in functions if not n.startswith("__") or n in _CALLED_BY_NAME)
        found |= dict.fromkeys(callable_)
    return list(found)


def _list_switches(owner: type) -> list[str]:
    """Return the methods that take nothing: ``train()`` of an optimiser that averages weights."""
    own = [name for name in _list_own(owner) if not name.startswith("_")]
    return [n for n in own if len(inspect.signature(getattr(owner, n)).parameters) == 1]


def _with_room(target: Target, recipe: Recipe) -> Recipe:
    """Return an object that holds some more than two: in a ring of two much is in its place."""
    given = {n: getattr(spec, "value", None) for n, spec in recipe.arguments}
    twos = [n for n, value in given.items() if type(value) is int and value == _TWO]
    return next(_list_resized(target, recipe, twos), recipe)


def _with_less_room(target: Target, recipe: Recipe) -> list[Recipe]:
    """Return an object that is full after some calls: ``window=20`` is more than are made.

    And one that soon forgets, where ``decay=0.999`` is reached after a thousand calls.
    """
    defaults = {n: p.default for n, p in target.constructor.items()}
    given = {n: getattr(spec, "value", None) for n, spec in recipe.arguments}
    large = [n for n, v in (defaults | given).items() if type(v) is int and v >= _MOST_CALLS]
    long = [n for n, v in (defaults | given).items() if _holds_long(v)]
    made_short = [recipe.made_with(**dict.fromkeys(long, Value(_HOLDS_SHORT)))] if long else []
    sizes = {n: v for n, v in (defaults | given).items() if n in large}
    together = {
        n: Value(_SOME + _APART * at) for at, n in enumerate(sorted(large, key=sizes.__getitem__))
    }
    every = recipe.made_with(**together)
    works = not try_call(lambda: target.make_object(every), CALL_S).error
    one = itertools.islice(_list_resized(target, recipe, large), 1)
    return [*one, *([every] if works and len(large) > 1 else []), *made_short]


def _holds_long(value: object) -> bool:
    return isinstance(value, float) and _HOLDS_LONG <= value < 1


def _list_resized(target: Target, recipe: Recipe, names: Sequence[str]) -> Iterator[Recipe]:
    """Yield what has room for some of what one of these arguments counts."""
    for name in names:
        other = recipe.made_with(**{name: Value(_SOME)})
        made = try_call(lambda other=other: target.make_object(other), CALL_S).value  # type: ignore[misc] # a default binds it
        if _SOME in _list_rooms(made):
            yield other


def _list_counts(made: object) -> list[int]:
    """Return how often to call a method: as often as an object has room, and once more.

    Of several rooms, ``warmup=4, total=12``, for the least and beyond the largest.
    """
    rooms = sorted(n for n in _list_rooms(made) if 1 < n < _MOST_CALLS)
    around = (rooms[0], rooms[0] + 1, rooms[-1] + 1) if rooms else ()
    # And beyond all of them, one after the other: ``patience=2, cooldown=1``.
    held = getattr(made, "__dict__", {}).values()
    whole = sum(n for n in held if type(n) is int and 0 < n < _MOST_CALLS) + _TWO
    beyond = (whole,) if rooms and rooms[-1] + 1 < whole < _MOST_CALLS else ()
    return list(dict.fromkeys((*around, *beyond, *_USUAL)))


def _list_rooms(made: object) -> list[int]:
    """Return how many an object may hold of something."""
    held = list(getattr(made, "__dict__", {}).values())
    if isinstance(made, torch.nn.Module):
        held += made.buffers(recurse=False)
    rooms = [value for value in held if type(value) is int]
    rooms += [len(value) for value in held if isinstance(value, torch.Tensor) and value.dim()]
    rooms += [len(value) for value in held if isinstance(value, list | deque)]
    rooms += [most for value in held if type(most := getattr(value, "maxlen", None)) is int]
    return rooms


def vary_last(specs: Mapping[str, Spec]) -> dict[str, Spec]:
    """Return the arguments of a call with batches of another epoch than most are made with."""
    made = {n: s for n, s in specs.items() if isinstance(s, MadeArgument) and "batches" in s.label}
    others = ((n, with_other_numbers(s, _ANOTHER)) for n, s in made.items())
    return {n: replace(s, label=f"{s.label} of another epoch") for n, s in others}


def list_calls(
    history: Sequence[Earlier], make: Callable[..., dict[str, object]]
) -> list[tuple[str, dict[str, object]]]:
    """Return every call of a history with its arguments, of which ``make`` makes the numbers."""
    every = (earlier for earlier in history for _ in range(earlier.times))
    return [
        (one.method, make(one.specs(number), _BEFORE + number, one.flavour))
        for number, one in enumerate(every)
    ]


def live_through(
    made: object, history: Sequence[Earlier], make: Callable[..., dict[str, object]]
) -> None:
    """Make the calls of a history; what they run is not what a later call reaches."""
    seed_everything(_BEFORE)  # not where the last call has left the numbers
    calls = list_calls(history, make)
    traced = sys.gettrace()
    sys.settrace(None)
    try:
        for number, (method, given) in enumerate(calls):
            operator.attrgetter(method)(made)(**given)
            move_weights(made, number)
    finally:
        sys.settrace(traced)
