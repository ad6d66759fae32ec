"""What the verifier is asked: one function of the user before and after a rewrite."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from npufix.rewriters.match.recorded_call import RecordedCall  # noqa: TC001 - msgspec reads it

if TYPE_CHECKING:
    from pathlib import Path

PROBE = "npufix_operands_"
"""The function that the texts of ``Job.probes`` call."""


def spell_path(path: Path) -> str:
    """Return a path as text that every process can be sent: a name may hold bytes of no text."""
    return str(path).encode("utf-8", "backslashreplace").decode()


@dataclass(frozen=True, slots=True)
class OtherFile:
    """A file that the same change touches; a text is None where there is no such file."""

    path: str
    original: str | None
    patched: str | None


@dataclass(frozen=True, slots=True)
class Job:
    """One function to verify; the texts are those of whole modules."""

    path: str
    """The user's file: for messages, and for the package that relative imports start from."""
    root: str
    """The source root, importable in the child."""
    original: str
    patched: str
    """The direct form: it calls ``torch_npu`` unguarded, so that the fused branch runs on CPU."""
    qualname: str
    """``LlamaRMSNorm.forward``, ``focal_loss``; empty: whether the patched file can be imported."""
    lines_original: tuple[int, ...]
    """Where the rewritten expressions start; every one of them must be reached."""
    lines_patched: tuple[int, ...]
    portable: str = ""
    """The text that is written, if it differs: guarded, and on CPU equal bit for bit."""
    recorded: tuple[RecordedCall, ...] = ()
    torch_npu_version: str = ""
    """The user's; empty if unknown."""
    floating: bool = False
    """A condition of the rule says that the tensors are floating point: no others are tried."""
    probes: tuple[str, ...] = ()
    """The original with a call of ``rewrite.PROBE`` in place of the new code: it gets the operands
    by their names in the rule. A change by hand may hold several such places, or none."""
    vouched: tuple[str, ...] = ()
    """Names of the conditions that only the user vouches for: calls that break them say nothing."""
    known: tuple[str, ...] = ()
    """Names of the conditions that the source proves. The changed statements alone do not show it:
    that a mask has the rows of what it is made of, say."""
    inference: bool = False
    """The operator has no gradient and the user says that none is wanted: none is compared."""
    others: tuple[OtherFile, ...] = ()
    """Files that the two texts import, in the version of each."""
    by_hand: bool = False
    """Somebody's own change: what it raises counts, whatever the user vouches for."""
    on_host: bool = False
    """The lines are those for other devices: nothing runs on an NPU, virtual or not."""
    assumed: tuple[str, ...] = ()
    """What the user says of the arguments of the function: ``q: float[b, h, t, d]``."""
    alone: bool = False
    """The rest of the function is known to go with both texts: where it cannot be called, the
    changed statements are verified alone."""
