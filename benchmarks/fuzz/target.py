"""What a target is: a reader, and the inputs that it gets."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from benchmarks.fuzz.mutations import Mutation


@dataclass(frozen=True)
class Target:
    """One reader. ``quick`` reads the file alone; ``whole`` does all that a command does."""

    name: str
    path: str
    """Where the input lies, below a folder of its own."""
    mutate: Mutation
    seeds: Callable[[], list[bytes]]
    quick: Callable[[Path], Any]
    whole: Callable[[Path, bool], Any] | None = None
    beside: Mapping[str, Callable[[], bytes]] = field(default_factory=dict)
    """Other files of that folder, which stay as they are."""
    real: tuple[str, ...] = ()
    """Names of files in a corpus of the user's that are first inputs, too."""
    pack: Callable[[bytes], bytes] = bytes
    """From an input to the bytes of the file."""

    def prepare(self, folder: Path) -> Path:
        """Write the files beside the input, and return where it belongs."""
        for name, content in self.beside.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content())
        path = folder / self.path
        path.parent.mkdir(parents=True, exist_ok=True)
        return path
