"""How often the rules about many ranks are wrong: ``python -m benchmarks.generator.ranks_power``.

False alarms are findings in jobs in which nothing is wrong; recall is how many injected faults are
found by their rule, at their rank. Prints a Markdown table. The jobs are tables, as reading dumps
of all ranks leaves them, with realistic noise: healthy ranks differ, chips by about 1 %, steps by
2 %, idle time by 15 % of itself, links by 4 %.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
from benchmarks.generator.files.collectives import SPEED
from benchmarks.generator.ranks import Fault, Layout
from benchmarks.generator.ranks_run import RETRANSMITTED_NS, SLOW_LINK

from npufix.rules.cluster_diagnostic import Cluster
from npufix.rules.registry import all_cluster_diagnostics

if TYPE_CHECKING:
    from collections.abc import Iterator

    from benchmarks.generator.ranks import Group
    from numpy.typing import NDArray

    Floats = NDArray[np.float64]

RULES = {
    "slow-compute": "NPU601", "slow-host": "NPU602", "straggler": "NPU603",
    "slow-link": "NPU604", "tp-imbalance": "NPU605", "expert-imbalance": "NPU606",
    "stage-imbalance": "NPU607", "bubbles": "NPU608", "small-packets": "NPU609",
    "retransmission": "NPU610",
}  # fmt: skip
SHAPES = ((2, 1, 1), (4, 2, 1), (8, 2, 2), (8, 1, 1), (16, 4, 2), (16, 1, 1), (32, 4, 2),
          (64, 8, 2), (64, 2, 4))  # fmt: skip
"""Ranks, tensor parallel, pipeline stages."""
_MS = 1_000_000
_OPERATORS = {"MatMulV2": (512, 0.5), "FlashAttentionScore": (64, 0.2), "Add": (900, 0.05),
              "RmsNorm": (130, 0.05), "GroupedMatmul": (64, 0.2)}  # fmt: skip
_LATE = 0.3


@dataclass(frozen=True)
class Noise:
    """Standard deviations, as shares."""

    rank: float = 0.01
    step: float = 0.02
    idle: float = 0.15
    link: float = 0.04
    stage: float = 0.02


@dataclass(frozen=True)
class Times:
    """Nanoseconds, one row a rank and one column a step."""

    computing: Floats
    free: Floats
    transfer: float
    bubble: float
    extra: Floats
    """What all ranks take longer over a collective, per step."""

    @property
    def waiting(self) -> Floats:
        """How long each rank waits for the last one."""
        own = self.computing + self.free
        waits: Floats = own.max(axis=0) - own
        return waits


def simulate_job(
    layout: Layout, *, steps: int = 12, seed: int = 0, noise: Noise | None = None
) -> Cluster:
    """Return the tables of a job; equal arguments give equal tables."""
    noise = noise or Noise()
    random = np.random.default_rng(seed)
    times = _times(layout, steps, random, noise)
    transports, links = _transfers(layout, times, steps, random, noise)
    rows = _steps(times)
    hosts = [f"h{layout.host(rank)}" for rank in range(layout.ranks)]
    return Cluster(
        ranks=pd.DataFrame(
            {"rank": range(layout.ranks), "host": hosts,
             "device": -1, "dump": "", "readable": True}
        ),
        steps=rows,
        operators=_operators(times, layout, random, noise),
        collectives=_collectives(layout, times),
        transports=transports,
        links=links,
        groups=pd.DataFrame(
            [(r, g.number, g.role, g.members) for r in range(layout.ranks)
             for g in layout.groups_of(r)],
            columns=["rank", "group", "role", "members"],
        ),
        details={},
        world_size=layout.ranks,
        all_steps=rows,
    )  # fmt: skip


def _times(layout: Layout, steps: int, random: np.random.Generator, noise: Noise) -> Times:
    ranks = np.arange(layout.ranks)
    shape = (layout.ranks, steps)
    stage = random.normal(1, noise.stage, layout.pp)[[layout.stage(int(r)) for r in ranks]]
    factor = stage * random.normal(1, noise.rank, layout.ranks)
    factor *= [1 + (layout.compute_factor(int(r)) - 1) * _LATE * 2 for r in ranks]
    # Part of what varies from step to step (the length of the batch) varies for all ranks alike.
    together = random.normal(1, noise.step, steps)
    computing = 300.0 * _MS * factor[:, None] * together * random.normal(1, noise.step / 2, shape)
    free = 20.0 * _MS * np.exp(random.normal(0, noise.idle, shape))
    for rank in ranks.tolist():
        free[rank] += (layout.host_factor(rank) - 1) * 60 * _MS
        if layout.late_step(rank) >= 0:
            free[rank, layout.late_step(rank)] += _LATE * 300 * _MS
    if (heavy := layout.has("expert-imbalance")) is not None:
        computing[heavy.rank] *= 1.08
    extra = np.zeros(steps)
    if (lost := layout.has("retransmission")) is not None:
        extra[lost.step] = RETRANSMITTED_NS
    transfer = random.uniform(6, 12) * _MS * (3 if layout.has("small-packets") else 1)
    bubble = (80.0 if layout.has("bubbles") else 10.0) * _MS if layout.pp > 1 else 0.0
    return Times(computing, free, transfer, bubble, extra)


def _steps(times: Times) -> pd.DataFrame:
    exposed = times.transfer + times.bubble + times.waiting + times.extra
    ranks, steps = exposed.shape
    hidden = np.full_like(exposed, 30.0 * _MS)
    columns = {
        "computing_ns": times.computing, "communication_exposed_ns": exposed,
        "overlapped_ns": hidden, "communication_ns": exposed + hidden, "free_ns": times.free,
    }  # fmt: skip
    return pd.DataFrame(
        {
            "rank": np.repeat(np.arange(ranks), steps),
            "step": pd.array(np.tile(np.arange(steps), ranks), dtype="Int64"),
            "device": -1,
            **{name: values.ravel().astype(np.int64) for name, values in columns.items()},
            "bubble_ns": -1,
        }
    )


def _operators(
    times: Times, layout: Layout, random: np.random.Generator, noise: Noise
) -> pd.DataFrame:
    heavy = layout.has("expert-imbalance") or Fault("")
    rows = []
    for rank, total in enumerate(times.computing.sum(axis=1)):
        for name, (count, share) in _OPERATORS.items():
            time = total * share * random.normal(1, noise.rank / 2)
            if rank == heavy.rank and name == "GroupedMatmul":
                time *= 1.5
            calls = count * times.computing.shape[1]
            rows.append((rank, name, "AI_CORE", calls, round(time)))
    return pd.DataFrame(rows, columns=["rank", "type", "core", "count", "total_ns"])


def _active(layout: Layout) -> Iterator[tuple[Group, str, str]]:
    """Yield the groups that communicate, with kind and name of their collectives."""
    for group in layout.groups:
        if len(group.members) < 2:  # noqa: PLR2004 - alone
            continue
        if group.role in {"tp", "dp"}:
            yield group, "collective", "hcom_allReduce__"
        if group.role == "dp" and layout.has("expert-imbalance"):
            yield group, "collective", "hcom_alltoallv__"
        if group.role == "pp":
            yield group, "p2p", "hcom_receive__"


def _collectives(layout: Layout, times: Times) -> pd.DataFrame:
    active = list(_active(layout))
    shares = {r: sum(r in g.members and k != "p2p" for g, k, _ in active)
              for r in range(layout.ranks)}  # fmt: skip
    waits, lost = times.waiting, layout.has("retransmission") or Fault("")
    rows: list[tuple[Any, ...]] = []
    for group, kind, name in active:
        for rank in group.members:
            for step in range(waits.shape[1]):
                moved = times.transfer / max(1, shares[rank])
                wait = waits[rank, step] / max(1, shares[rank])
                if kind == "p2p":
                    moved, wait = _MS, times.bubble
                longest = 0.0
                if lost.rank in group.members and kind == "collective":
                    longest = times.extra[step]
                count = 2000 if layout.has("small-packets") and group.role == "dp" else 8
                wait += longest
                rows.append((rank, step, kind, name, group.number, count, moved + wait, moved,
                             wait, wait, 0, max(moved, longest), moved))  # fmt: skip
    names = ["rank", "step", "kind", "name", "group", "count", "elapse_ns", "transit_ns",
             "wait_ns", "synchronization_ns", "idle_ns", "longest_ns",
             "longest_transit_ns"]  # fmt: skip
    table = pd.DataFrame(rows, columns=names)
    numbers = dict.fromkeys(names[5:], "int64")
    return table.astype({**numbers, "step": "Int64"})


def _transfers(
    layout: Layout, times: Times, steps: int, random: np.random.Generator, noise: Noise
) -> tuple[pd.DataFrame, pd.DataFrame]:
    rows: list[tuple[Any, ...]] = []
    links: list[tuple[Any, ...]] = []
    heavy = layout.has("expert-imbalance") or Fault("")
    for group, kind, name in _active(layout):
        network = layout.network(*group.members)
        speed = SPEED[network]
        if layout.has("small-packets") and group.role == "dp":
            speed *= 0.1
        for rank in group.members:
            size = times.transfer * 2 * speed * steps * random.normal(1, noise.link)
            if name == "hcom_alltoallv__":
                size *= random.normal(1, noise.link) * (1.8 if rank == heavy.rank else 1.0)
            time = times.transfer * 2 * steps
            rows.append(
                (
                    rank,
                    kind,
                    name,
                    group.number,
                    "RDMA" if network == "RDMA" else "SDMA",
                    round(size),
                    round(time),
                    1.0,
                )
            )
            links += _links(layout, group, rank, time, random.normal(1, noise.link, layout.ranks))
    transports = pd.DataFrame(
        rows, columns=["rank", "kind", "name", "group", "transport", "size_bytes", "transit_ns",
                       "large_packet_ratio"],
    )  # fmt: skip
    return transports, pd.DataFrame(
        links,
        columns=["rank", "source", "destination", "transport", "group", "size_bytes",
                 "transit_ns"],
    )  # fmt: skip


def _links(
    layout: Layout, group: Group, rank: int, time: float, noise: Floats
) -> Iterator[tuple[Any, ...]]:
    for other in group.members:
        if other != rank:
            kind = layout.network(rank, other)
            slow = SLOW_LINK if layout.is_slow(rank, other) else 1.0
            size = time * SPEED[kind]
            taken = size / SPEED[kind] / slow / noise[other]
            yield rank, rank, other, kind, group.number, round(size), round(taken)


@dataclass(frozen=True)
class Power:
    """What was counted."""

    clusters: int
    alarms: Counter[str]
    """Healthy jobs in which a rule found something."""
    found: dict[str, tuple[int, int]]
    """Of each fault: how often its rule found it at its rank, of how many."""


def find_seen(
    layout: Layout, seed: int, noise: Noise | None = None, wanted: str = "NPU"
) -> list[tuple[str, int]]:
    """Return rule and first rank of all findings in a simulated job; -1 where it names none."""
    cluster = simulate_job(layout, seed=seed, steps=8 + seed % 9, noise=noise)
    return [
        (rule.id, seen.ranks[0] if seen.ranks else -1)
        for rule in all_cluster_diagnostics()
        if rule.id.startswith(wanted)
        for seen in rule.check(cluster)
    ]


def measure(clusters: int, noise: Noise | None = None) -> Power:
    """Simulate so many healthy jobs, and as many with each fault."""
    alarms: Counter[str] = Counter()
    for seed in range(clusters):
        ranks, tp, pp = SHAPES[seed % len(SHAPES)]
        alarms.update({rule for rule, _ in find_seen(Layout(ranks, tp, pp), seed, noise)})
    found = {kind: _recall(kind, clusters, noise) for kind in RULES}
    return Power(clusters, alarms, found)


def _recall(kind: str, clusters: int, noise: Noise | None) -> tuple[int, int]:
    hits = total = 0
    for seed in range(clusters):
        random = np.random.default_rng([seed, 7])
        ranks, tp, pp = SHAPES[seed % len(SHAPES)]
        for fault in _fault(kind, Layout(ranks, tp, pp), random):
            seen = find_seen(Layout(ranks, tp, pp, faults=(fault,)), seed, noise, RULES[kind])
            at = {rank for rule, rank in seen if rule == RULES[kind]}
            hits += bool(at & {fault.rank, fault.other} if fault.rank >= 0 else at)
            total += 1
    return hits, total


def _fault(kind: str, layout: Layout, random: np.random.Generator) -> Iterator[Fault]:
    """Yield the fault at a random place, if such a job can have it."""
    rank, step = int(random.integers(layout.ranks)), int(random.integers(8))
    pipelines = {"bubbles", "stage-imbalance"}
    parts = {"tp-imbalance": layout.tp, **dict.fromkeys(pipelines, layout.pp),
             "small-packets": layout.dp, "expert-imbalance": layout.dp}  # fmt: skip
    if parts.get(kind, 2) < 2:  # noqa: PLR2004 - there is no such group
        return
    if kind == "retransmission":
        over = [g for g in layout.groups if g.role == "dp" and layout.network(*g.members) == "RDMA"]
        if over:
            yield Fault(kind, over[0].members[0], -1, step)
    elif kind == "slow-link":
        pairs = [g.members[:2] for g in layout.groups
                 if g.role != "default_group" and len(g.members) > 1]  # fmt: skip
        yield Fault(kind, *pairs[int(random.integers(len(pairs)))])
    elif kind == "straggler" and layout.ranks > 2:  # noqa: PLR2004 - of two, who is late?
        yield Fault(kind, rank, -1, step)
    elif kind in {"slow-compute", "slow-host", "expert-imbalance"}:
        yield Fault(kind, rank)
    elif kind != "straggler":
        yield Fault(kind)


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser("python -m benchmarks.generator.ranks_power")
    parser.add_argument("--clusters", type=int, default=450, help="jobs of each kind")
    parser.add_argument("--noise", type=float, default=1.0, help="times the usual noise")
    chosen = parser.parse_args()
    usual = Noise()
    noise = Noise(**{name: value * chosen.noise for name, value in vars(usual).items()})
    power = measure(chosen.clusters, noise)
    print("| rule | false alarms in healthy jobs | fault | found at its rank |")
    print("|---|---|---|---|")
    for rule in all_cluster_diagnostics():
        kind = next((kind for kind, own in RULES.items() if own == rule.id), "")
        hits, total = power.found.get(kind, (0, 0))
        share = f"{hits} of {total} ({hits / total:.1%})" if total else ""
        alarms = power.alarms[rule.id]
        print(f"| {rule.id} {rule.name} | {alarms} of {power.clusters} | {kind} | {share} |")


if __name__ == "__main__":
    main()
