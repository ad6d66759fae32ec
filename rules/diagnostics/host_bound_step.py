"""The device waits because the host launches its kernels too late.

What: 1 % of the step or more is free, and most of that time lies in gaps whose next kernel was
launched only after the device had run dry.

Why it is slow on the NPU: kernels run one after the other in a queue that the host fills. Where
Python, the dispatcher and CANN take longer to launch a kernel than the kernel before takes to run,
the queue is empty and the device waits. Shorter kernels make it worse.

Evidence: Free of step_trace_time; for each gap between kernels, how much of it had passed when the
host launched the next kernel. On the time line the lines HostToDevice of such launches are nearly
vertical. What a loader, a value that the host waits for or a pause of the host explains is not counted. Late
launches must explain more than half of all other gaps. Where launches are not recorded, a
hundred gaps below 1 ms that are more than half of the idle time. Nothing is said where
ASCEND_LAUNCH_BLOCKING is set: that is blocking-launches.

Use instead: those of these that the run had not. ``TASK_QUEUE_ENABLE=2`` moves work off the thread
that launches (it needs more device memory, and has no effect under ASCEND_LAUNCH_BLOCKING=1 or with
just-in-time compilation).
``CPU_AFFINITY_CONF=2`` keeps the launching threads on their cores; it is ignored where threads are
pinned already, and threads of your own may get slower. Where collectives have streams of their own,
``PER_STREAM_QUEUE=1`` gives each stream a queue, but not together with fine core binding. Then
fewer launches: one for a whole graph of an inference whose shapes repeat, fused operators and
fused optimizers, a larger batch. Beside the program:
tcmalloc, the frequency governor, huge pages (not with a base page of 64 KiB), and builds of Python,
torch and torch_npu with LTO and PGO (torch and torch_npu by the same compiler).

Safety: settings only, the results stay the same. A profile with call stacks or Level2 lengthens
the host's part: compare with a run that is profiled without them before acting.

References: deep_troubleshooting.md and pipeline_opt.md of the FrameworkPTAdapter guide;
TASK_QUEUE_ENABLE and CPU_AFFINITY_CONF in the environment variable reference of torch_npu.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.quantities import format_count, milliseconds, percent
from npufix.rules.shared.recording.fusable import graph_mode
from npufix.rules.shared.recording.observing import free_ns, per_step, places, share
from npufix.rules.shared.recording.pauses import (
    find_pauses,
    measure_explained_ns,
)
from npufix.rules.shared.recording.run_settings import Setting, advice, find_recorded, lines_to_set

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording
    from npufix.rules.shared.recording.observing import Idle, Integers

MOSTLY = 0.5
"""Share of the gaps that late launches must explain."""
_QUEUE = Setting("TASK_QUEUE_ENABLE", "2")
_FINE_BINDING = Setting("CPU_AFFINITY_CONF", "2", lambda value: value.startswith("2"))
_COARSE_BINDING = Setting("CPU_AFFINITY_CONF", "1", lambda value: value[:1] in {"1", "2"})
_QUEUES = Setting("PER_STREAM_QUEUE", "1")
_BESIDE = (
    "cpupower frequency-set -g performance; "
    "echo always > /sys/kernel/mm/transparent_hugepage/enabled; "
    "Python, torch and torch_npu built with LTO and PGO"
)
_FEWER = "launch fewer kernels: fused operators, a fused optimizer, a larger batch"
_SHORT_NS = 1_000_000
_MANY = 100
"""Gaps shorter than that, and from how many per step on they are a habit of the host."""
_LEAST_SHARE = 0.01
_PLACE = ["path", "line", "function"]
_LATENCY_NS = 10_000
"""From a launch to the start of its kernel; what takes longer may wait for something else."""
_EARLIEST = 0.01
"""Not the very first of all delays: one wrong link must not move all launches."""


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation where late launches explain most of the free time."""
    free = free_ns(recording)
    if recording.environment.variables.get("ASCEND_LAUNCH_BLOCKING") == "1":
        return
    pauses = find_pauses(recording)
    idle = pauses.idle
    unknown = recording.kernels["launch_ns"].to_numpy()[idle.next_kernel] < 0
    if (idle.end_ns - idle.start_ns)[unknown].sum() > MOSTLY * idle.total_ns:
        yield from _by_gaps(recording, idle, free)
        return
    late = _late_ns(recording, idle)
    # What the host does behind the call that waited for a value may be its next launch.
    behind = idle.end_ns - idle.start_ns - measure_explained_ns(recording, idle, until="high")
    paused = int(np.minimum(pauses.idle_ns, behind.clip(min=0)).sum())
    if _held_ns(recording, idle, late, _LATENCY_NS).sum() <= MOSTLY * (idle.total_ns - paused):
        return
    held = _held_ns(recording, idle, late, None)
    waited = min(free, per_step(int(held.sum()), recording))
    if share(waited, recording) < _LEAST_SHARE:
        return
    rows = recording.kernels[_PLACE].iloc[idle.next_kernel[late > 0]]
    yield Observation(
        what=(
            f"free is {percent(share(free, recording))} of the step ({milliseconds(free)} of "
            f"{milliseconds(recording.step_ns)}); in {milliseconds(waited)} of it the device waits "
            "for a late launch"
        ),
        evidence=_evidence(recording, idle, late),
        cost_ns=waited,
        saving_ns=(0, waited),
        basis="at most the time in which the device had nothing to do",
        places=places(rows, held[late > 0], recording),
        hurries=_find_hurried(recording),
        is_idle=True,
        is_symptom=True,
        advice=_advice(recording),
    )


def _by_gaps(recording: Recording, idle: Idle, free: int) -> Iterator[Observation]:
    """Yield one observation where many short gaps are most of the idle time.

    A loader, a checkpoint or another rank leaves few long gaps; a host that is too slow leaves a
    short one before every other kernel.
    """
    gaps = idle.end_ns - idle.start_ns
    short = gaps < _SHORT_NS
    count = float(short.sum()) / max(1, recording.step_count)
    if count < _MANY or gaps[short].sum() <= MOSTLY * idle.total_ns:
        return
    waited = min(free, per_step(int(gaps[short].sum()), recording))
    if share(waited, recording) < _LEAST_SHARE:
        return
    rows = recording.kernels[_PLACE].iloc[idle.next_kernel[short]]
    yield Observation(
        what=(
            f"free is {percent(share(free, recording))} of the step ({milliseconds(free)} of "
            f"{milliseconds(recording.step_ns)}); {milliseconds(waited)} of it are "
            f"{format_count(count, 'short gap')} between kernels, as late launches leave them"
        ),
        evidence=(
            ("median gap", milliseconds(float(np.median(gaps[short])))),
            ("longest gap", milliseconds(gaps.max())),
        ),
        cost_ns=waited,
        saving_ns=(0, waited),
        basis="at most these gaps; launches were not recorded, so the host is likely, not proven",
        places=places(rows, gaps[short], recording),
        hurries=Labels(recording.kernels.index),
        is_idle=True,
        is_symptom=True,
        advice=_advice(recording),
    )


def _advice(recording: Recording) -> str:
    """Return the lines that set what the run had not, the cheapest first."""
    binding, queues = _FINE_BINDING, ""
    if _QUEUES.is_set(recording):
        # Fine binding and a queue for each stream exclude each other.
        binding = _COARSE_BINDING
    elif recording.kernels["communication"].any() and not _FINE_BINDING.is_set(recording):
        queues = f"or {_QUEUES.line} instead of fine core binding (not together)"
    preloaded = find_recorded(recording, "LD_PRELOAD") or ""
    allocator = "" if "tcmalloc" in preloaded else "LD_PRELOAD=libtcmalloc.so"
    slow = [name for name, on in _overhead(recording).items() if on]
    again = f"profile without {' and '.join(slow)} to see the real step" if slow else ""
    settings = lines_to_set(recording, _QUEUE, binding)
    return advice(again, graph_mode(recording), settings, queues, _FEWER, allocator, _BESIDE)


def _late_ns(recording: Recording, idle: Idle) -> Integers:
    """Return how much of each gap had passed when its next kernel was launched."""
    launched = _launches(recording)[idle.next_kernel]
    late = np.clip(launched - idle.start_ns, 0, _unexplained_ns(recording, idle))
    return np.where(launched >= 0, late, 0)


def _unexplained_ns(recording: Recording, idle: Idle) -> Integers:
    """Return what a loader or a value that is waited for explains of no gap: want of speed."""
    most = idle.end_ns - idle.start_ns - measure_explained_ns(recording, idle)
    most[find_pauses(recording).rows] = 0
    unexplained: Integers = most.clip(min=0)
    return unexplained


def _held_ns(recording: Recording, idle: Idle, late: Integers, most_ns: int | None) -> Integers:
    """Return how much shorter each gap would be, had its next kernel been launched in time.

    From a launch to its kernel's start it takes 7 µs, say: these would lie beside the kernel
    before as well. ``most_ns`` is how much of it counts, ``None`` what is usual here.
    """
    launched = _launches(recording)[idle.next_kernel]
    started = (idle.end_ns - launched).clip(min=0)
    usual = round(float(np.median(started[late > 0]))) if (late > 0).any() else 0
    usual = usual if most_ns is None else min(usual, most_ns)
    held = np.minimum(late + np.minimum(started, usual), _unexplained_ns(recording, idle))
    return np.where(late > 0, held, 0)


def _find_hurried(recording: Recording) -> Labels:
    """Return the kernels but those behind a pause of the host, which other findings are about."""
    pauses = find_pauses(recording)
    return Labels(
        np.delete(recording.kernels.index.to_numpy(), pauses.idle.next_kernel[pauses.rows])
    )


def _launches(recording: Recording) -> Integers:
    """Return when each kernel was launched, -1 if unknown, by the clock of the device.

    The clocks of host and device differ by up to 100 µs (HOST-LINES). No kernel starts before its
    launch: where that is what the clocks say, all launches are moved ahead by the difference.
    """
    launched = recording.kernels["launch_ns"].to_numpy()
    known = launched >= 0
    if not known.any():
        return launched
    delays = (recording.kernels["start_ns"].to_numpy() - launched)[known]
    ahead = min(0, round(float(np.quantile(delays, _EARLIEST))))
    return np.where(known, launched + ahead, launched)


def _evidence(recording: Recording, idle: Idle, late: Integers) -> tuple[tuple[str, str], ...]:
    gaps = idle.end_ns - idle.start_ns
    launched = _launches(recording)[idle.next_kernel]
    delays = (idle.end_ns - launched)[late > 0]
    kernels = len(recording.kernels) / max(1, recording.step_count)
    slow = [name for name, on in _overhead(recording).items() if on]
    facts = [
        ("launched late", f"{percent(late.sum() / gaps.sum())} of the time in gaps"),
        ("gaps before kernels", f"{len(gaps) / max(1, recording.step_count):.0f} per step"),
        ("median gap", milliseconds(float(np.median(gaps)))),
        ("longest gap", milliseconds(gaps.max())),
        ("launch to start after a late launch", f"median {milliseconds(float(np.median(delays)))}"),
        ("kernels", f"{kernels:.0f} per step"),
    ]
    if slow:
        facts.append(("lengthened by the profiler itself", ", ".join(slow)))
    return tuple(facts)


def _overhead(recording: Recording) -> dict[str, bool]:
    return {
        "with_stack": recording.environment.with_stack is True,
        "Level2": recording.environment.profiler_level == "Level2",
    }


RULE = Diagnostic(
    id="NPU401",
    name="host-bound-step",
    summary="kernels are launched too late, and the device waits for them",
    advice=(
        "export TASK_QUEUE_ENABLE=2 (no effect with ASCEND_LAUNCH_BLOCKING=1); "
        "export CPU_AFFINITY_CONF=2 (unless threads are pinned already); "
        "then launch fewer kernels: fused operators, a fused optimizer, a larger batch"
    ),
    check=check,
    gpu_advice=(
        "launch fewer kernels: torch.compile(mode='reduce-overhead') or CUDA graphs, "
        "torch.optim.AdamW(..., fused=True), a larger batch"
    ),
)
