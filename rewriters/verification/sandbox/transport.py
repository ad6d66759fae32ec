r"""Values as bytes, from and to a process that runs the user's code: plain data, nothing that runs.

``Packing`` makes builtins of a value, which msgpack takes; ``Unpacking`` makes the value again. A
tensor becomes dtype, shape, strides and raw numbers::

    torch.tensor([1.5])  ->  ["tensor", "float32", [1], [1], "strided", b"\0\0\xc0?"]

Of our own classes those are known that are records of fields; what is neither stays closed:
an ``Opaque`` with the bytes that only a process of the user's code opens again.
"""

from __future__ import annotations

import ctypes
import dataclasses
import functools
import importlib
import io
import marshal
import math
import pickle  # for what passes between two processes of the user's code, unopened
import re
import sys
import types
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import torch

from npufix.rewriters.verification.verdict import NotVerifiedError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

_OURS = "npufix.rewriters."
_NO_RECORDS = frozenset({"__post_init__", "AS_HANDLE", "MADE_FROM"})
_LARGEST = (1 << 63) - 1
_detach = torch.Tensor.detach
_LONGEST = 200
_PLAIN: dict[type, Callable[[Any], object]] = {
    int: int.__int__,
    float: float.__float__,
    str: str.__str__,
    bytes: lambda value: bytes.__add__(value, b""),
}
"""Classes that others derive theirs from, and how to get what these hold besides."""
_OF_ITEMS: dict[str, Callable[[Iterable[Any]], object]] = {
    "list": list,
    "tuple": tuple,
    "set": set,
    "frozenset": frozenset,
}
_ITEMS = frozenset(_OF_ITEMS.values())
_AS_THEY_ARE = frozenset({type(None), bool, float, bytes})
_EMPTY = frozenset({str, list, tuple, set, frozenset, dict, Counter})
_NOTHING = object()
"""Stands for what a field holds that always has to be said."""
_MOST_PACKED = 64
_CALLABLE = re.compile(r"<(?:built-in )?(?:function|method|class) '?(?:[\w.]*\.)?(\w+)\b[^<>]*>")
_CHANGEABLE = re.compile(
    rb"\xa4list|\xa3set|\xa7Counter|\xa6tensor|\xa4made|\xa5named|\xa6opaque|\xa7partial|\xa8function"
)
"""Tags of what a call can change, or that we do not know of, as msgpack writes them."""
_DICT = b"\xa4dict"


class TransportError(Exception):
    """The bytes are none that ``Packing`` has made."""


class ClosedError(NotVerifiedError):
    """Something cannot be opened in another process than the one that has made it."""


@dataclass(frozen=True, slots=True)
class Opaque:
    """A value that is of no concern outside of the processes of the user's code."""

    text: str
    closed: bytes = b""
    """What opens again there; empty: nothing does."""

    def __repr__(self) -> str:
        """Return what a reader calls it: ``tanh`` for ``<built-in method tanh of type ...>``."""
        known = _CALLABLE.fullmatch(self.text)
        return self.text if known is None else known[1]


@dataclass(frozen=True, slots=True)
class Named:
    """A number or text of a class of its own, such as a member of an enumeration."""

    kind: str
    value: object
    closed: bytes = field(default=b"", compare=False)


@dataclass(frozen=True, slots=True)
class Packing:
    """Makes builtins of values, which say what these are."""

    closes: bool
    """Whether this is a process of the user's code: what is no data goes out closed."""

    def pack(self, value: object) -> object:  # noqa: C901, PLR0911, PLR0912 - one branch a kind of value
        """Return data that msgpack takes."""
        kind: Any = type(value)
        known: Any = value
        if kind in _AS_THEY_ARE:
            return value
        if kind is str:
            return known if known.isascii() else known.encode("utf-8", "backslashreplace").decode()
        if kind is int:
            return value if abs(known) <= _LARGEST else ["int", str(value)]
        if kind in _ITEMS:
            return [kind.__name__, [self.pack(item) for item in known]]
        if kind is dict or kind is Counter:
            items = [[self.pack(key), self.pack(item)] for key, item in known.items()]
            return [kind.__name__, items]
        if kind is complex:
            return ["complex", known.real, known.imag]
        if isinstance(value, torch.dtype):
            return ["dtype", str(value).removeprefix("torch.")]
        if isinstance(value, torch.Tensor):
            return _pack_tensor(value)
        if kind is Opaque:
            return ["opaque", known.text, known.closed]
        if kind is Named:
            return ["named", known.kind, self.pack(known.value), known.closed]
        if _is_record(kind):
            if not self.closes and hasattr(kind, "SENT_OFTEN"):
                return ["again", _pack_once(value)]
            return ["record", _name_of(kind), self._pack_fields(value)]
        if not self.closes and (made := self._pack_made(value)) is not None:
            return made
        for plain, hold in _PLAIN.items():
            if isinstance(value, plain):
                name = f"{kind.__module__}.{kind.__qualname__}"
                return ["named", name, self.pack(hold(value)), _close(value)]
        return ["opaque", _spell(value), _close(value)]

    def _pack_fields(self, value: object) -> dict[str, object]:
        """Return what a record holds, but for what it holds if nothing is said."""
        found: dict[str, object] = {}
        of: Any = type(value)
        for name, usual in _fields(of):
            held = getattr(value, name)
            kind = type(held)
            if held is usual or (kind in _EMPTY and kind is type(usual) and not held):
                continue
            found[name] = held if kind in _AS_THEY_ARE else self.pack(held)
        return found

    def _pack_made(self, value: object) -> object:
        """Return what of this package only those are told of who may be asked to run it."""
        kind = type(value)
        if hasattr(kind, "AS_HANDLE"):
            return ["handle", value.AS_HANDLE()]  # type: ignore[attr-defined] # as it says
        if hasattr(kind, "MADE_FROM") and kind.__module__.startswith(_OURS):
            made = kind.MADE_FROM
            return ["made", _name_of(kind), [self.pack(getattr(value, name)) for name in made]]
        if isinstance(value, functools.partial):
            parts = value.func, value.args, value.keywords
            return ["partial", *map(self.pack, parts)]
        if isinstance(value, types.FunctionType) and _is_ours(value):
            return ["function", _name_of(value)]
        return None


_packed: dict[int, tuple[object, bytes]] = {}
"""By identity, with the object that keeps it."""


def _pack_once(value: object) -> bytes:
    """Return the bytes of a record that is asked about several times, without packing it again."""
    found = _packed.get(id(value))
    if found is None:
        kind = type(value)
        record = ["record", _name_of(kind), Packing(closes=False)._pack_fields(value)]  # noqa: SLF001 - its own
        found = value, msgspec.msgpack.encode(record)
        while len(_packed) >= _MOST_PACKED:
            del _packed[next(iter(_packed))]
        _packed[id(value)] = found
    return found[1]


def _spell(value: object) -> str:
    try:
        text = repr(value)
    except BaseException:  # noqa: BLE001 - __repr__ of the user's class
        text = type(value).__name__
    return text[:_LONGEST].encode("utf-8", "backslashreplace").decode()


@functools.cache
def _is_record(kind: type) -> bool:
    """Say whether a class of ours holds fields and nothing else that matters."""
    if not kind.__module__.startswith(_OURS):
        return False
    if issubclass(kind, tuple):
        return hasattr(kind, "_fields")
    marked = _NO_RECORDS & vars(kind).keys()
    return dataclasses.is_dataclass(kind) and not marked


@functools.cache
def _fields(kind: Any) -> tuple[tuple[str, object], ...]:  # noqa: ANN401 - a class of either kind
    """Return the names of the fields, and what each holds if nothing is said."""
    if issubclass(kind, tuple):
        return tuple((name, kind._field_defaults.get(name, _NOTHING)) for name in kind._fields)
    return tuple((field.name, _usual(field)) for field in dataclasses.fields(kind) if field.init)


def _usual(field: dataclasses.Field[Any]) -> object:
    if field.default is not dataclasses.MISSING:
        return field.default
    if field.default_factory is dataclasses.MISSING:
        return _NOTHING
    return field.default_factory()


def _is_ours(function: types.FunctionType) -> bool:
    if not function.__module__.startswith(_OURS):
        return False
    return getattr(sys.modules.get(function.__module__), function.__qualname__, None) is function


def _name_of(named: Any) -> str:  # noqa: ANN401 - a class or a function
    return f"{named.__module__}:{named.__qualname__}"


def _pack_tensor(value: torch.Tensor) -> object:
    """Return what a tensor holds: never the tensor, nor its class."""
    with torch._C.DisableTorchFunction():  # noqa: SLF001 - a subclass may compute something else
        own = _detach(value)  # the class may have a method of that name
        layout = str(own.layout).removeprefix("torch.")
        dense = own if own.layout == torch.strided else own.to_dense()
        dense = dense.resolve_conj().resolve_neg()
        whole = dense.cpu().contiguous()
        size = whole.numel() * whole.element_size()
        data = ctypes.string_at(whole.data_ptr(), size) if size else b""
        name = str(own.dtype).removeprefix("torch.")
        strides = list(dense.stride())
        return ["tensor", name, list(own.shape), strides, layout, data]


def _unpack_tensor(
    name: str, shape: list[int], strides: list[int], layout: str, data: bytes
) -> torch.Tensor:
    dtype = _find_dtype(name)
    if min(shape, default=0) < 0 or math.prod(shape) * dtype.itemsize != len(data):
        raise TransportError("a tensor of another size")
    whole = torch.frombuffer(bytearray(data), dtype=dtype) if data else torch.empty(0, dtype=dtype)
    made = whole.reshape(shape)
    moved = layout == "strided" and data and list(made.stride()) != strides
    if moved and _is_dense(shape, strides):
        made = torch.empty_strided(shape, strides, dtype=dtype).copy_(made)
    elif layout != "strided":
        kind = getattr(torch, layout)
        if not isinstance(kind, torch.layout):
            raise TransportError("no layout")
        made = made.to_sparse(layout=kind)
    return made


def _find_dtype(name: str) -> torch.dtype:
    found = getattr(torch, name)
    if not isinstance(found, torch.dtype):
        raise TransportError(f"{name} is no dtype")
    return found


def _is_dense(shape: list[int], strides: list[int]) -> bool:
    """Say whether strides are other than the usual ones, and leave no holes."""
    expected = 1
    for stride, size in sorted(zip(strides, shape, strict=True)):
        if size > 1:
            if stride != expected:
                return False
            expected *= size
    return True


class Unpacking:
    """Makes values of what ``Packing`` has made."""

    def __init__(self, *, opens: bool, held: Sequence[object] = ()) -> None:
        """Open what was closed if ``opens``: this process runs the user's code.

        ``held`` is what handles stand for, by their numbers.
        """
        self._opens = opens
        self._held = held
        self._known: dict[bytes, object] = {}

    def unpack(self, data: object) -> Any:  # noqa: ANN401 - whatever was packed
        """Return the value.

        Raises:
            TransportError: the data are none of ``Packing``.

        """
        if type(data) is not list:
            return data
        try:
            tag, *rest = data
            if tag in _OF_ITEMS:
                unpack = self.unpack
                found = [unpack(item) if type(item) is list else item for item in rest[0]]
                return found if tag == "list" else _OF_ITEMS[tag](found)
            return getattr(self, f"_of_{tag}")(*rest)
        except (TransportError, NotVerifiedError, RecursionError, MemoryError):
            raise
        except (AttributeError, IndexError, TypeError, ValueError, RuntimeError) as error:
            raise TransportError(f"what is {str(data)[:60]}? {error}") from None

    def _of_int(self, text: str) -> int:
        return int(text)

    def _of_dict(self, items: list[list[object]]) -> dict[object, object]:
        return {self.unpack(key): self.unpack(item) for key, item in items}

    def _of_Counter(self, items: list[list[object]]) -> Counter[object]:  # noqa: N802 - its tag
        return Counter(self._of_dict(items))

    def _of_complex(self, real: float, imaginary: float) -> complex:
        return complex(real, imaginary)

    def _of_dtype(self, name: str) -> torch.dtype:
        return _find_dtype(name)

    def _of_tensor(self, *parts: Any) -> torch.Tensor:  # noqa: ANN401 - checked there
        return _unpack_tensor(*parts)

    def _of_record(self, name: str, given: dict[str, Any]) -> object:
        kind = _look_up(name)
        if not (isinstance(kind, type) and _is_record(kind)):
            raise TransportError(f"{name} is no record")
        if self._opens and given.get("given") is False:  # a default, which no call passes
            return Unpacking(opens=False).unpack(["record", name, given])
        unpack = self.unpack
        fields = given.items()
        return kind(**{key: unpack(v) if type(v) is list else v for key, v in fields})

    def _of_named(self, kind: str, value: object, closed: bytes) -> object:
        return _open(kind, closed) if self._opens else Named(kind, self.unpack(value), closed)

    def _of_opaque(self, text: str, closed: bytes) -> object:
        return _open(text, closed) if self._opens else Opaque(text, closed)

    # What follows is sent to a process of the user's code, and never taken from one.

    def _of_again(self, data: bytes) -> object:
        found = self._known.get(self._trusted("again", data))
        if found is not None:
            return found
        found = self.unpack(msgspec.msgpack.decode(data))
        # What a call could change is made anew for each; the one dictionary is that of the names.
        if not _CHANGEABLE.search(data) and data.count(_DICT) <= 1:
            while len(self._known) >= _MOST_PACKED:
                del self._known[next(iter(self._known))]
            self._known[data] = found
        return found

    def _of_made(self, name: str, arguments: list[object]) -> object:
        made: Any = self._trusted(name)
        return made(*map(self.unpack, arguments))

    def _of_function(self, name: str) -> object:
        return self._trusted(name)

    def _of_partial(self, function: object, arguments: object, keywords: object) -> object:
        called: Any = self._trusted("functools:partial", functools.partial)
        return called(self.unpack(function), *self.unpack(arguments), **self.unpack(keywords))

    def _of_handle(self, number: int) -> object:
        return self._trusted("handle", self._held)[number]

    def _trusted(self, name: str, what: Any = None) -> Any:  # noqa: ANN401 - a class or function
        if not self._opens:
            raise TransportError(f"{name} from there")
        return what if what is not None else _look_up(name)


@functools.cache
def _look_up(name: str) -> object:
    module, _, inside = name.partition(":")
    if not module.startswith(_OURS) or module not in sys.modules or "." in inside:
        raise TransportError(f"{name} is not ours")
    return getattr(sys.modules[module], inside)


class _Closing(pickle.Pickler):
    """Takes functions as well that no module knows by name, of our own modules and the user's."""

    def reducer_override(self, value: object) -> Any:  # noqa: ANN401 - what a pickler takes
        if isinstance(value, types.FunctionType) and not _is_known(value):
            cells = [cell.cell_contents for cell in value.__closure__ or ()]
            parts = marshal.dumps(value.__code__), value.__module__, value.__defaults__, cells
            return _make_function, parts
        return NotImplemented


def _is_known(function: types.FunctionType) -> bool:
    found: object = sys.modules.get(function.__module__)
    for part in function.__qualname__.split("."):
        found = getattr(found, part, None)
    return found is function


def _make_function(
    code: bytes, module: str, defaults: tuple[object, ...] | None, cells: list[object]
) -> types.FunctionType:
    scope = vars(importlib.import_module(module))
    closure = tuple(map(types.CellType, cells))
    return types.FunctionType(marshal.loads(code), scope, "made", defaults, closure)  # noqa: S302 - in a process of the user's code


def _close(value: object) -> bytes:
    try:
        with io.BytesIO() as data:
            _Closing(data).dump(value)
            return data.getvalue()
    except BaseException:  # noqa: BLE001 - the user's class may raise anything
        return b""


def _open(text: str, closed: bytes) -> object:
    try:
        return pickle.loads(closed)  # noqa: S301 - in a process of the user's code
    except BaseException:  # noqa: BLE001 - that code may raise anything
        raise ClosedError(f"an argument cannot be made for both versions: {text}") from None
