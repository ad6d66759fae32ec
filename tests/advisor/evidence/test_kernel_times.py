"""What a new kernel takes, by the kernels that a run has."""

from __future__ import annotations

import pandas as pd
import pytest

from npufix.advisor.evidence.estimate import Calibration, NewKernels
from npufix.advisor.evidence.kernel_times import KernelSize, MeasuredKernels

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
    found = run.of_types(("RmsNorm", "RmsNormGrad"), KernelSize(16 * _MIB), 2_000, backward=False)
    assert found is not None
    assert found.time_ns[1] == pytest.approx(20_000 + 180_000 * 8 / 120), "on the line of both"
    assert found.time_ns[0] > found.time_ns[1] > found.time_ns[2]
    assert found.basis == "RmsNorm of this dump, which moves 8 MiB"
    grad = run.of_types(("RmsNorm", "RmsNormGrad"), KernelSize(16 * _MIB), 2_000, backward=True)
    assert grad is not None
    assert grad.time_ns[1] == pytest.approx(90_000)


def test_what_is_far_in_size_or_of_another_type_says_nothing() -> None:
    run = measured(("RmsNorm", 4, 20))
    assert run.of_types(("RmsNorm",), KernelSize(1_000 * _MIB), 0, backward=False) is None
    assert run.of_types(("SwiGlu",), KernelSize(8 * _MIB), 0, backward=False) is None


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


def test_between_measured_sizes_the_time_is_latency_and_rate() -> None:
    """3 µs and 10 µs a MiB: two sizes show it, a power of the size would be twice as much."""
    run = measured(("SwiGlu", 1, 23), ("SwiGlu", 256, 5_123))
    found = run.of_types(("SwiGlu",), KernelSize(32 * _MIB), 3_000, backward=False)
    assert found is not None
    assert found.time_ns[1] == pytest.approx(3_000 + 32 * 10_000)


def test_the_dump_itself_says_how_far_off_the_time_is() -> None:
    sizes = (1, 2, 4, 8, 16, 32, 64)
    exact = measured(*[("SwiGlu", mib, 3 + 20 * mib) for mib in sizes])
    wild = measured(*[("SwiGlu", mib, (3 + 20 * mib) * (1 + mib % 3)) for mib in sizes])
    widths = []
    for run in (exact, wild):
        found = run.of_types(("SwiGlu",), KernelSize(20 * _MIB), 3_000, backward=False)
        assert found is not None
        widths.append(found.time_ns[0] / found.time_ns[2])
    assert widths[0] < 1.07
    assert widths[1] > 1.5


def test_a_larger_kernel_is_never_quicker() -> None:
    run = measured(*[("SwiGlu", mib, us) for mib, us in ((4, 90), (8, 60), (16, 200), (32, 190))])
    times = [
        run.of_types(("SwiGlu",), KernelSize(mib * _MIB), 3_000, backward=False)
        for mib in range(8, 64, 4)
    ]
    expected = [time.time_ns[1] for time in times if time is not None]
    assert len(expected) == len(times)
    assert expected == sorted(expected)


def test_what_computes_is_compared_by_what_it_computes() -> None:
    """Four times the sequence is sixteen times the products, and four times the bytes."""
    shapes = [f"{rows},1,128;{rows},1,128;{rows},1,128" for rows in (1024, 2048)]
    rows = [
        ("FlashAttentionScore", shape, "DT_BF16;DT_BF16;DT_BF16", f"1,2,{n},8", us * 1000)
        for shape, n, us in zip(shapes, (1024, 2048), (100, 400), strict=True)
    ]
    columns = ["type", "input_shapes", "input_dtypes", "output_shapes", "duration_ns"]
    frame = pd.DataFrame(rows, columns=columns).astype(dict.fromkeys(columns[:-1], "category"))
    found = MeasuredKernels(frame).of_types(
        ("FlashAttentionScore",), KernelSize(1.0, 4 * 4096 * 4096 * 128), 0.0, backward=False
    )
    assert found is not None
    assert found.time_ns[1] == pytest.approx(1_600_000)
