"""A training job run event by event, and its recording; it shares no code with the product."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import pandas as pd

from npufix.profiling_parsers.kernels.steps import steps_from_kernels
from npufix.profiling_parsers.kernels.whole_steps import host_marks, whole_steps
from npufix.profiling_parsers.profile import Environment, Profile
from npufix.profiling_parsers.schema import complete_kernels

COMPUTE, LINK = 2, 9
EPOCH = 1_700_000_000_000_000
ENQUEUE_US, LATENCY_US, GAP_US, RETURN_US = 3.0, 7.0, 1.2, 6.0


@dataclass(frozen=True)
class Op:
    """An operator of the host with its kernels (Type, microseconds)."""

    name: str
    host_us: float
    kernels: tuple[tuple[str, float], ...] = ()
    stream: int = COMPUTE
    waits: bool = False
    after_link: bool = False
    tag: str = ""


@dataclass
class Job:
    """What was recorded, in microseconds."""

    kernels: list[dict[str, object]] = field(default_factory=list)
    calls: list[tuple[str, float, float]] = field(default_factory=list)
    ends: list[float] = field(default_factory=list)
    """When each step ended, on host and device."""

    @property
    def step_us(self) -> float:
        """The length of a step once the job goes on as it will."""
        return (self.ends[-1] - self.ends[1]) / (len(self.ends) - 2)

    def labels(self, tag: str) -> frozenset[int]:
        return frozenset(at for at, kernel in enumerate(self._rows()) if kernel["tag"] == tag)

    def _rows(self) -> list[dict[str, object]]:
        return sorted(self.kernels, key=lambda kernel: float(str(kernel["start"])))

    def profile(self, *, launches: bool = True) -> Profile:
        rows = self._rows()
        texts = {"name": "type", "type": "type", "core": "core"}
        kernels = complete_kernels(
            pd.DataFrame(
                {
                    "step": pd.array([row["step"] for row in rows], "Int64"),
                    **{key: pd.Categorical([row[of] for row in rows]) for key, of in texts.items()},
                    "start_ns": [round(float(str(row["start"])) * 1000) for row in rows],
                    "duration_ns": [round(float(str(row["duration"])) * 1000) for row in rows],
                    "communication": [row["stream"] == LINK for row in rows],
                    "device": pd.array([0] * len(rows), "int32").to_numpy(),
                    "stream": pd.array([row["stream"] for row in rows], "int32").to_numpy(),
                    "launch_ns": [
                        round(float(str(row["launch"])) * 1000) if launches else -1 for row in rows
                    ],
                }
            ).assign(device=lambda frame: frame["device"].astype("int32"))
        )
        calls = sorted(self.calls, key=lambda call: call[1])
        ops = pd.DataFrame(
            {
                "name": pd.Categorical([name for name, _, _ in calls]),
                "start_ns": [round(start * 1000) for _, start, _ in calls],
                "duration_ns": [round((end - start) * 1000) for _, start, end in calls],
                "sequence": -1,
                "input_dims": pd.Categorical([""] * len(calls)),
                "input_types": pd.Categorical([""] * len(calls)),
                "stack": -1,
                "basis": pd.Categorical([""] * len(calls)),
            }
        )
        steps = whole_steps(steps_from_kernels(kernels), kernels, host_marks(ops))
        statistic = pd.DataFrame({"type": [], "core": [], "count": [], "total_ns": []})
        return Profile(Path("job"), Environment(), kernels, ops, steps, statistic, ())


def run(
    ops: list[Op], steps: int = 6, *, room: int = 0, batch_us: float = 0.0, copied_us: float = 0.0
) -> Job:
    """Run a program; ``room`` kernels may wait for the device, a batch comes every ``batch_us``.

    For ``copied_us`` the device is busy with what is no kernel, as each step begins.
    """
    job = Job()
    now = float(EPOCH)
    free = {COMPUTE: now, LINK: now}
    ended: list[float] = []
    loaded = now
    for step in range(steps):
        begin = now
        if batch_us:
            now = max(now + 50, loaded + batch_us)
            loaded = now
            name = "enumerate(DataLoader)#_MultiProcessingDataLoaderIter.__next__"
            job.calls.append((name, begin, now))
        now += 100
        free[COMPUTE] = (
            max(free[COMPUTE], now + LATENCY_US) + copied_us if copied_us else free[COMPUTE]
        )
        for op in ops:
            started = now
            now += ENQUEUE_US
            for kind, duration in op.kernels:
                if room and len(ended) >= room:
                    now = max(now, ended[-room])
                ready = now + LATENCY_US
                if op.stream == LINK:
                    ready = max(ready, free[COMPUTE] + 2)
                elif op.after_link:
                    ready = max(ready, free[LINK] + 2)
                start = max(ready, free[op.stream] + GAP_US)
                free[op.stream] = start + duration
                ended.append(start + duration)
                core = "HCCL" if op.stream == LINK else "AI_VECTOR_CORE"
                job.kernels.append(
                    {"step": step, "type": kind, "core": core, "start": start, "stream": op.stream,
                     "duration": duration, "launch": now, "tag": op.tag}
                )  # fmt: skip
            if op.waits:
                now = max(now, free[COMPUTE] + RETURN_US)
            now = max(now, started + op.host_us) if not op.waits else now + op.host_us
            job.calls.append((op.name, started, now))
        job.calls.append((f"ProfilerStep#{step}", begin, now))
        job.ends.append(max(now, *free.values()))
        now += 10
    return job
