"""Histories of a program whose step took what a test says, with one per cent of luck."""

from __future__ import annotations

import datetime as dt

import numpy as np

from npufix.reports.baseline import (
    Baseline,
    BaselineEnvironment,
    BaselineMetric,
    BaselineOperator,
    round_measure,
)
from npufix.reports.history import HistoryEntry, make_entry

START = dt.datetime(2026, 3, 1, 12, tzinfo=dt.UTC)
CHIP = BaselineEnvironment(chip="Ascend910B2", world_size=8)


def run(step_us: float, number: int, environment: BaselineEnvironment = CHIP) -> Baseline:
    return Baseline(
        "npufix test", f"{number:07x}", environment, 1,
        {"step-time": BaselineMetric("us", [round_measure(step_us)])},
        {"MatMulV2|64,64": BaselineOperator([round_measure(step_us * 0.6)], 48)},
        [], run_digests=[f"{number:016x}"],
    )  # fmt: skip


def history(factors: list[float], environment: BaselineEnvironment = CHIP) -> list[HistoryEntry]:
    noise = np.random.default_rng(7).normal(0, 0.01, len(factors))
    return [
        make_entry(
            START + dt.timedelta(days=number),
            run(float(100_000 * factor * np.exp(luck)), number, environment),
        )
        for number, (factor, luck) in enumerate(zip(factors, noise, strict=True))
    ]
