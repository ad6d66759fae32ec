"""What stands for functions of mmcv and mmengine, where they are not installed.

Of several processes there are two, and the other one holds half of what this one does: who leaves
out an ``all_reduce`` gets other numbers.
"""

from __future__ import annotations

import functools
import itertools
import math
import re
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.inputs.objects.openmmlab import elements
from npufix.rewriters.verification.inputs.objects.placeholders import StandInPart

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_PACKAGES = r"(mmcv|mmengine)(\.|$)"
_COUNT = 2
"""Of processes."""
_MADE = {"bn": r"BN|BatchNorm", "ln": r"LN|LayerNorm", "gn": r"GN|GroupNorm", "in": r"IN|Instance"}
"""What layers are called by what a configuration says."""
_NORM_POINTS = 3
_TWICE = 2.0


def _of_other(data: torch.Tensor) -> torch.Tensor:
    """Return what the other process holds."""
    return data // 2 if not data.is_floating_point() else data / 2


def all_reduce(data: torch.Tensor, op: str = "sum", group: object = None) -> None:  # noqa: ARG001 - as there
    """Put into a tensor what all processes hold together."""
    other = _of_other(data.detach())
    named = {"max": torch.maximum, "min": torch.minimum, "product": torch.mul}
    with torch.no_grad():
        if op in named:
            data.copy_(named[op](data, other))
        else:
            data.add_(other)
        if op in {"mean", "avg"}:
            data.copy_(data / _COUNT)


def all_gather(data: torch.Tensor, group: object = None) -> list[torch.Tensor]:  # noqa: ARG001 - as there
    """Return what each process holds: copies without gradients."""
    return [data.detach().clone(), _of_other(data.detach())]


def all_reduce_dict(data: dict[str, torch.Tensor], op: str = "sum", group: object = None) -> None:
    """Put into each tensor what all processes hold together."""
    for value in data.values():
        all_reduce(value, op, group)


def get_dist_info(group: object = None) -> tuple[int, int]:  # noqa: ARG001 - as there
    """Return the number of this process, and how many there are."""
    return 0, _COUNT


def digit_version(text: str, length: int = 4) -> tuple[int, ...]:
    """Return the numbers of a version, and then what tells those before it is ready."""
    numbers = [int(n) for n in re.findall(r"\d+", text.partition("+")[0])][:length]
    return (*numbers, *[0] * (length - len(numbers)), 0, 0)


def is_seq_of(seq: object, expected_type: Any, seq_type: Any = (list, tuple)) -> bool:  # noqa: ANN401 - a type or several
    """Say whether this is a sequence of which all items are of a type."""
    return isinstance(seq, seq_type) and all(isinstance(item, expected_type) for item in seq)


def _spread(count: int) -> Callable[[Any], Any]:
    return lambda x: tuple(x) if isinstance(x, list | tuple) else tuple(itertools.repeat(x, count))


def point_sample(
    input: torch.Tensor,  # noqa: A002 - as there
    points: torch.Tensor,
    align_corners: bool = False,  # noqa: FBT001, FBT002 - as there
    **named: Any,  # noqa: ANN401 - of ``grid_sample``
) -> torch.Tensor:
    """Return what stands at points, which go from 0 to 1."""
    flat = points.dim() == _NORM_POINTS
    grid = (points.unsqueeze(2) if flat else points) * _TWICE - 1.0
    found = torch.nn.functional.grid_sample(input, grid, align_corners=align_corners, **named)
    return found.squeeze(3) if flat else found


def build_norm_layer(
    cfg: Mapping[str, object], num_features: int, postfix: int | str = ""
) -> tuple[str, torch.nn.Module]:
    """Return a layer for a configuration, and what to call it."""
    kind = str(cfg.get("type", ""))
    short = next((name for name, words in _MADE.items() if re.search(words, kind)), "norm")
    return f"{short}{postfix}", StandInPart(f"{short}{postfix} of {num_features}")


def bias_init_with_prob(prior_prob: float) -> float:
    """Return the bias with which a sigmoid gives a probability."""
    return -math.log((1 - prior_prob) / prior_prob)


def _nothing(*_given: object, **_named: object) -> None:
    """Do nothing."""


_FUNCTIONS: dict[str, object] = {
    **dict.fromkeys(("all_reduce_params", "barrier", "broadcast"), _nothing),
    "all_reduce": all_reduce,
    "all_gather": all_gather,
    "all_reduce_dict": all_reduce_dict,
    "get_dist_info": get_dist_info,
    "get_rank": lambda *_group, **_named: 0,
    "get_world_size": lambda *_group, **_named: _COUNT,
    "is_main_process": lambda *_group, **_named: True,
    "is_distributed": lambda: True,
    "digit_version": digit_version,
    "is_seq_of": is_seq_of,
    "is_list_of": functools.partial(is_seq_of, seq_type=list),
    "is_tuple_of": functools.partial(is_seq_of, seq_type=tuple),
    "is_str": lambda x: isinstance(x, str),
    **{f"to_{count}tuple": _spread(count) for count in range(1, 5)},
    "to_ntuple": _spread,
    "point_sample": point_sample,
    "build_norm_layer": build_norm_layer,
    "bias_init_with_prob": bias_init_with_prob,
    "BaseDataElement": elements.BaseDataElement,
    "InstanceData": elements.InstanceData,
    "PixelData": elements.PixelData,
    "LabelData": elements.LabelData,
}


def find_openmmlab(*names: str) -> object:
    """Return what stands for a name of mmcv or mmengine; None for all that nothing stands for.

    ``find_openmmlab("mmengine.dist", "all_reduce")``, and ``find_openmmlab("mmengine")`` is none.
    """
    known = len(names) > 1 and re.match(_PACKAGES, names[0])
    return _FUNCTIONS.get(names[1]) if known else None
