"""What a dump does not hold, what cannot be said without it, and the code that collects it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.profiling_parsers.profile import Profile

_LOW_LEVELS = frozenset({"Level0", "Level_none"})
_FREE_10 = 0.10
"""Share of a step that may be free (FREE-10); beyond it the cause is worth recording."""


@dataclass(frozen=True, slots=True)
class _Part:
    """Something a dump may hold."""

    name: str
    unknown: str
    """What cannot be said without it."""
    is_missing: Callable[[Profile], bool]
    formats: frozenset[str]


_ASCEND = frozenset({"ascend-text", "ascend-db", "trace", "msprof"})
_ANY = _ASCEND | {"kineto"}


def missing_parts(profile: Profile) -> list[tuple[str, str]]:
    """Return what was not recorded, and what cannot be said without it."""
    return [(part.name, part.unknown) for part in _missing(profile)]


def snippet(profile: Profile) -> str:
    """Return the code that records what is missing and all that was there, "" if nothing is."""
    missing = {part.name for part in _missing(profile)}
    if not missing:
        return ""
    return _for_torch(profile) if profile.format == "kineto" else _for_npu(profile, missing)


def _missing(profile: Profile) -> list[_Part]:
    return [part for part in _PARTS if profile.format in part.formats and part.is_missing(profile)]


def _has_compute(profile: Profile, name: str) -> bool:
    """Tell whether any compute kernel has a text there."""
    computes = ~profile.kernels["communication"].to_numpy(bool)
    return bool(((profile.kernels[name] != "").to_numpy() & computes).any())


def _no_lines(profile: Profile) -> bool:
    """Tell whether lines are missing that the profiler could have recorded; torch has functions."""
    if profile.format == "kineto":
        return not any(profile.stacks)
    return not profile.kernels["basis"].isin(["call-stack", "forward"]).any()


def _no_operator_shapes(profile: Profile) -> bool:
    """Tell whether operators lack shapes; where there are none, that is what is missing."""
    recorded = bool((profile.host_ops["input_dims"] != "").any())
    return not profile.host_ops.empty and not recorded


def _no_launches(profile: Profile) -> bool:
    return not (profile.kernels["launch_ns"] >= 0).any()


def _no_steps(profile: Profile) -> bool:
    return not profile.kernels["step"].notna().any()


def _no_collectives(profile: Profile) -> bool:
    communicates = bool(profile.kernels["communication"].any())
    return communicates and profile.signals.collectives.empty


def _is_idle_unexplained(profile: Profile) -> bool:
    """Tell whether the device is idle for long and no run of the collector was recorded."""
    steps = profile.steps
    free = float(steps["free_ns"].sum())
    whole = free + float((steps["computing_ns"] + steps["communication_exposed_ns"]).sum())
    return free > _FREE_10 * whole and profile.signals.gc.empty


_MEMORY = "device memory"
_GC = "garbage collector"

_PARTS = (
    _Part("host operators", "which line of the program asked for a kernel, and why the device "
          "waits", lambda p: p.host_ops.empty, _ANY),
    _Part("call stacks", "which line of the program asked for a kernel",
          _no_lines, _ANY),
    _Part("modules", "how much time each nn.Module takes", lambda p: not p.modules, _ANY),
    _Part("shapes of operators", "whether a change is safe for the shapes that the program uses",
          _no_operator_shapes, _ANY),
    _Part("shapes of kernels", "which shapes are slow, and what a change would save",
          lambda p: not _has_compute(p, "input_shapes"), _ASCEND),
    _Part("steps", "what one step takes, and how it splits into compute, communication and idle "
          "time", _no_steps, _ANY),
    _Part("launches", "whether the device waits because the host is late", _no_launches, _ANY),
    _Part("calls into CANN", "whether the host waits, compiles or allocates device memory",
          lambda p: p.signals.apis.empty, _ASCEND),
    _Part("AI core counters", "whether a kernel is bound by the cube, the vector unit or memory",
          lambda p: not _has_compute(p, "bound"), _ASCEND),
    _Part("collectives", "whether communication moves data or waits for another rank",
          _no_collectives, _ASCEND),
    _Part(_MEMORY, "how much device memory is in use, and who asked for it",
          lambda p: p.signals.memory.empty and p.signals.allocations.empty, _ASCEND),
    _Part(_GC, "whether Python's garbage collector makes the device wait (not recorded, or no "
          "run was long enough)", _is_idle_unexplained, _ASCEND),
)  # fmt: skip

_LOOP = """\
) as profiler:
    for batch in loader:
        train_one_step(batch)
        profiler.step()
"""


def _for_npu(profile: Profile, missing: set[str]) -> str:
    api = "torch_npu.profiler"
    level = profile.environment.profiler_level
    kept = level if level is not None and level not in _LOW_LEVELS else "Level1"
    gc = profile.signals.gc
    lines = [
        "import torch_npu",
        "",
        f"with {api}.profile(",
        "    activities=[",
        f"        {api}.ProfilerActivity.CPU,",
        f"        {api}.ProfilerActivity.NPU,",
        "    ],",
        f"    schedule={api}.schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=10),",
        f'    on_trace_ready={api}.tensorboard_trace_handler("./profile"),',
        "    record_shapes=True,",
        _stack_line(),
        "    with_modules=True,",
        *(["    profile_memory=True,"] if _MEMORY in missing or _has_memory(profile) else []),
        f"    experimental_config={api}._ExperimentalConfig(",
        f"        profiler_level={api}.ProfilerLevel.{kept},",
        f"        aic_metrics={api}.AiCMetrics.PipeUtilization,",
        *(["        l2_cache=True,"] if len(profile.signals.l2_cache) else []),
        *(["        gc_detect_threshold=1.0,  # ms"] if _GC in missing or len(gc) else []),
        *([f"        export_type={api}.ExportType.Db,"] if profile.format == "ascend-db" else []),
        "    ),",
    ]
    return "\n".join(lines) + "\n" + _LOOP


def _stack_line() -> str:
    return "    with_stack=True,  # for lines; slows the host: leave out to measure idle time"


def _has_memory(profile: Profile) -> bool:
    return len(profile.signals.memory) > 0 or len(profile.signals.allocations) > 0


def _for_torch(profile: Profile) -> str:
    api = "torch.profiler"
    lines = [
        "import torch",
        "",
        f"with {api}.profile(",
        f"    activities=[{api}.ProfilerActivity.CPU, {api}.ProfilerActivity.CUDA],",
        f"    schedule={api}.schedule(wait=1, warmup=1, active=2, repeat=1, skip_first=10),",
        f'    on_trace_ready={api}.tensorboard_trace_handler("./profile"),',
        "    record_shapes=True,",
        _stack_line(),
        *(["    profile_memory=True,"] if _has_memory(profile) else []),
    ]
    return "\n".join(lines) + "\n" + _LOOP
