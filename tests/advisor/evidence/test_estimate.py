"""The estimate: calibrated on the dump, an interval, never less than nothing."""

from __future__ import annotations

from dataclasses import replace

import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.advisor.evidence.estimate import Calibration, NewKernels, calibrate, estimate_saving
from npufix.advisor.evidence.kernel_times import MeasuredKernels
from npufix.rules.shared.recording.recorded_cells import tensor_bytes

MIB = 1 << 20


def kernels(rows: list[tuple[str, str, str, str, int]]) -> pd.DataFrame:
    columns = ["type", "input_shapes", "input_dtypes", "output_shapes", "duration_ns"]
    texts = dict.fromkeys(columns[:-1], "category")
    return pd.DataFrame(rows, columns=columns).astype(texts)


def test_bytes_of_shapes_and_dtypes() -> None:
    assert tensor_bytes("4,8;8", "FLOAT;DT_BF16") == [128, 16]
    assert tensor_bytes("", "") == [0]
    assert tensor_bytes("N/A", "N/A") == [0]


def test_bandwidth_is_that_of_the_large_element_wise_kernels() -> None:
    rows = [
        ("Mul", f"{n},1024", "FLOAT", f"{n},1024", n * 8 * 1024 // 800) for n in range(256, 266)
    ]
    rows += [("MatMulV3", "8,8", "FLOAT", "8,8", 1)] * 9
    measured = calibrate(kernels(rows))
    assert measured.bytes_per_ns == pytest.approx((800, 800), rel=0.01)
    assert "0.80 to 0.80 TB/s" in measured.basis


def test_too_few_kernels_are_said_to_be_an_assumption() -> None:
    assert calibrate(kernels([("Mul", "8", "FLOAT", "8", 100)])).basis.startswith("assumed")


def test_two_passes_over_a_mebibyte() -> None:
    calibration = Calibration((1000.0, 2000.0), (0.0, 0.0), "test")
    new = NewKernels(forward_calls=3, backward_calls=0, largest_tensor=MIB, passes=(2, 2))
    found = estimate_saving(3 * 10_000, new, calibration, steps=3)
    assert found.low_ns == round(10_000 - 2 * MIB / 1000)
    assert found.high_ns == round(10_000 - 2 * MIB / 2000)


def test_gradients_and_what_looks_at_a_row_twice_are_slower_than_additions() -> None:
    rows = [("Add", f"{n},1024", "FLOAT", f"{n},1024", n * 12) for n in range(256, 266)]
    measured = kernels(rows)
    new = NewKernels(1, 1, 2 * MIB, (1, 1))

    def times(*becomes: str) -> list[float]:
        work = new.work(calibrate(measured), MeasuredKernels(measured), becomes)
        return [one.time_ns[1] for one in work if one]

    plain, plain_back = times("MaskedFill")
    norm, norm_back = times("RmsNorm", "RmsNormGrad")
    assert plain == plain_back < norm < norm_back < 2.5 * plain


def test_a_fused_kernel_takes_as_long_as_the_products_in_it() -> None:
    rows = [("Add", f"{n},1024", "FLOAT", f"{n},1024", n * 12) for n in range(256, 266)]
    # 17.2 * 10^9 operations in 100 µs.
    rows += [("MatMulV3", "2048,2048;2048,2048", "DT_BF16;DT_BF16", "2048,2048", 100_000)]
    measured = kernels(rows)
    plain = NewKernels(1, 1, MIB, (4, 4), dtype="BF16")
    attention = replace(plain, operations=(40e9, 100e9), products_ns=(1e6, 2.5e6))

    def times(new: NewKernels) -> list[float]:
        work = new.work(calibrate(measured), MeasuredKernels(measured), ())
        return [one.time_ns[1] for one in work if one]

    assert max(times(plain)) < 100_000
    forward, backward = times(attention)
    assert forward == pytest.approx(40e9 / (0.65 * 171.8e3), rel=0.05)
    assert backward == pytest.approx(100e9 / (0.55 * 171.8e3), rel=0.05)
    # What the products take by themselves it takes at most.
    assert times(replace(attention, products_ns=(150e3, 400e3)))[0] == pytest.approx(
        150e3, rel=0.05
    )


@given(
    st.integers(0, 10**9),
    st.integers(0, 100),
    st.integers(0, 100),
    st.integers(0, 10**9),
    st.integers(1, 50),
)
def test_a_saving_is_never_negative_nor_more_than_what_is_spent(
    now: int, forward: int, backward: int, size: int, steps: int
) -> None:
    calibration = Calibration((400.0, 1600.0), (2000.0, 10000.0), "test")
    found = estimate_saving(now, NewKernels(forward, backward, size, (2, 3)), calibration, steps)
    assert 0 <= found.low_ns <= found.high_ns <= now / steps + 1
