"""What a diagnostic says of a small recording."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.diagnostic import Observation

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Recording

LOADER = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
"""The call that makes a batch in the process of training."""


def only(rule: Any, looked_at: Recording) -> Observation:
    """Return the one observation of a rule."""
    (found,) = rule.RULE.check(looked_at)
    assert isinstance(found, Observation)
    return found


def nothing(rule: Any, looked_at: Recording) -> bool:
    """Tell whether a rule has nothing to say."""
    return list(rule.RULE.check(looked_at)) == []


def api(name: str, count: int, total_ns: int, level: str = "acl") -> dict[str, Any]:
    """Return a row of what CANN counts of its calls."""
    return {"level": level, "name": name, "count": count, "total_ns": total_ns, "max_ns": total_ns}
