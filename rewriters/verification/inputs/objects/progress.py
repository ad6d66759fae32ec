"""What stands for a bar that shows progress, where its package is not installed.

``for i in trange(len(sigmas) - 1, disable=disable)`` goes through the same numbers without it.
"""

from __future__ import annotations

import types
from typing import TYPE_CHECKING, Any

from typing_extensions import Self

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator


class Bar:
    """Goes through what it is given; whatever else is asked of it does nothing."""

    def __init__(self, iterable: Iterable[Any] = (), *_given: object, **_named: object) -> None:
        """Take what is to be shown."""
        self._held = iterable

    def __iter__(self) -> Iterator[Any]:
        """Go through it."""
        return iter(self._held)

    def __len__(self) -> int:
        """Return how many there are, of what has a length."""
        return len(self._held)  # type: ignore[arg-type] # raises as it does without a bar

    def __enter__(self) -> Self:
        """Show nothing for a while."""
        return self

    def __exit__(self, *_error: object) -> None:
        """End that."""

    def __getattr__(self, name: str) -> Callable[..., None]:
        """Return what does nothing: ``set_postfix``, ``update``."""
        if name.startswith("_"):
            raise AttributeError(name)
        return lambda *_given, **_named: None

    write = staticmethod(lambda *_given, **_named: None)


def _count(*numbers: int, **_named: object) -> Bar:
    return Bar(range(*numbers))


def _show(iterable: Iterable[Any], *_given: object, **_named: object) -> Bar:
    return Bar(iterable)


_OF_TQDM = {"tqdm": Bar, "trange": _count, "tqdm_notebook": Bar, "tnrange": _count}
_KNOWN: dict[str, dict[str, object]] = {"rich.progress": {"track": _show}}


def find_progress(module: str, name: str = "") -> object:
    """Return what stands for a name of a module, or for the module; None if it shows no progress.

    ``find_progress("tqdm.auto", "trange")`` counts, and ``find_progress("tqdm")`` has that as well.
    """
    of_tqdm = module.partition(".")[0] == "tqdm"
    names = _OF_TQDM if of_tqdm else _KNOWN.get(module, {})
    if name:
        return names.get(name)
    whole = types.SimpleNamespace(**_OF_TQDM)
    whole.auto = whole.notebook = whole
    return whole if of_tqdm else None
