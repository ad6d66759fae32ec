"""How often the rules about many ranks are wrong: ``python -m benchmarks.generator.ranks_power``.

False alarms are findings in jobs in which nothing is wrong; recall is how many injected faults are
found by their rule, at their rank. Prints a Markdown table.
"""

from __future__ import annotations

import argparse
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from benchmarks.generator.ranks import Fault, Layout
from benchmarks.generator.ranks_tables import Noise, simulate_job

from npufix.rules.registry import all_cluster_diagnostics

if TYPE_CHECKING:
    from collections.abc import Iterator

RULES = {
    "slow-compute": "NPU601", "slow-host": "NPU602", "straggler": "NPU603",
    "slow-link": "NPU604", "tp-imbalance": "NPU605", "expert-imbalance": "NPU606",
    "stage-imbalance": "NPU607", "bubbles": "NPU608", "small-packets": "NPU609",
    "retransmission": "NPU610",
}  # fmt: skip
SHAPES = ((2, 1, 1), (4, 2, 1), (8, 2, 2), (8, 1, 1), (16, 4, 2), (16, 1, 1), (32, 4, 2),
          (64, 8, 2), (64, 2, 4))  # fmt: skip
"""Ranks, tensor parallel, pipeline stages."""


@dataclass(frozen=True)
class Power:
    """What was counted."""

    clusters: int
    alarms: Counter[str]
    """Healthy jobs in which a rule found something."""
    found: dict[str, tuple[int, int]]
    """Of each fault: how often its rule found it at its rank, of how many."""


def seen_in(
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
        alarms.update({rule for rule, _ in seen_in(Layout(ranks, tp, pp), seed, noise)})
    found = {kind: _recall(kind, clusters, noise) for kind in RULES}
    return Power(clusters, alarms, found)


def _recall(kind: str, clusters: int, noise: Noise | None) -> tuple[int, int]:
    hits = total = 0
    for seed in range(clusters):
        random = np.random.default_rng([seed, 7])
        ranks, tp, pp = SHAPES[seed % len(SHAPES)]
        for fault in _fault(kind, Layout(ranks, tp, pp), random):
            seen = seen_in(Layout(ranks, tp, pp, faults=(fault,)), seed, noise, RULES[kind])
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
        over = [g for g in layout.groups if g.role == "dp" and len(g.members) > 1
                and len({layout.host(m) for m in g.members}) > 1]  # fmt: skip
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
