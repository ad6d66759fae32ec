"""Four strided slices of an image are concatenated, as the Focus layer of YOLO does.

What: four slices of one image with half its height and width, then a concatenation, at one line:
``torch.cat([x[..., ::2, ::2], x[..., 1::2, ::2], ...], 1)``.

Why it is slow on the NPU: every slice reads the whole image to keep a quarter of it, element by
element, and the concatenation copies all of them again.

Evidence: the sequence of kernels and their shapes.

Use instead: ``torch_npu.contrib.module.Focus`` in place of the layer; or, as newer YOLO do, one
convolution with ``kernel_size=6, stride=2, padding=2``.

Safety: the module computes the same; the convolution has other weights.

References: affinity API page of the FrameworkPTAdapter guide (contrib).
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic
from npufix.rules.shared.recording.kernel_groups import tell_together
from npufix.rules.shared.recording.recorded_cells import per_row
from npufix.rules.shared.recording.recorded_shapes import shapes
from npufix.rules.shared.recording.sequences import find

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Observation, Recording

_SLICE = r"(Strided)?Slice(D|V\d)?|AsStrided"
_BATCH_CHANNELS_HEIGHT_WIDTH = 4


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation for all such layers together."""
    found = find(recording, (*[_SLICE] * 4, r"Concat(D|V\d)?"), within="line")
    if not found.count:
        return
    joined = per_row(found.part(4), ["input_shapes", "output_shapes"], _joins_quarters) > 0
    rows = found.where(joined).kernels
    yield from tell_together(
        "four strided slices of an image are concatenated",
        rows,
        recording,
        basis="at most all of it",
        least=0.001,
    )


def _joins_quarters(inputs: str, outputs: str) -> float:
    """Tell whether four images of one shape become one with four times the channels."""
    parts, made = shapes(inputs), shapes(outputs)[0]
    if len(made) != _BATCH_CHANNELS_HEIGHT_WIDTH or len(parts) != 4 or len(set(parts)) != 1:  # noqa: PLR2004 - rows and columns, even and odd
        return False
    batch, channels, *image = parts[0]
    return made == (batch, 4 * channels, *image)


RULE = Diagnostic(
    id="NPU147",
    name="focus-slices",
    summary="four strided slices of an image are concatenated",
    advice=(
        "torch_npu.contrib.module.Focus instead of slices and cat; or one Conv2d with "
        "kernel_size=6, stride=2, padding=2"
    ),
    check=check,
    table="fusion",
    requires="torch_npu>=2.1",
)
