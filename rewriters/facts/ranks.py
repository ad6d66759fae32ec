"""Numbers of dimensions that are known only beside those of other tensors."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.graph.nodes import Graph, Node

MATRIX = 2


class RelativeRank(NamedTuple):
    """As many dimensions as ``base``, and ``more``."""

    base: Node
    more: int


# A number of dimensions, one relative to another tensor's, or ``None`` if nothing is known.
Rank = int | RelativeRank | None


def rank_of_wider(graph: Graph, *ranks: Rank) -> Rank:
    """Return the largest of ranks that nobody knows: one for ``x > n`` and ``(n - x) ** 2``.

    It is relative to a node that stands for all of them.
    """
    known = [rank for rank in ranks if isinstance(rank, RelativeRank)]
    if len(known) < len(ranks) or not known:
        return None
    most: dict[Node, int] = {}
    for base, more in (part for rank in known for part in _parts_of(rank)):
        most[base] = max(more, most.get(base, more))
    if len(most) == 1:
        return RelativeRank(*most.popitem())
    bases = sorted(most, key=id)  # one order for each set
    return RelativeRank(graph.node(Op.WIDER, *bases, value=tuple(map(most.__getitem__, bases))), 0)


def _parts_of(rank: RelativeRank) -> tuple[RelativeRank, ...]:
    """Return the ranks of which one is the largest: this one, or those that it stands for."""
    if rank.base.op != Op.WIDER or rank.more:
        return (rank,)
    assert isinstance(rank.base.value, tuple)  # noqa: S101 - ``rank_of_wider`` made it
    return tuple(map(RelativeRank, rank.base.args, rank.base.value))


def shift(rank: Rank, by: int) -> Rank:
    """Return a rank of some dimensions more."""
    if isinstance(rank, RelativeRank):
        return RelativeRank(rank.base, rank.more + by)
    return None if rank is None else rank + by


def product_rank(left: Rank, right: Rank) -> Rank:
    """Return the rank of a matrix product; products with a vector are not followed."""
    if right == MATRIX:
        return left if isinstance(left, RelativeRank) or left is None else max(left, 1)
    if isinstance(left, int) and isinstance(right, int) and min(left, right) >= MATRIX:
        return max(left, right)
    return None
