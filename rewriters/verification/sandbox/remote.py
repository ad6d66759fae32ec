"""Calls of functions in another process: where a version of the user's code is loaded.

A ``RemoteTarget`` stands for what is loaded there. A function that is marked ``runs_with_target``
runs there when one of its arguments is such a stand-in, and here otherwise::

    @runs_with_target
    def observe(target, case): ...

    observe(local, case)   # calls it
    observe(remote, case)  # sends ``case`` there, and returns what comes back

What comes back is data (``transport``): the process that asks never runs what the other one holds.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple, ParamSpec, TypeVar

import msgspec

from npufix.rewriters.verification.kernels.common import collect_kernels, note_kernel
from npufix.rewriters.verification.sandbox.transport import Packing, TransportError, Unpacking
from npufix.rewriters.verification.verdict import BackendLimitError, NotVerifiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

P = ParamSpec("P")
T = TypeVar("T")
E = TypeVar("E", bound=Exception)

_SIZE_BYTES = 8
_LARGEST = 1 << 30
_OF_A_PIPE = 1 << 16
"""What a pipe holds at the most: to ask for more makes room for it with every message."""
_MOST_NOISE = 16 << 20
"""What code may write into the pipe that is not its own to write."""
_CPU_CLOCK = 2
_read, _write = os.read, os.write  # the user's code may replace them


class WorkerLostError(BaseException):
    """The process of a version says nothing any more, or nothing that makes sense."""


class NoiseError(WorkerLostError):
    """The code writes without end into the pipe of its observations."""


class Pipe(NamedTuple):
    """Both ways between two processes; what stands between two copies of the token is meant."""

    reading: int
    writing: int
    token: bytes

    def send(self, data: bytes) -> None:
        """Write a message."""
        left = memoryview(self.token + len(data).to_bytes(_SIZE_BYTES, "big") + data)
        try:
            while left:
                left = left[_write(self.writing, left) :]
        except OSError as error:
            raise WorkerLostError(str(error)) from None


class _Listener:
    """Reads messages from a pipe, and leaves out what else is written into it."""

    def __init__(self, pipe: Pipe) -> None:
        self._pipe = pipe
        self._heard = bytearray()
        self._noise = 0

    def hear(self) -> bytes | None:
        """Return the next message; None at the end."""
        token = self._pipe.token
        head = len(token) + _SIZE_BYTES
        while True:
            at = self._heard.find(token)
            junk = at if at >= 0 else max(0, len(self._heard) - len(token))
            self._noise += junk
            del self._heard[:junk]
            if self._noise > _MOST_NOISE:
                raise NoiseError
            if at >= 0 and len(self._heard) >= head:
                size = int.from_bytes(self._heard[len(token) : head], "big")
                if size > _LARGEST:
                    raise NoiseError
                if len(self._heard) >= head + size:
                    message = bytes(self._heard[head : head + size])
                    del self._heard[: head + size]
                    return message
            try:
                data = _read(self._pipe.reading, _OF_A_PIPE)
            except OSError as error:
                raise WorkerLostError(str(error)) from None
            if not data:
                return None
            self._heard += data


@dataclass(frozen=True, slots=True)
class RemoteLoaded:
    """What is known of a module that another process has loaded."""

    filename: str
    missing: tuple[str, ...]
    way: str


@dataclass(frozen=True, slots=True)
class TargetFacts:
    """What is known of a function that another process has loaded."""

    number: int
    """Of those that it holds."""
    loaded: RemoteLoaded
    qualname: str
    name: str
    has_modes: bool
    on_npu: bool
    sizes: dict[str, int]


@dataclass(frozen=True, slots=True)
class RemoteTarget:
    """Stands for a function that another process has loaded."""

    worker: Worker
    facts: TargetFacts
    on_npu: bool

    def AS_HANDLE(self) -> tuple[int, bool]:  # noqa: N802 - marks the class for ``transport``
        """Return what the other process knows it by."""
        return self.facts.number, self.on_npu

    @property
    def loaded(self) -> RemoteLoaded:
        """The module."""
        return self.facts.loaded

    @property
    def name(self) -> str:
        """The function's own name."""
        return self.facts.name

    @property
    def qualname(self) -> str:
        """Its name with that of its class."""
        return self.facts.qualname

    @property
    def has_modes(self) -> bool:
        """Whether what it is called on trains and evaluates."""
        return self.facts.has_modes

    @property
    def sizes(self) -> dict[str, int]:
        """Whole numbers that its object is made with where nothing is said."""
        return self.facts.sizes

    def on_host(self) -> RemoteTarget:
        """Return the same function, with calls on the host."""
        return dataclasses.replace(self, on_npu=False)


_ERRORS: dict[str, type[Exception]] = {}


def passes_on(kind: type[E]) -> type[E]:
    """Have an exception that is raised there be raised here: a message, and never a verdict."""
    _ERRORS[kind.__name__] = kind
    return kind


passes_on(NotVerifiedError)
passes_on(BackendLimitError)


@dataclass(slots=True, eq=False)
class Worker:
    """A process in which one version of the user's code is loaded, as the judge sees it."""

    process: int
    pipe: Pipe
    _asked: int = 0
    _listener: Any = field(init=False)
    _unpacking: Unpacking = field(init=False)

    def __post_init__(self) -> None:
        """Listen to it."""
        self._listener = _Listener(self.pipe)
        self._unpacking = Unpacking(opens=False)

    def call(self, name: str, args: tuple[Any, ...], keywords: dict[str, Any]) -> Any:  # noqa: ANN401 - whatever the function returns
        """Return what a function returns there.

        Raises:
            WorkerLostError: the process is not there any more.

        """
        self._asked += 1
        question = Packing(closes=False).pack((self._asked, name, args, keywords))
        self.pipe.send(msgspec.msgpack.encode(question))
        message = self._listener.hear()
        if message is None:
            raise WorkerLostError
        try:
            answer = self._unpacking.unpack(msgspec.msgpack.decode(message))
            number, state, value, kernels = answer
            if number != self._asked:
                raise WorkerLostError(f"an answer to question {number}")
        except (TransportError, msgspec.DecodeError, TypeError, ValueError) as error:
            raise WorkerLostError(str(error)) from None
        for kernel in kernels:
            note_kernel(str(kernel))
        if state != "done":
            raise _ERRORS.get(str(state), NotVerifiedError)(str(value))
        return value

    @property
    def spent_s(self) -> float:
        """The processor seconds that it has used."""
        if sys.platform != "linux":
            return 0.0
        try:
            return time.clock_gettime(clock_of(self.process))
        except OSError:  # it is gone
            return 0.0


def clock_of(process: int) -> int:
    """Return the clock of a process's own processor time, its threads included."""
    return (~process << 3) | _CPU_CLOCK


_workers: list[Worker] = []
"""Those that this process asks: none, if the code is loaded in this process itself."""
_FUNCTIONS: dict[str, Callable[..., Any]] = {}


def use_workers(workers: list[Worker]) -> None:
    """Have this process ask others for all that the user's code does."""
    _workers[:] = workers


def list_workers() -> list[Worker]:
    """Return the processes that hold the original and the changed code; none: this one does."""
    return _workers


def spent_s() -> float:
    """Return the processor seconds of this process, and of those that work for it."""
    return time.process_time() + sum(worker.spent_s for worker in _workers)


def runs_with_target(function: Callable[P, T]) -> Callable[P, T]:
    """Have a function run where its target is."""
    name = f"{function.__module__}:{function.__qualname__}"
    _FUNCTIONS[name] = function

    @functools.wraps(function)
    def call(*args: P.args, **keywords: P.kwargs) -> T:
        asked = _targets((*args, *keywords.values())) if _workers else iter(())
        target = next(asked, None)
        if target is None:
            return function(*args, **keywords)
        found: T = target.worker.call(name, args, keywords)
        return found

    return call


def run_everywhere(function: Callable[P, T], *args: P.args, **keywords: P.kwargs) -> list[T]:
    """Return what a marked function returns in each process that holds code."""
    name = f"{function.__module__}:{function.__qualname__}"
    if not _workers:
        return [function(*args, **keywords)]
    return [worker.call(name, args, keywords) for worker in _workers]


def _targets(values: tuple[object, ...], depth: int = 2) -> Iterator[RemoteTarget]:
    for value in values:
        if isinstance(value, RemoteTarget):
            yield value
        elif depth and type(value) is tuple:
            yield from _targets(value, depth - 1)
        elif depth and dataclasses.is_dataclass(value):
            parts = (getattr(value, one.name) for one in dataclasses.fields(value))
            yield from _targets(tuple(parts), depth - 1)


class Held(list[Any]):
    """The functions that this process has loaded, by the handles that others have."""

    def __getitem__(self, handle: Any) -> Any:  # noqa: ANN401 - of any kind
        """Return one of them, to be called on the device or on the host."""
        number, on_npu = handle
        found = super().__getitem__(number)
        return found if found.on_npu == on_npu else dataclasses.replace(found, on_npu=on_npu)


held = Held()


def serve(pipe: Pipe) -> None:
    """Run what the judge asks for, until it asks for nothing more."""
    listener, unpacking = _Listener(pipe), Unpacking(opens=True, held=held)
    decode, encode = msgspec.msgpack.Decoder().decode, msgspec.msgpack.Encoder().encode
    packing, functions, asked = Packing(closes=True), dict(_FUNCTIONS), 0
    while (message := listener.hear()) is not None:
        answer: tuple[str, object]
        asked += 1
        with collect_kernels() as kernels:
            try:
                _, name, args, keywords = unpacking.unpack(decode(message))
                answer = "done", functions[name](*args, **keywords)
            except tuple(_ERRORS.values()) as error:
                answer = _name_of_error(error), str(error)
            except Exception as error:  # noqa: BLE001 - one call that fails must not end them all
                answer = (
                    NotVerifiedError.__name__,
                    f"npufix failed: {type(error).__name__}: {error}",
                )
        pipe.send(encode(packing.pack((asked, *answer, sorted(kernels)))))


def _name_of_error(error: Exception) -> str:
    kinds = (kind.__name__ for kind in type(error).__mro__)
    return next(name for name in kinds if name in _ERRORS)
