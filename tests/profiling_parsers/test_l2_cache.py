from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pandas as pd
import pytest
from damage import check_any_bytes, check_every_column, check_every_cut, check_nothing_to_read

from npufix.profiling_parsers.signals import SCHEMAS
from npufix.profiling_parsers.text.side_tables import read_l2_cache

if TYPE_CHECKING:
    from pathlib import Path

CACHE = b"""\
Device_id,Stream Id,Task Id,Hit Rate,Victim Rate,Op Name
0,2,11062,N/A,0.213463,trans_TransData_1
0,2,11063,0.9375,0.0,Conv2D1
0,2,11064,1,,aclnnMul
"""


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "l2_cache.csv"


def test_the_rates(path: Path) -> None:
    path.write_bytes(CACHE)
    rates, problems = read_l2_cache(path)
    assert problems == []
    assert rates.dtypes.astype(str).to_dict() == SCHEMAS["l2_cache"]
    assert rates["name"].tolist() == ["trans_TransData_1", "Conv2D1", "aclnnMul"]
    np.testing.assert_array_equal(rates["hit_rate"], [np.nan, 0.9375, 1])
    np.testing.assert_array_equal(rates["victim_rate"], [0.213463, 0, np.nan])


def test_percent_where_the_header_says_so(path: Path) -> None:
    path.write_bytes(CACHE.replace(b"Hit Rate", b"Hit Rate(%)").replace(b"0.9375", b"93.75"))
    rates, problems = read_l2_cache(path)
    assert problems == []
    assert rates["hit_rate"][1] == 0.9375


@pytest.mark.parametrize("rate", [b"1.25", b"-0.5", b"93.75"])
def test_what_is_no_rate_is_unknown_and_told(path: Path, rate: bytes) -> None:
    path.write_bytes(CACHE.replace(b"0.9375", rate))
    rates, (problem,) = read_l2_cache(path)
    assert np.isnan(rates["hit_rate"][1])
    assert problem.what.startswith("1 rates")
    assert not problem.damaged


def test_damage(path: Path) -> None:
    check_every_cut(read_l2_cache, path, CACHE)
    check_every_column(read_l2_cache, path, CACHE)
    check_nothing_to_read(read_l2_cache, path, CACHE)
    check_any_bytes(read_l2_cache, path, CACHE)


def test_a_real_one(alexnet: Path) -> None:
    file = alexnet / "ASCEND_PROFILER_OUTPUT" / "l2_cache.csv"
    rates, problems = read_l2_cache(file)
    assert problems == []
    assert rates["victim_rate"].sum() == pytest.approx(pd.read_csv(file)["Victim Rate"].sum())
    assert rates["hit_rate"].isna().all()
