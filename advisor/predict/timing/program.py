"""A small program that times a recorded operator again, on whatever device runs it.

What stands in a dump may be written by anybody: only numbers, and names that are in tables here,
go into the program; the name of the operator is one of ``WAYS``.
"""

from __future__ import annotations

import inspect
import re
from difflib import get_close_matches
from typing import TYPE_CHECKING, NamedTuple

from npufix.advisor.predict.timing import ways
from npufix.advisor.predict.timing.calls import WAYS, Call
from npufix.advisor.predict.timing.measuring import fill_in
from npufix.profiling_parsers.profile import DumpError
from npufix.rules.shared.recording.recorded_cells import dtype_name
from npufix.rules.shared.recording.recorded_shapes import shapes

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import pandas as pd

    from npufix.rules.substitution import Substitution

_DTYPES = {
    "BF16": "bfloat16", "FLOAT16": "float16", "FLOAT": "float32", "DOUBLE": "float64",
    "INT8": "int8", "UINT8": "uint8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "BOOL": "bool",
}  # fmt: skip
_CELLS = ["input_shapes", "input_dtypes", "output_shapes"]


class Case(NamedTuple):
    """What one call was given, and how long calls of its kind took."""

    tensors: list[tuple[list[int], str]]
    """Shape and dtype of each."""
    out: list[int]
    calls: int
    recorded_us: float
    """The median."""


def timing_program(
    kernels: pd.DataFrame, operator: str, most: int, chosen: Sequence[Substitution]
) -> str:
    """Return a program that times an operator with the shapes that took most time.

    ``most`` is how many shapes, ``chosen`` are the rules that have to do with it.

    Raises:
        DumpError: the dump has no such operator, or it cannot be run again from shapes alone.

    """
    rows = kernels[(kernels["type"] == operator) & ~kernels["communication"]]
    if rows.empty:
        known = [str(name) for name in kernels["type"].unique()]
        near = ", ".join(get_close_matches(operator, known, 3, 0.5))
        hint = f"did you mean {near}?" if near else "npufix diagnose DUMP --operators lists them"
        raise DumpError(f"no kernel of this recording has the Type {operator!r}", hint)
    if operator not in WAYS:
        able = ", ".join(sorted({str(name) for name in kernels["type"].unique()} & set(WAYS)))
        raise DumpError(
            f"{operator} cannot be run again by its shapes alone",
            f"of this recording these can: {able or 'none'}",
        )
    cases = _cases(rows, most)
    if not cases:
        raise DumpError(
            f"the shapes of {operator} were not recorded", "profile with record_shapes=True"
        )
    own = [_own_source(way) for way in WAYS[operator]]
    values = {
        "operator": ascii(operator),
        "rules": "\n".join(
            f"# See also: npufix rules show {rule.id} ({rule.name})" for rule in chosen
        ),
        "cases": "\n".join(f"    {tuple(case)!r}," for case in cases),
        "functions": "\n\n\n".join(
            [*_helpers("".join(text for _, text in own)), *dict(own).values()]
        ),
        "ways": ", ".join(name for name, _ in own),
    }
    return fill_in(_PROGRAM, values)


def rules_about(operator: str, rules: Sequence[Substitution]) -> list[Substitution]:
    """Return the rules that replace kernels of a Type, or make them."""
    return [rule for rule in rules if operator in {*rule.replaces, *rule.becomes}]


def _cases(rows: pd.DataFrame, most: int) -> list[Case]:
    groups = rows.groupby(_CELLS, observed=True)["duration_ns"]
    totals = groups.agg(["sum", "median", "count"]).sort_values(
        "sum", ascending=False, kind="stable"
    )
    found = []
    for cells, _, median, calls in totals.itertuples(name=None):
        inputs, dtypes, outputs = map(str, cells)
        names = [_DTYPES.get(dtype_name(part), "") for part in dtypes.split(";")]
        # A scalar has an empty shape; what has no dtype was not given.
        tensors = [
            (list(shape), name) for shape, name in zip(shapes(inputs), names, strict=False) if name
        ]
        if tensors and tensors[0][0]:
            out = shapes(outputs)[0] if outputs else ()
            found.append(Case(tensors, list(out), int(calls), round(float(median) / 1000, 2)))
    return found[:most]


def _own_source(way: Call | Callable[..., object]) -> tuple[str, str]:
    if isinstance(way, Call):
        text = way.text if way.is_prepared else f"lambda:{way.text}"
        return way.name, "\n".join(("def " + way.name + "(t, out):", "    return " + text))
    return way.__name__, _plain_source(way)


def _helpers(text: str) -> list[str]:
    """Return the functions that a text calls, those first that they call themselves."""
    found: dict[str, str] = {}

    def look(own: str) -> None:
        for name in re.findall(r"(?<![\w.])(\w+)\(", own):
            helper = vars(ways).get(name)
            if inspect.isfunction(helper) and name not in found and f"def {name}(" not in text:
                source = _plain_source(helper)
                found[name] = ""
                look(source)
                del found[name]
                found[name] = source

    look(text)
    return list(found.values())


def _plain_source(way: Callable[..., object]) -> str:
    """Return a function as text, without the annotations of ours."""
    source = inspect.getsource(way)
    return re.sub(
        r"^( *def \w+\()([^)]*)\) -> .+:$", _without_annotations, source, flags=re.MULTILINE
    ).strip()


def _without_annotations(found: re.Match[str]) -> str:
    names = [part.split(":")[0].strip() for part in re.split(r", (?=\w+:)", found[2])]
    return f"{found[1]}{', '.join(names)}):"


_PROGRAM = '''"""Times one operator with the shapes of a recording. Written by npufix replay.

Runs on an NPU, else on a GPU, else on the CPU. Times are microseconds, medians over runs.
"""

import itertools
import statistics
import time

import torch
import torch.nn.functional as F

@torch_npu@

OPERATOR = @operator@

# Tensors (shape, dtype), shape of the result, calls in the recording, its median.
CASES = [
@cases@
]
WARM_UPS, RUNS = 5, 30
@rules@


@functions@


WAYS = [@ways@]


def find_device():
    """Return the device to run on, and what waits for it."""
    if torch_npu is not None and hasattr(torch, "npu") and torch.npu.is_available():
        return torch.device("npu"), torch.npu.synchronize
    if torch.cuda.is_available():
        return torch.device("cuda"), torch.cuda.synchronize
    return torch.device("cpu"), lambda: None


def make(shape, dtype, device):
    """Return a tensor of ordinary values."""
    dtype = getattr(torch, dtype)
    if dtype.is_floating_point:
        return torch.randn(shape, device=device).to(dtype)
    return torch.ones(shape, dtype=dtype, device=device)


@measure@


def main():
    device, synchronize = find_device()
    print(f"{OPERATOR} on {device.type}, torch {torch.__version__}")
    for tensors, out, calls, recorded in CASES:
        shapes = "; ".join(f"{dtype}{shape}" for shape, dtype in tensors)
        print(f"{shapes} -> {out}: {calls} calls, recorded {recorded:.1f} us")
        made = [make(shape, dtype, device) for shape, dtype in tensors]
        for way in WAYS:
            if way.__name__.startswith("torch_npu") and device.type != "npu":
                print(f"  {way.__name__:28} needs an NPU")
                continue
            try:
                middle, low, high = measure(way(made, out), synchronize)
            except (RuntimeError, ValueError, IndexError, TypeError) as error:
                print(f"  {way.__name__:28} cannot run: {error}")
                continue
            print(f"  {way.__name__:28} {middle:10.1f} us ({low:.1f} to {high:.1f})")


if __name__ == "__main__":
    main()
'''
