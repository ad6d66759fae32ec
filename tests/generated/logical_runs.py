"""Random runs, and a profile reduced to what can be compared."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.generator.parameters import VERSIONS, Parameters
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

if TYPE_CHECKING:
    import pandas as pd

    from npufix.profiling_parsers.profile import Profile

SETTINGS = settings(
    deadline=None, max_examples=15, suppress_health_check=[HealthCheck.function_scoped_fixture]
)

_versions = st.sampled_from(
    [(version, 1) for version in VERSIONS] + [("cann8.3", 2), ("newest", 2)]
)
_runs = st.builds(
    Parameters,
    kernels=st.integers(3, 200),
    steps=st.integers(1, 3),
    level=st.sampled_from([0, 1, 2]),
    schedule=st.booleans(),
    stacks=st.booleans(),
    modules=st.booleans(),
    shapes=st.booleans(),
    variants=st.integers(1, 3),
    host_events=st.integers(0, 2),
    communication=st.booleans(),
    warmup=st.booleans(),
    outlier=st.integers(-1, 2),
    gap_ns=st.sampled_from([0, 1_000, 90_000]),
    line_end=st.sampled_from(["\n", "\r\n"]),
    seed=st.integers(0, 1000),
)
runs = st.tuples(_runs, _versions).map(
    lambda drawn: replace(drawn[0], version=drawn[1][0], devices=drawn[1][1])
)


def totals(profile: Profile) -> dict[tuple[str, str], tuple[int, int]]:
    """Count and nanoseconds per Type and core."""
    rows = profile.kernels.groupby(["type", "core"], observed=True)["duration_ns"]
    return {
        key: (int(r["count"]), int(r["sum"])) for key, r in rows.agg(["count", "sum"]).iterrows()
    }


def frames(profile: Profile) -> list[str]:
    """Innermost frame that each kernel was led to."""
    inner = [f"{s[0].path}({s[0].line}): {s[0].function}" for s in profile.stacks]
    return [inner[number] if number >= 0 else "" for number in profile.kernels["stack"]]


def modules(profile: Profile) -> list[str]:
    return [profile.modules[n] if n >= 0 else "" for n in profile.kernels["module"]]


def operators(profile: Profile) -> list[str]:
    names = profile.host_ops["name"].tolist()
    return [names[n] if n >= 0 else "" for n in profile.kernels["host_op"]]


def kernel_rows(profile: Profile) -> pd.DataFrame:
    """Everything that both exports say of a kernel."""
    kernels = profile.kernels
    columns: dict[str, Any] = {
        name: kernels[name].astype(object)
        for name in ("name", "type", "core", "start_ns", "duration_ns", "communication", "basis")
    }
    columns["frame"], columns["module"] = frames(profile), modules(profile)
    columns["operator"] = operators(profile)
    return kernels[["start_ns"]].assign(**columns)
