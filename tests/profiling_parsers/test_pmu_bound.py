from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.kernels.pmu_bound import (
    BOUNDS,
    BUSY,
    UTILISATION,
    dominant_pipe,
    is_pipe_ratio,
)


def bound_of(kind: str = "Add", **ratios: float) -> tuple[str, float]:
    columns = {name: np.array([value]) for name, value in ratios.items()}
    bound, ratio = dominant_pipe(columns, pd.Categorical([kind]))
    assert ratio.dtype == np.float32
    return str(bound[0]), round(float(ratio[0]), 3)


@pytest.mark.parametrize(
    ("ratios", "bound", "ratio"),
    [
        ({"aic_mac_ratio": 0.82, "aic_mte2_ratio": 0.6}, "cube", 0.82),
        ({"aic_mac_ratio": 0.6, "aic_mte2_ratio": 0.95}, "mte", 0.95),
        ({"aic_mac_ratio": 0.6, "aic_fixpipe_ratio": 0.8}, "mte", 0.8),
        ({"aic_mac_ratio": 0.6, "aic_mte1_ratio": 0.85}, "mte", 0.85),
        ({"aiv_vec_ratio": 0.9, "aiv_mte3_ratio": 0.7}, "vector", 0.9),
        ({"aiv_vec_ratio": 0.1, "aiv_scalar_ratio": 0.9}, "scalar", 0.9),
        ({"aic_mac_ratio": 0.3, "aiv_vec_ratio": 0.9, "aic_mte2_ratio": 0.8}, "vector", 0.9),
        ({"mac_ratio": 0.9, "mte2_ratio": 0.3}, "cube", 0.9),
        ({"vec_exe_ratio": 0.9, "mte2_exe_ratio": 0.3}, "vector", 0.9),
        ({"mac_ratio_extra": 0.9, "mte1_ratio_extra": 0.3}, "cube", 0.9),
        ({"aic_mac_fp16_ratio": 0.5, "aic_mac_int8_ratio": 0.35}, "cube", 0.85),
        ({"aiv_vec_fp32_ratio": 0.6, "aiv_vec_misc_ratio": 0.3}, "vector", 0.9),
        ({"aic_mac_ratio": 82.0, "aic_mte2_ratio": 60.0}, "cube", 0.82),
        ({"aic_mac_ratio": 1.01, "aic_mte2_ratio": 0.2}, "cube", 1.0),
    ],
)
def test_the_busiest_pipe(ratios: dict[str, float], bound: str, ratio: float) -> None:
    assert bound_of(**ratios) == (bound, pytest.approx(ratio))


@pytest.mark.parametrize(
    "ratios",
    [
        {},
        {"aic_mac_ratio": np.nan, "aic_mte2_ratio": np.nan},
        {"aic_mac_ratio": 0.0, "aic_mte2_ratio": 0.0},
        {"aiv_vec_bank_cflt_ratio": 0.9, "aic_icache_miss_rate": 0.9},
        {"aic_mac_fp16_ratio": 0.1},
        {"aic_mac_fp16_ratio": 0.79},
        {"aic_mac_ratio": -0.5, "aic_mte2_ratio": -1.0},
    ],
)
def test_without_a_pipe_that_was_measured_there_is_no_bound(ratios: dict[str, float]) -> None:
    bound, ratio = bound_of(**ratios)
    assert bound == ""
    assert np.isnan(ratio)


def test_a_pipe_that_idles_for_a_fifth_of_the_time_is_no_bound() -> None:
    assert bound_of(aiv_vec_ratio=0.1, aiv_mte2_ratio=BUSY) == ("mte", pytest.approx(BUSY))
    assert bound_of(aiv_vec_ratio=0.1, aiv_mte2_ratio=0.79) == ("none", pytest.approx(0.79))
    assert bound_of(aic_mac_ratio=30.0, aic_mte2_ratio=44.0) == ("none", pytest.approx(0.44))


def test_attention_is_bound_by_the_use_of_the_cube_alone() -> None:
    busy = {"aic_scalar_ratio": 0.91, "aic_fixpipe_ratio": 0.8, "aiv_vec_ratio": 0.5}
    for kind in ("FlashAttentionScore", "FlashAttentionScoreGrad", "FusedInferAttentionScore"):
        assert bound_of(kind, **busy, **{UTILISATION: 93.5}) == ("cube", pytest.approx(0.935))
        assert bound_of(kind, **busy, **{UTILISATION: 60.0}) == ("none", pytest.approx(0.6))
        assert bound_of(kind, **busy)[0] == ""
    # The cores of a product are in use while its pipes wait for memory.
    product = {"aic_mac_ratio": 0.5, "aic_mte2_ratio": 0.95, UTILISATION: 97.3}
    assert bound_of("MatMulV3", **product) == ("mte", pytest.approx(0.95))


def test_one_absurd_ratio_does_not_make_the_others_percent() -> None:
    columns = {"aic_mac_ratio": np.array([0.8, 900.0, 0.9]), "aic_mte2_ratio": np.full(3, 0.1)}
    bound, ratio = dominant_pipe(columns, pd.Categorical(["Add"] * 3))
    assert list(bound) == ["cube", "", "cube"]
    assert np.isnan(ratio[1])


def test_what_a_pipe_ratio_is_called() -> None:
    assert is_pipe_ratio("aic_fixpipe_ratio")
    assert not is_pipe_ratio("cube_utilization(%)")
    assert not is_pipe_ratio("aiv_vec_bankgroup_cflt_ratio")


NAMES = st.sampled_from(["aic_mac_ratio", "aiv_vec_ratio", "aic_mte2_ratio", "aiv_scalar_ratio"])


@given(st.dictionaries(NAMES, st.lists(st.floats(width=32), min_size=4, max_size=4), min_size=1))
def test_any_ratios(columns: dict[str, Any]) -> None:
    arrays = {name: np.array(values, np.float32) for name, values in columns.items()}
    bound, ratio = dominant_pipe(arrays, pd.Categorical(["Add", "Attention"] * 2))
    assert list(bound.categories) == list(BOUNDS)
    assert not pd.isna(bound).any()
    known = np.asarray(bound != "")
    assert np.isnan(ratio[~known]).all()
    assert ((ratio[known] >= 0) & (ratio[known] <= 1)).all()
