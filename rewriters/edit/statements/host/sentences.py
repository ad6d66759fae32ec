"""What is to be done with values that people read: who folds findings asks for no more."""

from __future__ import annotations

FOR_SUM = (
    "keep it on the device (total += loss.detach()) and read it every N steps, all values of a "
    "step at once"
)
FOR_LOG = (
    "the host waits for each value that is only logged: keep x.detach(), and read all of them at "
    "once, every N steps: torch.stack(values).tolist()"
)
FOR_METERS = (
    "each step waits once for every meter: read all that are tensors at once, "
    "torch.stack(values).tolist(), or let the meters keep x.detach(), and read it where they are "
    "printed"
)
FOR_CALLER = (
    "the host waits in every call for a number that is only added up or logged: return x.detach(), "
    "add that up, and read the sum once"
)
FOR_FINITE = (
    "the host waits in every step to see that the loss is finite: look where it is logged, every N "
    "steps, or keep the answer on the device (bad |= ~torch.isfinite(loss)) and read that there"
)
ONLY_LOGGED = frozenset({FOR_LOG, FOR_SUM, FOR_FINITE, FOR_CALLER, FOR_METERS})
FORM_LOGGED = "logged"


def say_kept(name: str, *, in_module: bool) -> str:
    """Return what to do with an attribute that is copied to the device in every call."""
    if not in_module:
        return (
            f"self.{name} stays on the host, so it is copied to the device in every call: keep the "
            "copy, which is the same for all calls"
        )
    return (
        f"self.{name} is no buffer, so it is copied to the device in every call: in __init__ "
        f'self.register_buffer("{name}", ..., persistent=False), and here self.{name} '
        "without the copy"
    )
