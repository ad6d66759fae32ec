"""What texts promise of each row of a mask: that a key is left to be seen.

``mask (B, T): True where a token stands, at least one in each row``: a row without any is a call
that no caller makes, and what attention makes of it is nobody's concern.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.rewriters.verification.calls.values import Promise

if TYPE_CHECKING:
    from collections.abc import Sequence

_MASK = r"mask|keep|valid$|is_pad|padding"
_FIRST = r"\b(the )?first( \w+){0,4} (always|never)\b|\balways\b[^.;]{0,30}\bfirst\b"
_SOME = (
    r"\bat least one\b|\b(never|not) (all|fully|completely|entirely)\b|\bnever empty\b"
    r"|\bno (row|query|sample|sequence|image|batch)\b[^.;]{0,20}\b(empty|all|fully|completely)\b"
    r"|\b(each|every) (row|query|sample|sequence)\b[^.;]{0,30}\b(sees|attends|keeps|has an?)\b"
)
_PROMISE = re.compile(rf"(?i)(?P<first>{_FIRST})|{_SOME}")
_HIDES = re.compile(
    r"(?i)\b(true|1|ones?|nonzero|set) *(where|for|means?|=|if|at|marks?)[^.;]*"
    r"\b(pad|ignor|hid|hides|masked|invalid|exclud|not (attend|allow|see))"
)


def read_promises(text: str, names: Sequence[str]) -> dict[str, Promise]:
    """Return the masks of which a text says that no row of theirs hides everything, and how."""
    masks = [name for name in names if re.search(_MASK, name.lower())]
    found: dict[str, Promise] = {}
    for promise in _PROMISE.finditer(text) if masks else ():
        before = text[: promise.start()].rpartition("\n\n")[2]
        mentioned = [m for m in re.finditer(r"\w+", before) if m.group(0) in names]
        name = mentioned[-1].group(0) if mentioned else masks[0] if len(masks) == 1 else ""
        if name in masks:
            about = text[text.index(name) if not mentioned else mentioned[-1].start() :]
            hides = _HIDES.search(about.partition("\n\n")[0]) is not None
            found[name] = Promise(value=not hides, first=promise["first"] is not None)
    return found
