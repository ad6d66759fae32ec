"""What a new kernel takes, by the kernels that a run has."""

from __future__ import annotations

import pandas as pd
import pytest

from npufix.advisor.evidence.estimate import Calibration, NewKernels
from npufix.advisor.evidence.kernel_times import MeasuredKernels

_MIB = 1 << 20


def measured(*rows: tuple[str, int, int]) -> MeasuredKernels:
    """Return kernels of a Type that read and write so many MiB each, in so many microseconds."""
    cells = [
        (name, f"{mib},{_MIB // 4}", "FLOAT", f"{mib},{_MIB // 4}", 1000 * us)
        for name, mib, us in rows
    ]
    columns = ["type", "input_shapes", "input_dtypes", "output_shapes", "duration_ns"]
    texts = dict.fromkeys(columns[:-1], "category")
    return MeasuredKernels(pd.DataFrame(cells, columns=columns).astype(texts))


def test_the_nearest_kernel_of_the_type_counts_and_is_named() -> None:
    run = measured(("RmsNorm", 4, 20), ("RmsNorm", 64, 200), ("RmsNormGrad", 8, 90))
    found = run.of_types(("RmsNorm", "RmsNormGrad"), 16 * _MIB, 2_000, backward=False)
    assert found is not None
    assert found.time_ns[1] == pytest.approx(2_000 + 2 * 18_000), "twice the 8 MiB, one launch"
    assert found.time_ns[0] > found.time_ns[1] > found.time_ns[2]
    assert found.basis == "RmsNorm of this dump, which moves 8 MiB"
    grad = run.of_types(("RmsNorm", "RmsNormGrad"), 16 * _MIB, 2_000, backward=True)
    assert grad is not None
    assert grad.time_ns[1] == pytest.approx(90_000)


def test_what_is_far_in_size_or_of_another_type_says_nothing() -> None:
    run = measured(("RmsNorm", 4, 20))
    assert run.of_types(("RmsNorm",), 1_000 * _MIB, 0, backward=False) is None
    assert run.of_types(("SwiGlu",), 8 * _MIB, 0, backward=False) is None


def test_rates_are_those_of_kernels_of_about_the_size() -> None:
    small = [("Mul", 1, 4), ("Add", 1, 4), ("Sub", 2, 8)]
    large = [("Mul", 512, 4096), ("Add", 512, 4096), ("Sub", 256, 2048)]
    run = measured(*small, *large)
    near, far = run.rates(2 * _MIB), run.rates(1024 * _MIB)
    assert near is not None
    assert far is not None
    assert near[0] == pytest.approx(2 * _MIB / 4_000)
    assert far[0] == pytest.approx(2 * _MIB / 8_000)
    assert run.rates(64 * 1024 * _MIB) is None


def test_a_form_that_copies_first_takes_longer_than_what_it_replaces() -> None:
    """silu and mul move five tensors in two kernels; joining and the operator move seven in two."""
    run = measured(("Mul", 8, 100), ("Add", 8, 100), ("Sub", 8, 100))
    calibration = Calibration((100.0, 200.0), (2_000.0, 4_000.0), "")
    gate = 8 * _MIB
    joined = NewKernels(1, 0, gate, (7.0, 7.0), (2, 2))
    forward, backward = joined.work(calibration, run, ("SwiGlu", "SwiGluGrad"))
    now = 5 * gate / (2 * gate / 100_000)
    assert forward is not None
    assert backward is None
    assert forward.launches == 2
    assert min(forward.time_ns) > now
