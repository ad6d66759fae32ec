"""The ranks of a job: who is in which group and on which host, and what is wrong with whom."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import cached_property

FAULTS = {
    "slow-compute": "all kernels of rank A take longer: slow-compute:A",
    "slow-host": "the host of rank A launches later: slow-host:A",
    "straggler": "rank A is slow in step S (an index): straggler:A@S",
    "slow-link": "the link between ranks A and B is slow: slow-link:A-B",
    "tp-imbalance": "the last rank of each tensor parallel group computes more",
    "stage-imbalance": "the last stage of the pipeline computes more",
    "expert-imbalance": "rank A gets more tokens: expert-imbalance:A",
    "small-packets": "the data parallel groups reduce many small buckets",
    "bubbles": "the stages of the pipeline wait for each other",
    "retransmission": "the groups of rank A lose packets in step S: retransmission:A@S",
}
_FAULT = re.compile(r"([a-z-]+?)(?::(\d+)(?:-(\d+))?(?:@(\d+))?)?")
_PRIMES, _WORD = (29, 131), 0xFFFFFFFF


@dataclass(frozen=True)
class Fault:
    """Something that is wrong; -1 is "none"."""

    kind: str
    rank: int = -1
    other: int = -1
    step: int = -1


def fault(text: str) -> Fault:
    """Read ``slow-compute:3``; raise ``ValueError`` if it is none."""
    found = _FAULT.fullmatch(text)
    if found is None or found[1] not in FAULTS:
        raise ValueError(f"no fault {text}: there are {', '.join(FAULTS)}")
    rank, other, step = (int(part) if part else -1 for part in found.groups()[1:])
    if ":" in FAULTS[found[1]] and rank < 0:
        raise ValueError(f"{found[1]} needs a rank: {FAULTS[found[1]]}")
    return Fault(found[1], rank, other, step)


@dataclass(frozen=True)
class Group:
    """Ranks that communicate with each other."""

    name: str
    """Key of parallel_group_info."""
    role: str
    members: tuple[int, ...]

    @property
    def number(self) -> str:
        """The name as collectives have it: two hashes, one behind the other."""
        hashes = [0, 0]
        for letter in self.name:
            hashes = [
                (value * prime + ord(letter)) & _WORD
                for value, prime in zip(hashes, _PRIMES, strict=True)
            ]
        return str(hashes[0] << 32 | hashes[1])


@dataclass(frozen=True)
class Layout:
    """Ranks as Megatron numbers them: tensor parallel first, then data, then pipeline."""

    ranks: int
    tp: int = 1
    pp: int = 1
    per_host: int = 8
    faults: tuple[Fault, ...] = field(default_factory=tuple)

    def __post_init__(self) -> None:
        """Refuse what no job can be."""
        if self.tp < 1 or self.pp < 1 or self.ranks % (self.tp * self.pp):
            raise ValueError("the number of ranks is not a multiple of tp times pp")
        if any(max(each.rank, each.other) >= self.ranks for each in self.faults):
            raise ValueError("a fault is at a rank that the job does not have")

    @property
    def dp(self) -> int:
        """Ranks of a data parallel group."""
        return self.ranks // (self.tp * self.pp)

    def stage(self, rank: int) -> int:
        """Return the stage of the pipeline."""
        return rank // (self.tp * self.dp)

    def host(self, rank: int) -> int:
        """Return the number of the host."""
        return rank // self.per_host

    def network(self, *ranks: int) -> str:
        """Return the kind of link between ranks: within a host, or between hosts."""
        return "HCCS" if len({self.host(rank) for rank in ranks}) == 1 else "RDMA"

    @property
    def everyone(self) -> Group:
        """The group of all ranks."""
        return Group("group_name_0", "default_group", tuple(range(self.ranks)))

    @cached_property
    def groups(self) -> tuple[Group, ...]:
        """All groups; those of one rank too, as programs make them."""
        ranks = range(self.ranks)
        block = self.tp * self.dp
        lists = {
            "default_group": [tuple(ranks)],
            "tp": [tuple(ranks[at : at + self.tp]) for at in ranks[:: self.tp]],
            "dp": [
                tuple(ranks[start + at : start + block : self.tp])
                for start in ranks[::block]
                for at in range(self.tp)
            ],
            "pp": [tuple(ranks[at::block]) for at in range(block)],
        }
        # Ranks number the groups that they make: a name may mean several groups of other ranks.
        numbers = iter(range(self.ranks * 4))
        return tuple(
            Group(f"group_name_{next(numbers)}", role, members)
            for role, found in lists.items()
            for members in found
        )

    def groups_of(self, rank: int) -> list[Group]:
        """Return the groups that a rank is in."""
        return [group for group in self.groups if rank in group.members]

    def has(self, kind: str) -> Fault | None:
        """Return the first fault of this kind."""
        return next((each for each in self.faults if each.kind == kind), None)

    def is_slow(self, first: int, second: int) -> bool:
        """Tell whether the link between two ranks is slow."""
        return any(
            each.kind == "slow-link" and {each.rank, each.other} == {first, second}
            for each in self.faults
        )

    def compute_factor(self, rank: int) -> float:
        """Return how much longer the kernels of a rank take."""
        factor = 1.0
        for each in self.faults:
            heavy = {
                "slow-compute": rank == each.rank,
                "tp-imbalance": rank % self.tp == self.tp - 1,
                "stage-imbalance": self.stage(rank) == self.pp - 1,
            }
            factor *= 1.25 if heavy.get(each.kind) else 1.0
        return factor

    def host_factor(self, rank: int) -> float:
        """Return how much longer the host of a rank takes."""
        slow = any(each.kind == "slow-host" and each.rank == rank for each in self.faults)
        return 1.8 if slow else 1.0

    def late_step(self, rank: int) -> int:
        """Return the index of the step in which a rank is slow, -1 for none."""
        steps = (each.step for each in self.faults if each.kind == "straggler")
        ranks = (each.rank for each in self.faults if each.kind == "straggler")
        return next((s for s, r in zip(steps, ranks, strict=True) if r == rank), -1)
