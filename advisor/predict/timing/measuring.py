"""What the programs of ``npufix replay`` share: how they load torch_npu, and how they measure."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

_SHARED = {
    "torch_npu": """try:
    import torch_npu
except Exception:  # without CANN it cannot be loaded
    torch_npu = None""",
    "measure": '''def measure(run, synchronize, ready=lambda: None):
    """Return the median and the quartiles of a run, microseconds."""
    for _ in range(WARM_UPS):
        run()
    synchronize()
    times = []
    for _ in range(RUNS):
        ready()
        begin = time.perf_counter()
        run()
        synchronize()
        times.append(1e6 * (time.perf_counter() - begin))
    low, middle, high = statistics.quantiles(times, n=4)
    return middle, low, high''',
}


def fill_in(program: str, values: Mapping[str, str]) -> str:
    """Return a program with values in the place of ``@names@``, those of all programs too."""
    known = {**_SHARED, **values}
    return re.sub(r"@(\w+)@", lambda found: known[found[1]], program)
