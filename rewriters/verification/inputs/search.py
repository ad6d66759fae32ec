"""Find arguments under which the original runs and reaches the rewritten lines."""

from __future__ import annotations

import itertools
import re
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import torch

from npufix.rewriters.verification.calls.coverage import LinesToCover, Place
from npufix.rewriters.verification.calls.values import (
    MadeArgument,
    Spec,
    Value,
    list_tensors,
)
from npufix.rewriters.verification.inputs.arguments import MASK, is_integral, is_tensor
from npufix.rewriters.verification.inputs.base_shapes import (
    collect_base_shapes,
    find_widths,
    of_views,
    tell_of_object,
)
from npufix.rewriters.verification.inputs.cases.modes import ASKS_GRADIENTS
from npufix.rewriters.verification.inputs.cases.other_sizes import change_sizes, group_refused
from npufix.rewriters.verification.inputs.cases.settings import list_weight_variants
from npufix.rewriters.verification.inputs.cases.trials import with_specs
from npufix.rewriters.verification.inputs.combinations import combine_guesses
from npufix.rewriters.verification.inputs.histories import list_histories, vary_last
from npufix.rewriters.verification.inputs.objects.examples import list_example_calls, with_rows
from npufix.rewriters.verification.inputs.objects.offers import guess_objects
from npufix.rewriters.verification.inputs.objects.saved import offer_loads
from npufix.rewriters.verification.inputs.recipes import Recipe, generate_recipes, tie_modules
from npufix.rewriters.verification.inputs.search_result import NO_OBJECT, SearchResult, vary_refused
from npufix.rewriters.verification.inputs.sorts_and_looks import (
    Looks,
    Sorts,
    is_unlikely,
    order_likely,
    passes,
)
from npufix.rewriters.verification.inputs.source import several
from npufix.rewriters.verification.inputs.source.attributes import list_bounding
from npufix.rewriters.verification.inputs.source.declarations import (
    NOTHING,
    Declarations,
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.parameters import (
    WIDTH,
    is_default,
    vary_default,
)
from npufix.rewriters.verification.inputs.source.path_conditions import (
    solve_path_condition,
    solve_sizes,
)
from npufix.rewriters.verification.inputs.source.promises import list_unpacked
from npufix.rewriters.verification.inputs.source.usage import find_function
from npufix.rewriters.verification.inputs.target import Assignment, CallCase, Target
from npufix.rewriters.verification.inputs.tracing import (
    add_floats,
    find_reaching,
    list_late,
    pass_all,
    reach_making,
    trace_call,
)
from npufix.rewriters.verification.sandbox.remote import runs_with_target

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rewriters.verification.inputs.target import Keeps

_SEARCH_S = 6.0
_SOON_S = 1.5
"""Before the calls that docstrings show are made."""
_HALVES = re.compile(r"\b(b?float16|half)\b|HalfTensor|BFloat16")
"""What code asks for that does something else of halves."""
_SPECIAL = re.compile(r"\bis(nan|inf|finite)\(")
"""What code asks for that does something else of what are no numbers."""
_MOST_BESIDE = 100
"""Calls that run, and do not reach the lines."""
_AFTERWARDS_S = 0.8
"""For further assignments, once the lines have been reached."""
_ENOUGH = 5
_ENOUGH_LATER = 2
"""For each further way to make the object."""
_LIKELY = 100  # calls of which some train weights, if any does: there may be millions
_MOST_RECIPES, _MOST_GOALS = 3, 4
_FURTHER_S = 1.0
_DEFAULT_S = 0.7
_MOST_DEFAULTS = 3
_MOST_CHANGED = 12
_MORE = 3  # sizes that are tried from the least on
_BOUND = 2
"""Less than any other size, and more than the one of what may be left out."""
_LOW = (torch.float16, torch.bfloat16)


@runs_with_target
def search(  # noqa: PLR0913 - what is looked for, and within what
    target: Target,
    wanted: LinesToCover,
    job: Job,
    keeps: Keeps,
    *,
    declared: Declarations = NOTHING,
    read: Sequence[str] = (),
) -> SearchResult:
    """Try guesses, the likeliest first, until the lines are reached by several of them.

    For ``def f(x, dim)`` these are, by rising cost: ``x=float[2, 3, 8], dim=8``; then either the
    next guess at ``dim`` (-1) or at ``x`` (``float[2, 3]``); then both. The first with which the
    original runs through the lines is the first result; a further one must look different.
    """
    found = SearchResult()
    options: list[Recipe | None] = [None]
    made: Iterator[Recipe] = iter(())
    if target.owner is not None:
        failed: list[str] = []
        made = generate_recipes(target.owner, target.name, target.loaded, job.patched, failed)
        options = list(itertools.islice(made, _MOST_RECIPES))
        options += reach_making(target, job, options, made)[:_MOST_RECIPES]
        if not options:
            found.errors[NO_OBJECT] += 1
        if failed and all(r is None or r.attributes is not None for r in options):
            found.not_made = failed[-1]
    looking = _Search(target, wanted, job.recorded, keeps, declared, options, found)
    shown = list(list_example_calls(target.name, target.owner, target.loaded.find))
    looking.run_guesses(_SOON_S if shown else _SEARCH_S, floating=job.floating)
    if shown and not found.assignments:
        looking.run_examples(shown)
        if not (found.assignments or found.outside):  # else what is declared is wrong
            looking.run_guesses(_SEARCH_S, floating=job.floating)
    looking.run_as_refused()
    looking.run_further()
    looking.run_otherwise_made(made)
    looking.run_on_other_weights()
    looking.run_as_bound()
    looking.run_after_others(lambda name: read_declarations(job.original, name, job.assumed))
    late = () if found.assignments else list_late(target, next(iter(options), None))
    completed = replace(looking, options=[*late])
    completed.run_guesses(_SEARCH_S, floating=job.floating)
    if completed.options and found.ran:
        completed.run_further()
    looking.run_beside_defaults(read)
    looking.run_within_bounds()
    looking.run_as_changed(job)
    pass_all(target, wanted, found, keeps)
    if not job.floating:
        add_floats(target, wanted, found, keeps)
    return found


@dataclass(frozen=True, slots=True)
class _Search:
    """What is looked for, and what was found so far."""

    target: Target
    wanted: LinesToCover
    recorded: Sequence[RecordedCall]
    keeps: Keeps
    declared: Declarations
    options: Sequence[Recipe | None]
    found: SearchResult

    def combine(
        self, recipe: Recipe | None, forced: Mapping[str, Spec] | None = None
    ) -> Iterator[Assignment]:
        """Return assignments for one way to make the object, the likeliest first."""
        target = self.target
        target.discard_object()
        widths = find_widths(target, recipe)
        made = target.make_object(recipe)
        tree, wanted = self.wanted.tree, target.parameters()
        function = find_function(tree, target.qualname)
        bases = [*of_views(function), *collect_base_shapes(self.recorded, widths, wanted, made)]
        given = (*(() if recipe is None else recipe.arguments), *(forced or {}).items())
        declared = tell_of_object(self.declared.made_with(given), function, made)
        tried = combine_guesses(target, tree, bases, widths, declared, forced, made)
        loads = offer_loads(made, wanted, function, target.name)
        every = itertools.chain(loads, filter(declared.fits, tried))
        return (Assignment(self._tie(recipe, specs), specs) for specs in every)

    def _tie(self, recipe: Recipe | None, specs: Mapping[str, Spec]) -> Recipe | None:
        owner = self.target.owner
        if recipe is None or owner is None or recipe.history:
            return recipe
        return tie_modules(recipe, specs, owner, self.target.loaded)

    def run_guesses(self, seconds: float, *, floating: bool) -> None:
        """Try every way to make the object, each for its part of the time."""
        # Of this process alone: on a busy machine the search must not find less.
        deadline = time.process_time() + seconds
        for left, recipe in zip(range(len(self.options), 0, -1), self.options, strict=True):
            if self.found.assignments and recipe is not None and recipe.is_wide:
                continue
            until = time.process_time() + (deadline - time.process_time()) / left
            every = self.combine(recipe)
            self.run((a for a in every if not (floating and is_integral(a.specs))), until)

    def run_examples(self, shown: Sequence[Mapping[str, Spec]]) -> None:
        """Make the calls that docstrings show, where no guess runs or reaches the lines."""
        until = time.process_time() + _SEARCH_S
        for recipe in self.options:
            every = with_rows(shown, self.declared.arguments)
            self.run((Assignment(recipe, specs) for specs in every), until)

    def run_as_refused(self) -> None:
        """Make arguments as large, and the object as wide, as calls have asked for."""
        target, found = self.target, self.found
        if found.assignments:
            return
        for refused in group_refused(found):
            target.discard_object()
            self.run(change_sizes(found, refused), time.process_time() + _SEARCH_S)
        for recipe in (r for r in self.options if r is not None and r.attributes is None):
            for made in [*vary_refused(found, target.owner, target.settings_of(recipe))]:
                if not found.assignments:
                    every = self.combine(recipe.made_with(**made))
                    self.run(every, time.process_time() + _FURTHER_S)

    def run_further(self) -> None:
        """Choose values that the tests above the lines ask for which nothing has reached."""
        found = self.found
        recipe = next(iter(self.options), None)
        tree, wanted = self.wanted.tree, self.target.parameters()
        for values in self._list_asked(recipe):
            self._run_with(values, _FURTHER_S)
        affixes = several.find_affixes(tree, self.target.qualname, wanted)
        if affixes and self.wanted.unreached(found.reached):
            every = ((a, s) for a in self.combine(recipe) for s in several.affix(a.specs, affixes))
            self.run((replace(a, specs=s) for a, s in every), time.process_time() + _FURTHER_S)

    def run_otherwise_made(self, further: Iterator[Recipe]) -> None:
        """Make the object with less likely arguments, of those that tests above the lines read."""
        known = {(n, str(s)) for r in self.options if r is not None for n, s in r.arguments}
        first = next(iter(self.options), None)
        asked = {n.removeprefix("self.") for values in self._list_asked(first) for n in values}
        until = time.process_time() + _SEARCH_S / 2
        for recipe in further if asked else ():
            if time.process_time() > until or not self.wanted.unreached(self.found.reached):
                return
            if any(n in asked and (n, str(s)) not in known for n, s in recipe.arguments):
                self.run(self.combine(recipe), time.process_time() + _DEFAULT_S, most=1)

    def _list_asked(self, recipe: Recipe | None) -> list[dict[str, object]]:
        """Return what the tests above lines that nothing has reached ask of names."""
        asked: list[dict[str, object]] = []
        held = getattr(self.target.make_object(recipe), "__dict__", {}).items()
        known = {f"self.{n}": v for n, v in held if type(v) is int}
        tree, wanted = self.wanted.tree, self.target.parameters()
        free = [p.name for p in wanted if not p.has_default]
        known |= {p.name: p.default for p in wanted if type(p.default) is int}
        for place in self.wanted.unreached(self.found.reached):
            values = solve_path_condition(tree, place, self.target.loaded.find)
            values |= solve_sizes(tree, place, known, free)
            if values and values not in asked:
                asked.append(values)
        return asked[:_MOST_GOALS]

    def run_on_other_weights(self) -> None:
        """Train other weights, where those of one and two dimensions reach no further line."""
        if not self.wanted.unreached(self.found.reached):
            return
        calls = (c for r in self.options[:1] for c in itertools.islice(self.combine(r), _LIKELY))
        tried = (made for call in calls for made in list_weight_variants(call))
        self.run(tried, time.process_time() + _DEFAULT_S, most=1)

    def run_as_bound(self) -> None:
        """Let what the lines read come from elsewhere, where a test above decides over it."""
        beside, found = self.wanted.of_bindings(), self.found
        ran = {p for a in found.assignments for p in trace_call(self.target, CallCase(a)) or ()}
        asked = [solve_path_condition(beside.tree, p) for p in beside.unreached(ran)]
        for values in [a for a in asked if a and found.assignments][:_MOST_DEFAULTS]:
            self._run_with(values, _DEFAULT_S, most=1)

    def _run_with(self, values: Mapping[str, object], seconds: float, most: int = 0) -> None:
        """Pass values, and make the object with those of its attributes, until lines are new."""
        forced, found = several.as_arguments(values, self.target.parameters()), self.found
        recipes = list(self.target.choose(self.options[:2], values))
        for beside, recipe in itertools.product(self._with_sizes(values), recipes):
            known = len(found.assignments if most else found.reached)
            beside.run(beside.combine(recipe, forced), time.process_time() + seconds, most)
            if len(found.assignments if most else found.reached) > known:
                break

    def _with_sizes(self, values: Mapping[str, object]) -> list[_Search]:
        """Return the same with sizes by the names that code gives them: ``b, c, h, w = x.shape``.

        For 3 of ``c``, above lines that no other number of channels reaches; and a little more, as
        more than 3 may have to be a multiple.
        """
        function = find_function(self.wanted.tree, self.target.qualname)
        arguments = {p.name: self.declared.of(p.name) for p in self.target.parameters()}
        sizes = {n: v for n, v in values.items() if type(v) is int and n not in arguments}
        for name, one in arguments.items():
            code = next(list_unpacked(function, name), ()) if function is not None else ()
            if sizes.keys() & set(code) and not one.shapes:
                arguments[name] = replace(one, shapes=(code,))
        known = replace(self.declared, arguments={**self.declared.arguments, **arguments})
        if known == self.declared:
            return [self]
        given = [tuple((n, Value(v + step)) for n, v in sizes.items()) for step in range(_MORE)]
        return [replace(self, declared=known.made_with(one)) for one in given]

    def run_after_others(self, read: Callable[[str], Declarations]) -> None:
        """Call the method on objects of which other methods have been called.

        ``read`` returns what is declared of another one.
        """
        made = next((r for r in self.options if r is not None), None)
        recipe = made and (find_reaching(self.target, self.wanted, self.found) or made)
        if recipe is None or recipe.attributes is not None:
            return
        self._run_after_others(recipe, read)
        # ``add(feat)`` keeps what ``nearest(query)`` is held against
        if not self.found.assignments:
            names = (p.name for p in self.target.parameters())
            alike = {shape for n in names for shape in self.declared.list_shapes(n, WIDTH)}
            if alike:
                self._run_after_others(recipe, read, alike)
        # What the object is made with may lead elsewhere, whatever has been called before.
        left = self.wanted.unreached(self.found.reached)
        for values in self._list_asked(recipe) if left else ():
            for made in self.target.choose([recipe], values):
                if made is not None and made != recipe and made.attributes is None:
                    self._run_after_others(made, read)

    def _run_after_others(
        self,
        recipe: Recipe,
        read: Callable[[str], Declarations],
        shapes: Collection[tuple[int, ...]] = (),
    ) -> None:
        def combine(other: Target) -> Iterator[Assignment]:
            beside = replace(self, target=other, declared=read(other.qualname))
            return order_likely(beside.combine(recipe), beside.declared, recipe, shapes)

        def runs(other: Target, one: Assignment, times: int) -> bool:
            return trace_call(other, CallCase(one), times=times) is not None

        known = [a.specs for a in self.found.assignments if a.recipe == recipe]
        for used in list_histories(self.target, recipe, combine, runs, self.found):
            again = (Assignment(used, specs) for specs in known)
            tried = itertools.chain(again, self.combine(used))
            # The lines may be run by the calls before: where the best score is set, and not beaten.
            own = bool(known) and any(e.method == self.target.name for e in used.history)
            self.run(tried, time.process_time() + _FURTHER_S, most=1, anywhere=own)
            last = ((specs, vary_last(specs)) for specs in known[:1])
            other = (Assignment(used, {**specs, **new}) for specs, new in last if new)
            self.run(other, time.process_time() + _FURTHER_S, most=1)

    def run_beside_defaults(self, read: Sequence[str]) -> None:
        """Pass something else than a default that is read: a change may have forgotten it.

        Or may show in no result, as it is multiplied by zero.
        """
        found = self.found
        if not found.assignments:
            return
        named = {p.name: p for p in self.target.parameters()}
        hidden = (
            named[name]
            for name in dict.fromkeys([*read, *(p.name for p in self.target.told.options)])
            if name in named and all(is_default(a.specs.get(name)) for a in found.assignments)
        )
        recipe = next(iter(self.options), None)
        for parameter in itertools.islice(hidden, _MOST_DEFAULTS):
            use = self.declared.of(parameter.name).use
            made = [s for s in guess_objects(parameter, use) if isinstance(s, MadeArgument)]
            others = vary_default(parameter) or several.vary_numbers(parameter.default) or made[:1]
            for other in others or several.vary_absent(parameter, use):
                # in a call that reaches the lines: ``eta`` may have to be another as well
                known = [with_specs(a, **{parameter.name: other}) for a in found.assignments]
                assignments = self.combine(recipe, {parameter.name: other})
                before = len(found.assignments)
                tried = itertools.chain(known, assignments)
                # what an optimiser holds may show along one of the axes alone
                most = len(known) if isinstance(other, MadeArgument) else 0
                self.run(tried, time.process_time() + _DEFAULT_S, most)
                if len(found.assignments) > before:
                    break
        self._run_with_absent(recipe)

    def run_within_bounds(self) -> None:
        """Make the object with bounds that what is passed exceeds: ``max_length=2``."""
        found, target = self.found, self.target
        recipe = next((a.recipe for a in found.assignments), None)
        if recipe is None or recipe.attributes is not None or target.owner is None:
            return
        settings = target.settings_of(recipe)
        for name in list_bounding(target.owner, target.name).values():
            known = settings.get(name, False)
            if known is None or (type(known) is int and known > _BOUND):
                made = recipe.made_with(**{name: Value(_BOUND)})
                again = (replace(a, recipe=made) for a in found.assignments[:_ENOUGH])
                self.run(again, time.process_time() + _DEFAULT_S, most=1)

    def _run_with_absent(self, recipe: Recipe | None) -> None:
        """Pass tensors that every call has left out: what is selected by a mask, without it."""
        found = self.found
        for parameter in self.target.parameters():
            name, declared = parameter.name, self.declared.of(parameter.name)
            given = (a.specs.get(name) for a in found.assignments)
            if parameter.default is not None or any(s and list_tensors(s) for s in given):
                continue
            if is_tensor(parameter, declared) or re.search(MASK, name):
                tried = (a for a in self.combine(recipe) if list_tensors(a.specs[name]))
                self.run(tried, time.process_time() + _DEFAULT_S, most=1)

    def run_as_changed(self, job: Job) -> None:
        """Pass what changed tests ask for: p of 0 in training of ``not training or p == 0``."""
        found, recipe = self.found, next(iter(self.options), None)
        own = {p.name for p in self.target.parameters()}
        try:
            changed = LinesToCover(job.patched, "", job.lines_patched)
        except (SyntaxError, ValueError):
            return  # it does not load, which is said of it
        places = changed.unreached(set()) if found.assignments else []
        for values in [solve_path_condition(changed.tree, p) for p in places][:_MOST_CHANGED]:
            forced = several.as_arguments(values, self.target.parameters())
            met = any(passes(a.specs, values) for a in found.assignments)
            if values and not met and values.keys() <= own:
                self.run(self.combine(recipe, forced), time.process_time() + _DEFAULT_S, most=1)

    def run(
        self, tried: Iterator[Assignment], until: float, most: int = 0, *, anywhere: bool = False
    ) -> None:
        """Keep what reaches lines and looks different, for as long as there is time.

        ``anywhere``: what does not reach them is kept as well.
        """
        wanted, found = self.wanted, self.found
        start = len(found.assignments)
        enough = start + (most or (_ENOUGH_LATER if start else _ENOUGH))
        beside, sorts, looks = 0, Sorts(), Looks()
        found.not_taken.clear()
        for assignment in tried:
            if found.ends(until):
                return
            reaches_all = not wanted.unreached(found.reached)
            specs = self._leave_out_told(assignment.specs)
            if looks.say_nothing(assignment, any_sketch=not reaches_all) or (
                found.assignments and is_unlikely(specs, found.assignments[0].specs)
            ):
                continue
            ran = None if sorts.are_hopeless(assignment) else self._trace(assignment)
            sorts.note(assignment, works=ran is not None)
            reached = wanted.reached(ran) if ran is not None else set()
            beside += ran is not None and not reached
            if beside > _MOST_BESIDE:
                return  # what leads elsewhere is asked for by ``run_further``
            if ran is None or (wanted.unreached(set()) and not (reached or anywhere)):
                continue
            if not self.keeps(CallCase(assignment)):
                found.outside = True
                continue
            looks.note(assignment)
            if len(found.assignments) == start:
                until = min(until, time.process_time() + _AFTERWARDS_S)
            if len(found.assignments) < enough or reached - found.reached:
                found.assignments.append(assignment)
            found.reached |= reached
            if len(found.assignments) >= enough and not wanted.unreached(found.reached):
                return

    def _leave_out_told(self, specs: Mapping[str, Spec]) -> dict[str, Spec]:
        """Return arguments without those that are of flags because it is said: ``(S, S) bool``."""
        told = {n for n in specs if "bool" in self.declared.of(n).kinds}
        return {n: s for n, s in specs.items() if n not in told}

    def _trace(self, assignment: Assignment) -> set[Place] | None:
        """Return the lines that a call runs, in evaluation and a second time if some are left."""
        target, wanted, found = self.target, self.wanted, self.found
        ran = trace_call(target, CallCase(assignment), found)
        if ran is None:
            return None
        found.not_taken.clear()
        if target.has_modes and wanted.unreached(found.reached | ran):
            ran |= trace_call(target, CallCase(assignment, training=False)) or set()
        for half in _LOW if _HALVES.search(wanted.text) else ():
            if wanted.unreached(found.reached | ran):
                ran |= trace_call(target, CallCase(assignment, dtypes=(half,))) or set()
        if _SPECIAL.search(wanted.text) and wanted.unreached(found.reached | ran):
            ran |= trace_call(target, CallCase(assignment, "NaN and Inf")) or set()
        if target.owner is not None and wanted.unreached(found.reached | ran):
            ran |= trace_call(target, CallCase(assignment), times=2) or set()
        if ASKS_GRADIENTS.search(wanted.text) and wanted.unreached(found.reached | ran):
            ran |= trace_call(target, CallCase(assignment, without_gradients=True)) or set()
        return ran
