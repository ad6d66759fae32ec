"""A rule about the ranks of a job together: it compares them and says which one holds up which."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    import pandas as pd

    from npufix.rules.diagnostic import Place


@dataclass(frozen=True)
class RankDetail:
    """What the whole dump of one rank says; times are per steady step."""

    operators: pd.DataFrame
    """``type``, ``core``, ``shapes``, ``calls``, ``total_ns``."""
    lines: pd.DataFrame
    """``path``, ``line``, ``function``, ``calls``, ``total_ns``; empty without call stacks."""
    mhz: float = 0.0
    """Mean clock of the AI cores while they computed, 0 where it was not recorded."""
    host_ns: int = 0
    """What the host needs for all launches of a step, without pauses; 0 where none is known."""
    waited_for: frozenset[tuple[str, str]] = frozenset()
    """Group and operation of the collectives that the kernel behind each of them needs."""


@dataclass(frozen=True)
class Cluster:
    """What the small files of all ranks say, each table with a column ``rank``.

    ``rank`` is the number of the job (the position in the list of dumps where none says one).
    Times are int64 nanoseconds; tables are empty where nothing was recorded.
    """

    ranks: pd.DataFrame
    """One row a rank: ``rank``, ``host`` (""), ``device`` (-1), ``dump``, ``readable``."""
    steps: pd.DataFrame
    """The steady steps, one row a rank and step, columns as ``Profile.steps``."""
    operators: pd.DataFrame
    """``type``, ``core``, ``count``, ``total_ns`` over the recording (op_statistic)."""
    collectives: pd.DataFrame
    """One row a rank, step, group and operation (``hcom_allReduce__``…): ``step``, ``kind``
    (collective or p2p), ``name``, ``group``, ``count``, ``elapse_ns``, ``transit_ns``,
    ``wait_ns``, ``synchronization_ns``, ``idle_ns``, ``longest_ns``, ``longest_transit_ns``."""
    transports: pd.DataFrame
    """One row a rank, group, operation and kind of link: ``kind``, ``name``, ``group``,
    ``transport``, ``size_bytes``, ``transit_ns``, ``large_packet_ratio`` (weighted by bytes)."""
    links: pd.DataFrame
    """``source``, ``destination`` (ranks of the job), ``transport``, ``group``, ``size_bytes``,
    ``transit_ns``; summed over steps and operations; copies within a device left out."""
    groups: pd.DataFrame
    """One row a rank and group it belongs to: ``group`` (as in ``collectives``), ``role``
    (tp, pp, dp, ep, cp, … or the name in profiler_metadata), ``members`` (tuple of ranks)."""
    details: Mapping[int, RankDetail]
    """By rank, of those that were read as a whole."""
    world_size: int | None = None
    all_steps: pd.DataFrame | None = None
    """As ``steps``, with the steps that an average leaves out as outliers: a straggler makes one
    of them. Without the warm-up; ``None`` where there are no others."""
    step_ns: int = 0
    """The step that shares are told of, that of the report; 0 for the median of the ranks."""
    kept: dict[Any, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    """What several rules ask alike."""


@dataclass(frozen=True)
class ClusterObservation:
    """One thing that was found: a fact with its numbers. Times are per step."""

    what: str
    ranks: tuple[int, ...] = ()
    """Those it is about, the worst first."""
    evidence: tuple[tuple[str, str], ...] = ()
    cost_ns: int = 0
    """What it takes of a step of the job."""
    of_ns: int = 0
    """What ``cost_ns`` is a share of, where that is not the step of the report: the average of all
    steps, those that are left out as outliers too; else 0."""
    saving_ns: tuple[int, int] | None = None
    likely_ns: int | None = None
    """What is expected of ``saving_ns``; ``None`` its middle, or all of "at most"."""
    lost_ns: int = 0
    """What collectives take longer for it, hidden or not; 0 where ``saving_ns`` is all of it."""
    outliers_ns: int = 0
    """By how much the average of all steps is longer than of those that are replayed."""
    basis: str = ""
    places: tuple[Place, ...] = ()
    is_idle: bool = False
    is_communication: bool = False
    """Whether ``cost_ns`` is time of collectives, not of computing."""
    is_symptom: bool = False
    """It says that collectives take long, not why."""
    goes: float = 0.0
    """Share of the collectives, of their time and of their launches, that is expected to go."""
    advice: str = ""
    """What to do here, where that is not ``ClusterDiagnostic.advice`` as it stands."""


@dataclass(frozen=True, slots=True)
class ClusterDiagnostic:
    """One row of the cluster table; the module docstring explains it."""

    id: str
    name: str
    summary: str
    advice: str
    check: Callable[[Cluster], Iterable[ClusterObservation]]
    table: str = "cluster"
    requires: str = ""
    gpu_advice: str = ""
    """What to do on a GPU; without, the rule is about NPUs alone."""
