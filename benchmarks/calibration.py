"""Hold what is predicted of changes against measured times, from a CSV file of pairs.

``python -m benchmarks.calibration FILE`` reads either public pairs (``level``, ``what``, ``shape``,
``dtype``, ``chip``, ``before``, ``after``, ``unit``, ``change``) or the file of ``npufix compare``
and prints a table and what it adds up to. Of public pairs there is no recording: all that
can be said is whether launches and bytes become fewer, so much is "cannot tell". A confident
prediction of the wrong sign is what must never be; then the exit status is 1.
"""

from __future__ import annotations

import csv
import re
import sys
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.predict.own_pairs import read_pairs
from npufix.rules.shared.chips import find_chips, usual_bandwidth

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    Row = tuple[str, str, str, str]
    """What, predicted, measured, and how it came out."""

GAIN, LOSS, NONE, UNKNOWN = "gain", "loss", "none", "cannot tell"
NOISE = 0.02
LAUNCH_NS = (2_000.0, 10_000.0)
PASSES = {"cat": 2, "concat": 2, "chunk": 0, "split": 0, "mul": 3, "add": 3, "sub": 3, "div": 3}
"""Tensors that an operator reads and writes; of others one each."""
OPERATORS = frozenset(
    {"softmax", "topk", "to", "silu", "clamp", "mul", "cat", "add", "sub", "div", "sigmoid", "gelu",
     "float", "cast", "exp", "relu", "sqrt", "rsqrt", "pow", "mean", "rms_norm", "npu_rms_norm",
     "layer_norm", "concat", "chunk", "split", "swiglu", "npu_swiglu"}
)  # fmt: skip
WIDTHS = {"bf16": 2, "fp16": 2, "fp32": 4, "float32": 4, "int8": 1}
MORE_IS_BETTER = frozenset({"FPS", "it/s", "tps", "ratio", "tokens/s"})


def main(path: Path) -> int:
    """Print the table of a file; 1 where a sign was wrong."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    own = bool(rows) and "measured_ns" in rows[0]
    table = [*(_own_rows(path) if own else _public_rows(rows))]
    for what, predicted, measured, result in table:
        print(f"{what[:44]:46}{predicted:14}{measured:10}{result}")
    counts = Counter(result for *_, result in table)
    print(", ".join(f"{name}: {count}" for name, count in sorted(counts.items())) or "no pairs")
    return int(counts["wrong sign"] > 0)


def _own_rows(path: Path) -> Iterator[Row]:
    for pair in read_pairs(path):
        predicted = GAIN if pair.low_ns > 0 else UNKNOWN
        measured = _sign(pair.measured_ns, (pair.low_ns + pair.high_ns) / 2)
        within = pair.low_ns <= pair.measured_ns <= pair.high_ns
        result = _result(predicted, measured)
        yield pair.rule, predicted, measured, "in the interval" if within else result


def _public_rows(rows: list[dict[str, str]]) -> Iterator[Row]:
    for row in rows:
        measured = _measure(row)
        if measured is not None:
            predicted = predict_pair(row)
            said = f"{row['what']} {row['shape']}".strip()
            yield said, predicted, measured, _result(predicted, measured)


def _measure(row: Mapping[str, str]) -> str | None:
    try:
        before, after = float(row["before"]), float(row["after"])
    except ValueError:
        return None
    better = after - before if row["unit"] in MORE_IS_BETTER else before - after
    return _sign(better, before)


def _sign(gained: float, whole: float) -> str:
    if abs(gained) < NOISE * abs(whole):
        return NONE
    return GAIN if gained > 0 else LOSS


def predict_pair(row: Mapping[str, str]) -> str:
    """Return gain or loss where launches and bytes say the same, else that it cannot be told.

    ``silu+clamp+mul`` of 512x1280 to ``one triton kernel`` is two launches and six tensors less.
    """
    names = re.findall(r"[a-z_]+", row["what"].partition("(")[0].lower())
    if row["level"] != "op" or not names or not OPERATORS.issuperset(names):
        return UNKNOWN
    after = re.split(r"\s*\+\s*", row["change"].strip())
    # The new kernel reads and writes one tensor each, and two more where something is joined.
    joins = sum(1 for text in after if re.match(r"(torch\.)?(cat|concat)\b", text))
    launches = len([name for name in names if PASSES.get(name, 2)]) - len(after)
    passes = sum(PASSES.get(name, 2) for name in names) - 3 - 4 * joins
    width = WIDTHS.get(row["dtype"].split("/")[0], 2)
    moved = width * passes
    for number in re.findall(r"\d+", row["shape"]):
        moved *= int(number)
    known = find_chips(row["chip"])
    rate = 1000 * known[0].tb_per_s if known else usual_bandwidth("A2")
    gains = [
        launches * launch + moved / speed for launch in LAUNCH_NS for speed in (rate, rate / 4)
    ]
    if min(gains) > 0 and launches >= 0:
        return GAIN
    return LOSS if max(gains) < 0 else UNKNOWN


def _result(predicted: str, measured: str) -> str:
    if predicted == UNKNOWN:
        return UNKNOWN
    if NONE in {predicted, measured}:
        return "within noise"
    return "right sign" if predicted == measured else "wrong sign"


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
