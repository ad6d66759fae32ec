"""Index labels of kernels: a set of millions, perhaps, that holds no object for each of them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Labels(AbstractSet[int]):
    """A set of whole numbers, sorted in one array: eight bytes each, where ``int`` takes sixty."""

    __slots__ = ("array",)

    def __init__(self, labels: Iterable[int] = ()) -> None:
        if isinstance(labels, Labels):
            self.array: NDArray[np.int64] = labels.array
            return
        listed = labels if hasattr(labels, "__array__") else list(labels)
        self.array = np.unique(np.asarray(listed, np.int64))

    def __contains__(self, label: object) -> bool:
        """Tell whether a label is one of them."""
        at = int(np.searchsorted(self.array, label)) if isinstance(label, (int, np.integer)) else -1
        return 0 <= at < len(self.array) and bool(self.array[at] == label)

    def __iter__(self) -> Iterator[int]:
        """Yield them, the smallest first."""
        return iter(self.array.tolist())

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self.array)

    def __hash__(self) -> int:
        """Return that of a ``frozenset`` of them, which they are equal to."""
        return self._hash()

    def __or__(self, other: Iterable[object]) -> Labels:
        """Return what is in either."""
        return Labels(np.union1d(self.array, _array(other)))

    def __and__(self, other: Iterable[object]) -> Labels:
        """Return what is in both."""
        return Labels(np.intersect1d(self.array, _array(other)))

    def __sub__(self, other: Iterable[object]) -> Labels:
        """Return what is not in the other."""
        return Labels(np.setdiff1d(self.array, _array(other)))

    def __repr__(self) -> str:
        """Return them as a call."""
        return f"Labels({self.array.tolist()})"


def _array(labels: Iterable[object]) -> NDArray[np.int64]:
    return (labels if isinstance(labels, Labels) else Labels(labels)).array  # type: ignore[arg-type]
