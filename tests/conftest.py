"""One thread per process: two workers on two cores, and sums that do not depend on either."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Read by torch when it is imported; tensors of tests are too small to share out anyway.
os.environ.setdefault("OMP_NUM_THREADS", "1")
# Tests read English, whatever the locale of whoever runs them.
os.environ["NPUFIX_LANG"] = "en"
# What one test measures corrects no prediction of another, and none of the user's.
os.environ["NPUFIX_CALIBRATION"] = "off"

# What a machine with other work takes says nothing, and no test remembers another run's examples.
settings.register_profile(
    "npufix",
    max_examples=50,
    deadline=None,
    database=None,
    suppress_health_check=[HealthCheck.too_slow],
)
settings.load_profile("npufix")
