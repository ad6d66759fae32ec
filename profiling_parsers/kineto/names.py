"""Kineto's names of kernels, shapes and types, in the words of ``Profile``."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterator

_MANGLED = re.compile(r"_Z(?:TS|TI)?N?K?(?=[0-9])")
_MANGLED_PART = re.compile(r"(?:S[ta0-9]?_?|N|K)*([0-9]{1,9})")
_ENTRY, _ENTRY_ARGUMENTS = "kentry", re.compile(r"I(?:L[a-z][0-9]+E)*NS[0-9a-z]?_(?=[0-9])")
"""How all kernels of ck_tile are called, and what stands before the class that is the kernel."""
_HOST_COPY = re.compile(r"Memcpy (HtoD|DtoH)|Copy(HostToDevice|DeviceToHost)")
_BRACKETS = {"<": ">", "(": ")", "{": "}"}
_ANONYMOUS = "(anonymous namespace)::"
_WRAPPERS = ("cutlass::Kernel", "cutlass::Kernel2", "cutlass::device_kernel", "device_kernel")
"""Of these the template argument is the kernel."""

DTYPES = {
    "float": "FLOAT", "double": "DOUBLE", "long": "INT64", "long int": "INT64", "int": "INT32",
    "short": "INT16", "short int": "INT16", "signed char": "INT8", "char": "INT8",
    "unsigned char": "UINT8", "bool": "BOOL", "c10::Half": "FLOAT16", "c10::BFloat16": "DT_BF16",
    "unsigned short": "UINT16", "unsigned int": "UINT32", "unsigned long": "UINT64",
    "c10::complex<float>": "COMPLEX64", "c10::complex<double>": "COMPLEX128",
}  # fmt: skip
"""What PyTorch calls a dtype, and what CANN does."""


def is_host_copy(kind: str) -> bool:
    """Tell whether a Type is a copy between host and device, in the words of CUDA or of ROCm."""
    return _HOST_COPY.fullmatch(kind) is not None


def short_name(kernel: str) -> str:
    """Return the name of a device task without result, namespaces, arguments and templates.

    ``void at::native::fill_kernel<float>(int)`` -> ``fill_kernel``;
    ``Memcpy HtoD (Pageable -> Device)`` -> ``Memcpy HtoD``.
    """
    if kernel.startswith(("Memcpy", "Memset")):
        return kernel.partition(" (")[0]
    if _MANGLED.match(kernel) is not None:
        return _demangle(kernel)
    bare = _without_brackets(kernel.removesuffix(".kd").replace(_ANONYMOUS, "")).strip()
    words = bare.split()  # the last is the name: "void", "__global__ void", "static void"
    name = words[-1] if words else kernel
    if name in _WRAPPERS and "<" in kernel:
        inner = _without_brackets(kernel[kernel.index("<") + 1 :])
        name = re.split(r"[,>]", inner)[0].strip() or name
    return name.rpartition("::")[2] or kernel


def _without_brackets(text: str) -> str:
    """Return a text without what stands between brackets; one never closed ends it."""
    kept: list[str] = []
    closing: list[str] = []
    for letter in text:
        if letter in _BRACKETS:
            closing.append(_BRACKETS[letter])
        elif closing:
            if letter == closing[-1]:
                closing.pop()
        else:
            kept.append(letter)
    return "".join(kept)


def _demangle(kernel: str) -> str:
    """Return the last part of the name: ``_ZN2at6native11fill_kernelE`` -> ``fill_kernel``."""
    start = _MANGLED.match(kernel)
    at = start.end() if start is not None else 0
    name = kernel
    while (part := _MANGLED_PART.match(kernel, at)) is not None:
        at = part.end() + int(part[1])
        if at > len(kernel):
            break
        name = kernel[part.end() : at]
    if name == _ENTRY and (inner := _ENTRY_ARGUMENTS.match(kernel, at)) is not None:
        return _demangle(f"_ZN{kernel[inner.end() :]}")
    return name


def operator_dims(text: bytes) -> str:
    """Return ``Input Dims`` with one entry per argument: ``[[4, 128], []]`` -> ``4,128;``.

    A list of tensors has its shapes between blanks, since it is one argument.
    """
    entries = _decode(text)
    return ";".join(" ".join(map(_shape, _parts(entry))) or _shape(entry) for entry in entries)


def operator_types(text: bytes) -> str:
    """Return ``Input type`` with one entry per argument: ``float;float;Scalar``."""
    return ";".join(str(entry) for entry in _decode(text))


def tensor_shapes(dims: bytes, types: bytes) -> tuple[str, str]:
    """Return shapes and types of the arguments that are tensors, as ``Profile.kernels`` has them.

    ``[[4, 128], [128], []]`` and ``["float", "float", "Scalar"]`` -> ``4,128;128`` and
    ``FLOAT;FLOAT``. Both are empty where nothing was recorded.
    """
    shapes, names = _decode(dims), _decode(types)
    if len(names) != len(shapes):  # the first versions recorded no types: a shape is a tensor
        found = [(_shape(shape), "") for shape in shapes if isinstance(shape, list) and shape]
    else:
        found = list(_tensors(shapes, names))
    if not found:
        return "", ""
    return ";".join(shape for shape, _ in found), ";".join(name for _, name in found)


def _tensors(shapes: list[object], names: list[object]) -> Iterator[tuple[str, str]]:
    for shape, name in zip(shapes, names, strict=True):
        if parts := _parts(shape):
            yield from ((_shape(part), "") for part in parts)
        elif shape or name in DTYPES:  # a tensor of no dimension has no shape either
            yield _shape(shape), _dtype(str(name))


def _dtype(name: str) -> str:
    known = DTYPES.get(name)
    return name.removeprefix("c10::").upper() if known is None else known


def _parts(entry: object) -> list[list[object]]:
    """Return the shapes of a list of tensors, nothing for any other argument."""
    parts = entry if isinstance(entry, list) else []
    shapes = [part for part in parts if isinstance(part, list)]
    return shapes if len(shapes) == len(parts) else []


def _shape(entry: object) -> str:
    return ",".join(map(str, entry)) if isinstance(entry, list) else ""


def _decode(text: bytes) -> list[object]:
    """Return the JSON list that was recorded, empty if it is none."""
    try:
        value = msgspec.json.decode(text) if text else []
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return []
    return value if isinstance(value, list) else []
