"""Which calls of the host have waited for the device, and for how long."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from npufix.advisor.predict.waits import Rows, find_host_waits

US = 1_000


@pytest.mark.parametrize(
    ("busy_us", "returns_us", "own_us"),
    [
        (1_000, 200, 20),
        (1_000, 400, 1_399),  # so late that something else held the host
        (90_000, 400, 20),  # of a wait of 90 ms it is the way back
    ],
)
def test_a_long_wait_may_return_later(busy_us: int, returns_us: int, own_us: int) -> None:
    end = busy_us * US
    rows = Rows(*(np.array([value]) for value in (0, 0, end, 0)), np.array([False]))
    start = US
    ops = pd.DataFrame(
        {
            "name": pd.Categorical(["aten::_local_scalar_dense"]),
            "start_ns": [start],
            "duration_ns": [end + returns_us * US - start],
        }
    )
    ((wait, ended),) = find_host_waits(rows, ops, 2.0 * end, None)
    assert ended == end + returns_us * US
    assert wait.own_ns == own_us * US
