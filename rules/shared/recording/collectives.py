"""The collectives of a recording, as several diagnostics look at them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import keep_result
from npufix.rules.shared.quantities import milliseconds

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    from npufix.rules.diagnostic import Recording

    Integers = NDArray[np.int64]

RETRANSMIT_NS = 3_600_000_000
"""Of one collective (RETRANSMIT): the timeout is about 4 s, and 3.95 s and 4.05 s are one fault."""
PACKET_BYTES = {"SDMA": 16_000_000, "RDMA": 1_000_000}
"""A collective that moves less over such a link is small (PACKET)."""
TINY_BYTES = 1_000_000
"""One that moves less takes most of its time to be set up."""
CONTENTION_SHARE = 0.8
"""Share of the known rate of a link below which something is wrong."""
LEAST_SHARE = 0.01
"""Share of the step from which a collective is worth telling, as for FUSIBLE."""
PARTS = {
    "moving_ns": "moving data",
    "waiting_ns": "waiting for other ranks",
    "notify_ns": "waiting inside",
    "idle_ns": "idle",
}
"""Columns of ``collective_times``, as every finding calls them."""
_RECEIVES = r"(?i)p2p|send|recv|receive"
FAST_SLOW = 0.2
"""Share of waiting in a collective."""
LEAST_STILL_NS = 200_000
"""Shorter is what each collective takes to set up: a small one stands still for most of itself."""
MOST_SET_UP_NS = 1_000_000
"""What one loses longer against the rate of the link is not lost because it is small: 12.8 MB that
take 9.8 ms, of 0.6."""
_MOST_STILL = 0.5
"""Share of a collective from which standing still is what it does."""
_NAMED = 0.1
"""Share of a time from which a collective is told by name."""
_MOST_NAMED = 4
ALIGNED_BYTES = 512
"""Of which the size of an operand should be a multiple: else its ends take the slow way."""
UNALIGNED_ADVICE = (
    "make the size of each bucket a multiple of 512 bytes: pad the last layer or choose another "
    "bucket_cap_mb (DDP), nccl_start_alignment_factor (DeepSpeed)"
)
_AS_LARGE = 4
"""Times as large or as small: of so much smaller collectives the set-up is most."""
_SLOWER = 0.5
"""Share of the rate of those of aligned sizes from which a size is why one is slow."""
_OPERATION = r"^(.*?)_+\d"
_TOTALS = r".*Total Op Info.*"


def of_steady_steps(rows: pd.DataFrame, recording: Recording) -> tuple[pd.DataFrame, int]:
    """Return the rows of the steady steps, without totals over other rows, and how many steps.

    Where the steps of the file are not those of the recording, all of its rows count.
    """
    names = [str(name) for name in rows["name"].cat.categories]
    totals = [name for name in names if re.fullmatch(_TOTALS, name)]
    rows = rows[~rows["name"].isin(totals)]
    steady = {str(step) for step in recording.steps["step"].dropna()}
    numbers = {step: str(step).removeprefix("step") for step in rows["step"].cat.categories}
    own = [step for step, number in numbers.items() if number in steady]
    kept = rows[rows["step"].isin(own)]
    if kept.empty:
        kept = rows
    return kept, max(1, int(kept["step"].nunique()))


def kernels_of(names: pd.Series[str], recording: Recording) -> pd.DataFrame:
    """Return the kernels of the collectives with these names; the file may add ``@group``."""
    bare = {str(name).split("@", maxsplit=1)[0] for name in names.unique()}
    kernels = recording.kernels
    return kernels[kernels["communication"].to_numpy(bool) & kernels["name"].isin(list(bare))]


def follow_each_other(own: pd.DataFrame, kernels: pd.DataFrame) -> bool:
    """Tell whether nothing is computed between most of them: those of layers cannot be joined."""
    order = kernels["start_ns"].argsort(kind="stable").to_numpy()
    is_own = kernels.index.isin(own.index)[order]
    return bool(2 * (is_own[1:] & is_own[:-1]).sum() > is_own.sum())


def are_waited_for(own: pd.DataFrame, kernels: pd.DataFrame) -> bool:
    """Tell whether most stand between kernels that compute, none of which runs meanwhile.

    Those of tensor parallelism do: a layer needs the sum of the one before. Buckets of gradients
    move beside the backward pass or, without one, follow each other.
    """
    computing = kernels[~kernels["communication"].to_numpy(bool)]
    starts = np.sort(computing["start_ns"].to_numpy())
    ends = np.sort((computing["start_ns"] + computing["duration_ns"]).to_numpy())
    start = own["start_ns"].to_numpy()
    end = start + own["duration_ns"].to_numpy()
    done = np.searchsorted(ends, start, side="right")
    alone = (done > 0) & (done == np.searchsorted(starts, end)) & (done < len(starts))
    return bool(2 * alone.sum() > len(own)) and not follow_each_other(own, kernels)


def moving_ns(rows: pd.DataFrame, recording: Recording) -> Integers:
    """Return how long the collective of each row of ``transports`` moved data.

    Links work side by side, so that the times of ``transports`` add up to more than has passed;
    where the time of the collective itself is known, that counts.
    """
    collectives = recording.signals.collectives
    known = collectives[collectives["transit_ns"] > 0]
    keys = ["step", "kind", "name", "group"]
    own = known.astype(dict.fromkeys(keys, str)).groupby(keys)["transit_ns"].sum()
    import pandas as pd

    of_row = pd.MultiIndex.from_frame(rows[keys].astype(str))
    stated = own.reindex(of_row).to_numpy(np.float64)
    summed = rows["transit_ns"].to_numpy(np.float64)
    moved: Integers = np.fmin(stated, summed).astype(np.int64)
    return moved


@keep_result
def collective_times(recording: Recording) -> tuple[pd.DataFrame, int]:
    """Return what each collective of the steady steps spends its time on, and how many steps.

    Columns ``name``, ``kind``, ``group``, ``size_bytes`` (0 unknown), and in ns ``elapse_ns``, the
    sum of ``moving_ns``, ``waiting_ns`` (for other ranks), ``notify_ns`` (waiting inside) and
    ``idle_ns`` (neither, by the dump). Some versions state no transfer time of a collective (CANN
    8.3): then that of its links counts. Who receives waits until the sender has sent.
    """
    rows, steps = of_steady_steps(recording.signals.collectives, recording)
    linked = _by_collective(recording.signals.transports, rows)
    elapse, wait, transit = (
        rows[name].clip(lower=0).to_numpy(np.int64)
        for name in ("elapse_ns", "wait_ns", "transit_ns")
    )
    wait = np.minimum(wait, elapse)
    links = linked["transit_ns"].to_numpy(np.int64)
    moving = np.minimum(np.where(transit > 0, transit, links), elapse - wait)
    others = np.minimum(rows["synchronization_ns"].clip(lower=0).to_numpy(np.int64), wait)
    rest = elapse - moving - wait
    names = rows["name"].astype(str) + " " + rows["kind"].astype(str)
    receives = names.str.contains(_RECEIVES, regex=True).to_numpy(bool)
    return rows[["step", "kind", "name", "group"]].assign(
        size_bytes=linked["size_bytes"].to_numpy(np.int64),
        elapse_ns=elapse,
        moving_ns=moving,
        waiting_ns=np.where(receives, elapse - moving, others),
        notify_ns=np.where(receives, 0, wait - others),
        idle_ns=np.where(receives, 0, rest),
    ), steps


def _by_collective(transports: pd.DataFrame, rows: pd.DataFrame) -> pd.DataFrame:
    """Return size and time of the links of each row: the slowest kind, as they run at a time."""
    import pandas as pd

    keys = ["step", "kind", "name", "group"]
    texts = transports.astype(dict.fromkeys([*keys, "transport"], str))
    links = texts.groupby([*keys, "transport"])[["size_bytes", "transit_ns"]].sum()
    most = links.groupby(keys).max().clip(lower=0)  # -1 is what the dump does not tell
    wanted = pd.MultiIndex.from_frame(rows[keys].astype(str))
    return most.reindex(wanted).fillna(0)


def busy_ns(names: pd.Series[str], recording: Recording) -> Integers:
    """Return how long each of these collectives takes but for waiting for other ranks."""
    rows, _ = collective_times(recording)
    busy = (rows["elapse_ns"] - rows["waiting_ns"]).groupby(rows["name"].astype(str)).mean()
    found: Integers = busy.reindex(names.astype(str)).fillna(0).to_numpy(np.int64)
    return found


def longest_collectives(
    rows: pd.DataFrame, column: str, steps: int, payloads: dict[str, int]
) -> str:
    """Name the collectives that take most of a time: ``hcom_allReduce__1_0_1 79.1 ms``.

    Its size is that of its operand, as ``payloads`` has it, else what it moved over the links. HCCL
    counts on from step to step: ``__1_0_1`` and ``__1_6_1`` of the next are one, if it has six.
    """
    bare = rows["name"].astype(str).str.split("@").str[0]
    parts = bare.str.extract(r"^(.*?)(?:_(\d+))?(_\d+)?$")
    number = parts[1].astype(float).fillna(0.0)
    place = number.groupby([rows["step"].astype(str), parts[0]]).rank(method="dense")
    spent = rows.assign(bare=bare.groupby([parts[0], place]).transform("first"))
    totals = spent.groupby("bare")[[column, "size_bytes"]].sum()
    totals = totals.sort_values(column, ascending=False, kind="stable")
    whole = int(totals[column].sum())
    named = totals[totals[column] >= _NAMED * max(1, whole)].head(_MOST_NAMED)
    named = named if len(named) else totals.head(1)  # of sixteen alike one tells how large they are

    def told(name: str, ns: float, moved: float) -> str:
        if name in payloads:
            n = payloads[name] / 1e6
            return f"{name} {milliseconds(ns / steps)} for an operand of {n:.3g} MB"
        if moved:
            n = moved / steps / 1e6
            return f"{name} {milliseconds(ns / steps)} moving {n:.3g} MB"
        return f"{name} {milliseconds(ns / steps)}"

    return ", ".join(told(str(name), ns, moved) for name, ns, moved in named.itertuples())


def waiting(rows: pd.DataFrame) -> pd.DataFrame:
    """Return those of ``collective_times`` that wait for other ranks, with the share ``ratio``."""
    busy = rows["waiting_ns"] + rows["moving_ns"]
    ratio = (rows["waiting_ns"] / busy.where(busy > 0, np.nan)).fillna(0.0)
    return rows.assign(ratio=ratio)[ratio > FAST_SLOW]


def standing_still(rows: pd.DataFrame) -> pd.DataFrame:
    """Return those of ``collective_times`` that mostly do nothing, for ``still_ns``."""
    still = rows["idle_ns"] + rows["notify_ns"]
    stands = (still > _MOST_STILL * rows["elapse_ns"]) & (still > LEAST_STILL_NS)
    return rows.assign(still_ns=still)[stands]


def payload_bytes(recording: Recording) -> dict[str, int]:
    """Return how much each collective reduces or sends, by name, where the dump has its count."""
    rows = recording.signals.payloads
    return dict(zip(rows["name"].astype(str), rows["size_bytes"].tolist(), strict=True))


def slow_unaligned(rows: pd.DataFrame, recording: Recording) -> pd.Series[float]:
    """Return the GB/s that others reach, for those of ``transports`` that their size makes slow.

    An operand of 16,388,000 bytes, no multiple of 512, at 1.1 GB/s where the same operation of the
    same group on 13 or 67 MB reaches 17. Sizes that the dump does not have tell nothing.
    """
    names = rows["name"].astype(str).str.split("@").str[0]
    sizes = names.map(payload_bytes(recording)).fillna(0).to_numpy(np.float64)
    rates = rows["gb_per_s"].to_numpy(np.float64)
    keys = [names.str.extract(_OPERATION, expand=False).fillna(names), rows["group"].astype(str)]
    usual = np.zeros(len(rows))
    for at in rows.groupby([*keys, rows["transport"].astype(str)]).indices.values():
        aligned = at[(sizes[at] > 0) & (sizes[at] % ALIGNED_BYTES == 0) & (rates[at] > 0)]
        other = at[(sizes[at] % ALIGNED_BYTES != 0) & (rates[at] > 0)]
        for size in np.unique(sizes[other]).tolist():
            ratio = sizes[aligned] / size
            alike = aligned[(ratio >= 1 / _AS_LARGE) & (ratio <= _AS_LARGE)]
            reached = float(np.median(rates[alike])) if len(alike) else 0.0
            own = other[sizes[other] == size]
            usual[own] = np.where(rates[own] < _SLOWER * reached, reached, 0.0)
    import pandas as pd

    return pd.Series(usual[usual > 0], index=rows.index[usual > 0], dtype=np.float64)


def waiting_ratio(rows: pd.DataFrame) -> pd.Series[float]:
    """Return the share of waiting in what a collective does, 0 where it did nothing."""
    busy = rows["wait_ns"] + rows["transit_ns"]
    return (rows["wait_ns"] / busy.where(busy > 0, np.nan)).fillna(0.0)


BACKWARD_SHARE = 0.6
"""Of the computing time, where no kernel is known to be of the backward pass."""
_ONE_BUCKET = 0.25
"""Share of a reduction that is one collective which stays when it is cut into buckets."""


def hidden_behind_ns(moving_ns: float, window_ns: float, longest: float) -> float:
    """Return how much of some collectives hides behind the backward pass at most.

    Gradients are reduced while it goes on: not before its first layers are done, and those of the
    last ones behind it. ``longest`` is the share of the longest of them.
    """
    return (1 - (longest if longest < 1 else _ONE_BUCKET)) * min(moving_ns, window_ns)
