"""Guesses at each argument, combined: the likeliest calls first."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import Spec, Value
from npufix.rewriters.verification.inputs.arguments import (
    guess_argument,
    guess_tensors,
    is_tensor,
)
from npufix.rewriters.verification.inputs.settings import guess_configurations
from npufix.rewriters.verification.inputs.source.parameters import WIDTH, Parameter
from npufix.rewriters.verification.inputs.source.path_conditions import find_compared_constants

if TYPE_CHECKING:
    import ast
    from collections.abc import Iterator, Mapping, Sequence

    from npufix.rewriters.verification.inputs.source.declarations import Declarations
    from npufix.rewriters.verification.inputs.target import Target

_MOST_COST = 60
_OPTIONAL_COST = 2
_MOST_DECLARED = 2


def combine_guesses(  # noqa: PLR0913, PLR0917 - all that is known of the arguments
    target: Target,
    tree: ast.Module,
    bases: Sequence[tuple[int, ...]],
    widths: Sequence[int],
    declared: Declarations,
    forced: Mapping[str, Spec] | None = None,
) -> Iterator[dict[str, Spec]]:
    """Yield arguments by rising cost: the sum of the ranks of all guesses made.

    ``forced`` are those that some are to have, and no guesses.
    """
    wanted = target.parameters()
    hints = find_compared_constants(tree, target.qualname, target.loaded.find)
    known = {p.name: guess_configurations(p, target, tree) for p in wanted}

    def tries(p: Parameter, base: tuple[int, ...]) -> list[Spec]:
        width = base[-1] if base and base[-1] in widths else WIDTH
        own = declared.holding(p.name, width)
        shapes = declared.list_shapes(p.name, width)
        if target.owner is not None and base not in shapes and len(base) in map(len, shapes):
            shapes = [*shapes, base]  # one of the sizes is what the object was made for
        if forced and p.name in forced:
            # A number in place of a mask, as nothing is known of it, changes no scores.
            something = p.default is None and forced[p.name] == Value(WIDTH)
            made = guess_tensors(p, base, widths, own, shapes) if something else []
            return [*made, *(() if made and own.use.as_tensor else [forced[p.name]])]
        made = known[p.name] or guess_argument(p, base, widths, own, shapes)
        # What a tensor is compared with, ``valid > 0``, says nothing of a number in its place.
        sure = is_tensor(p, own)
        told: list[Spec] = [Value(v) for v in hints.get(p.name, ()) if v is None or not sure]
        size = None if sure or p.has_default else declared.find_size(p.name, width)
        told += [] if size is None else [Value(size)]
        at = 1 if p.has_default else 0
        return [*made[:at], *(t for t in told if t not in made), *made[at:]]

    first = [shape for p in wanted for shape in declared.list_shapes(p.name, WIDTH)]
    first.sort(key=len, reverse=True)
    table: list[list[list[Spec]]] = []
    for base in dict.fromkeys((*first[:_MOST_DECLARED], *bases)):
        row = [tries(p, base) for p in wanted]
        if row not in table:
            table.append(row)
    for cost in range(_MOST_COST):
        for rank, options in enumerate(table[: cost + 1]):
            for chosen in _split(wanted, options, cost - rank):
                yield {p.name: s for p, s in zip(wanted, chosen, strict=True)}


def _split(
    wanted: Sequence[Parameter], options: Sequence[Sequence[Spec]], cost: int
) -> Iterator[tuple[Spec, ...]]:
    if not wanted:
        if cost == 0:
            yield ()
        return
    extra = _OPTIONAL_COST if wanted[0].has_default else 0
    for rank, spec in enumerate(options[0]):
        price = rank + extra if rank else 0
        if price > cost:
            break
        for rest in _split(wanted[1:], options[1:], cost - price):
            yield (spec, *rest)
