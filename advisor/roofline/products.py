"""The floating point operations of products, convolutions and attention, by shapes alone.

Where shapes leave open how much is computed, as those of a causal mask do, it is the least that
it may be: a bound has to hold.
"""

from __future__ import annotations

import re
from functools import cache
from math import prod, sqrt
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Shape = tuple[int, ...]
    Shapes = Sequence[Shape]

_FRACTAL = ((16, 16), (16, 32), (16, 64), (16, 8), (8, 16))
"""The last dimensions of a matrix that is stored in blocks (FRACTAL_NZ)."""
GRADIENT = 2.5
"""The backward of attention has five products, its forward two."""
_COMPRESSED_MASK = (2048, 2048)


class _Tensors(NamedTuple):
    inputs: Shapes
    outputs: Shapes


def product_operations(kind: str, inputs: Shapes, outputs: Shapes) -> float:
    """Return the operations of a kernel of a Type; 0 where it is none of these, or unclear.

    ``MatMulV3`` of (4, 8) and (8, 2) to (4, 2) are 2 * 4 * 8 * 2.
    """
    count = _counter(kind)
    if count is None:
        return 0.0
    try:
        return float(count(kind, _Tensors(inputs, outputs)))
    except (IndexError, ZeroDivisionError, OverflowError):  # shapes of something else
        return 0.0


@cache
def _counter(kind: str) -> Callable[[str, _Tensors], float] | None:
    return next((count for pattern, count in _KINDS.items() if re.match(pattern, kind)), None)


def _matmul(kind: str, tensors: _Tensors) -> float:
    matrices = [shape for shape in tensors.inputs if len(shape) > 1]
    left, right = matrices[0], matrices[1]
    if not tensors.outputs or not tensors.outputs[0]:
        return 0.0
    out = tensors.outputs[0]
    batch = 1
    if kind.startswith("Batch") and not _is_fractal(left, right, out):
        # Dimensions in front that all three have; those that one lacks are rows of the others.
        pairs = zip(left[-3::-1], right[-3::-1], out[-3::-1], strict=False)
        batch = prod(own for own, *others in pairs if others == [own, own])
    # (m k) (k n) (m n) is (m k n)^2, whichever of them is transposed.
    return 2 * sqrt(prod(left)) * sqrt(prod(right)) * sqrt(prod(out)) / sqrt(batch)


def _is_fractal(*shapes: Shape) -> bool:
    return all(len(shape) > 3 and shape[-2:] in _FRACTAL for shape in shapes)  # noqa: PLR2004 - blocks of two dimensions each


def _multiply_groups(_: str, tensors: _Tensors) -> float:
    return 2 * prod(tensors.inputs[0]) * tensors.outputs[0][-1]


def _aten_matmul(kind: str, tensors: _Tensors) -> float:
    """Count a product of PyTorch, whose result is not recorded but whose order is known."""
    shapes = [shape for shape in tensors.inputs if shape]
    if kind in {"aten::addmm", "aten::baddbmm"}:
        shapes = shapes[-2:] if len(shapes[0]) == 1 else shapes[1:3]
    left, right = shapes[0], shapes[1]
    inner = right[-1] if kind == "aten::linear" else right[-2]
    if len(right) < 2 or left[-1] != inner:  # noqa: PLR2004 - a vector is no matrix
        return 0.0
    columns = right[0] if kind == "aten::linear" else right[-1]
    return 2 * prod(left) * columns


def _convolution(kind: str, tensors: _Tensors) -> float:
    """Count what each element of the result takes: one product with each weight of its channel."""
    large = [shape for shape in tensors.inputs if len(shape) > 3]  # noqa: PLR2004 - images, weights
    if "Filter" in kind:
        weights, image = tensors.outputs[0], large[1]
    elif "Input" in kind:
        weights, image = large[0], large[1]
    else:
        weights, image = large[1], tensors.outputs[0]
    return 2 * prod(image) * prod(weights) / _channels(image, volume="3D" in kind)


def _channels(image: Shape, *, volume: bool) -> int:
    """Return the channels, filled up to whole blocks where the image is stored in such.

    NC1HWC0 of a plane has five dimensions, NDC1HWC0 of a volume six.
    """
    if len(image) == 5 + volume:
        return image[2 if volume else 1] * image[-1]
    return image[1]


def _attention(kind: str, tensors: _Tensors) -> float:
    query, key = tensors.inputs[0], tensors.inputs[1]
    times = GRADIENT if "Grad" in kind else 1.0
    # Of the softmax, (batch, heads, rows, 8); (rows, heads, 8) where samples differ in length.
    found = [shape for shape in (*tensors.outputs, *tensors.inputs[4:]) if shape[-1:] == (8,)]
    known = found[0] if found else ()
    if len(known) == 3:  # noqa: PLR2004 - see above
        return 0.0  # how long each sample is the shapes do not say
    if len(known) != 4:  # noqa: PLR2004 - see above
        return 0.0
    rows = known[2]
    at = query[:-1].index(rows) if rows in query[:-1] else -1
    if at < 0:
        return 0.0
    masks = [s[-2:] for s in tensors.inputs[3:] if len(s) > 1 and s[-2:] == _COMPRESSED_MASK]
    return 4 * prod(query) * key[at] * times * (0.5 if masks else 1.0)


def _aten_attention(kind: str, tensors: _Tensors) -> float:
    """Count attention of PyTorch, (batch, heads, rows, width); half, as it may be causal."""
    shapes = [shape for shape in tensors.inputs if len(shape) == 4]  # noqa: PLR2004 - see above
    times = GRADIENT if "backward" in kind else 1.0
    query, key = shapes[0], shapes[1 if times == 1 else 2]
    rows = 1 if kind.startswith("aten::_flash") else 2
    return 2 * prod(query) * key[rows] * times


_KINDS: Mapping[str, Callable[[str, _Tensors], float]] = {
    r"GroupedMatMul|GroupedMatmul": _multiply_groups,
    r"(Batch|QuantBatch|WeightQuantBatch|TransposeBatch)?Mat[Mm]ul|QuantMatmul": _matmul,
    r"(AllGather|Quant)?Mat[Mm]ul\w*": _matmul,
    r"aten::(mm|bmm|matmul|linear|addmm|baddbmm)$": _aten_matmul,
    r"Conv[23]D": _convolution,
    r"FlashAttentionScore": _attention,
    r"aten::_(scaled_dot_product_|)(flash|efficient|cudnn|fused)_?attention": _aten_attention,
}
