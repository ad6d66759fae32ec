"""The ``args`` of the events of a Kineto trace, in the spelling of all versions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

if TYPE_CHECKING:
    from npufix.profiling_parsers.trace.json_stream import Event

_NOTHING = msgspec.Raw(b"")


class OperatorArguments(msgspec.Struct, gc=False):
    """What is needed of an operator. The text of shapes and types stays: most come again."""

    external: Any = msgspec.field(name="External id", default=-1)
    sequence: Any = msgspec.field(name="Sequence number", default=-1)
    dims: msgspec.Raw = msgspec.field(name="Input Dims", default=_NOTHING)
    first_dims: msgspec.Raw = msgspec.field(name="Input dims", default=_NOTHING)
    types: msgspec.Raw = msgspec.field(name="Input type", default=_NOTHING)
    stack: Any = msgspec.field(name="Call stack", default="")
    module: Any = msgspec.field(name="Module Hierarchy", default="")


class TaskArguments(msgspec.Struct, gc=False):
    """What is needed of a device task or of the call that launched it."""

    correlation: Any = -1
    device: Any = None
    external: Any = msgspec.field(name="External id", default=None)
    first_external: Any = msgspec.field(name="external id", default=-1)


Args = TypeVar("Args", OperatorArguments, TaskArguments)


@dataclass(frozen=True)
class Arguments(Generic[Args]):
    """How to read the ``args`` of one kind of event."""

    decoder: msgspec.json.Decoder[Args]
    empty: Args
    """What stands in for those that are damaged."""

    def of(self, event: Event) -> Args | None:
        """Return the arguments of ``event``, None if they are damaged or no object."""
        try:
            return self.decoder.decode(event.args)
        except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
            return None


OPERATOR = Arguments(msgspec.json.Decoder(OperatorArguments), OperatorArguments())
TASK = Arguments(msgspec.json.Decoder(TaskArguments), TaskArguments())
