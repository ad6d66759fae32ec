"""The PipeUtilization columns of kernel_details: which pipe of a core is busy for how long."""

from __future__ import annotations

from simulate.kernels import Kernel

CUBE = ("mac", "scalar", "mte1", "mte2", "fixpipe")
VECTOR = ("vec", "scalar", "mte2", "mte3")
COUNTERS = [
    "aicore_time(us)",
    "aic_total_cycles",
    *(f"aic_{pipe}_{what}" for pipe in CUBE for what in ("time(us)", "ratio")),
    "aic_icache_miss_rate",
    "aiv_time(us)",
    "aiv_total_cycles",
    *(f"aiv_{pipe}_{what}" for pipe in VECTOR for what in ("time(us)", "ratio")),
    "aiv_icache_miss_rate",
    "cube_utilization(%)",
]

MHZ = 1800
CUBE_RATIOS = (0.42, 0.31, 0.48, 0.77, 0.12)
MEMORY_BOUND = (0.16, 0.09, 0.58, 0.44)
SCALAR_BOUND = (0.03, 0.91, 0.11, 0.07)
WALKING = {"IndexPutV2", "GatherElements", "RepeatInterleave", "OneHot", "ReduceSum"}


def counters(kernel: Kernel, duration_us: float, blocks: int) -> list[float]:
    """Plausible ratios per kind of kernel; zero where a kernel does not use the core."""
    busy_us = round(duration_us * 0.96, 3)
    cycles = round(busy_us * MHZ * blocks)
    cube: tuple[float, ...] = (0.0,) * len(CUBE)
    vector: tuple[float, ...] = (0.0,) * len(VECTOR)
    if kernel.core == "AI_CORE":
        cube = CUBE_RATIOS
    elif kernel.core in ("AI_VECTOR_CORE", "MIX_AIV"):
        vector = SCALAR_BOUND if kernel.type in WALKING else MEMORY_BOUND
    return [
        *core_counters(cube, busy_us, cycles, 0.004),
        *core_counters(vector, busy_us, cycles, 0.021),
        round(100 * CUBE_RATIOS[0] * blocks / 24, 3) if any(cube) else 0,
    ]


def core_counters(
    ratios: tuple[float, ...], busy_us: float, cycles: int, miss_rate: float
) -> list[float]:
    if not any(ratios):
        return [0.0, 0, *(0.0 for _ in ratios for _ in range(2)), 0.0]
    pairs = [value for ratio in ratios for value in (round(busy_us * ratio, 3), ratio)]
    return [busy_us, cycles, *pairs, miss_rate]
