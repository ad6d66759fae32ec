"""CANN writes logs that nobody reads while the steps run.

What: the recorded environment sets ASCEND_GLOBAL_LOG_LEVEL below 3 (error), turns on event logs or
prints logs to the terminal.

Why it is slow on the NPU: each launch passes through several layers of CANN, and every one of them
formats and writes its messages on the thread that launches.

Evidence: the environment variables of profiler_metadata.json. A variable that is not recorded or
is empty is not set, which is as good as error level. What it costs is not in a dump.

Use instead: ``ASCEND_GLOBAL_LOG_LEVEL=3 ASCEND_GLOBAL_EVENT_ENABLE=0
ASCEND_SLOG_PRINT_TO_STDOUT=0``.

Safety: results stay the same; fewer messages when something fails.

References: env_config.md of the FrameworkPTAdapter guide; environment checks of msprof-analyze.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.rules.diagnostic import Diagnostic, Observation
from npufix.rules.shared.quantities import milliseconds, percent
from npufix.rules.shared.recording.observing import free_ns, share

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.diagnostic import Recording

_VERBOSE = {
    "ASCEND_GLOBAL_LOG_LEVEL": ("0", "1", "2"),
    "ASCEND_GLOBAL_EVENT_ENABLE": ("1",),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("1",),
}

_QUIET = {
    "ASCEND_GLOBAL_LOG_LEVEL": "ASCEND_GLOBAL_LOG_LEVEL=3",
    "ASCEND_GLOBAL_EVENT_ENABLE": "ASCEND_GLOBAL_EVENT_ENABLE=0",
    "ASCEND_SLOG_PRINT_TO_STDOUT": "ASCEND_SLOG_PRINT_TO_STDOUT=0",
}


def check(recording: Recording) -> Iterator[Observation]:
    """Yield one observation that names the settings."""
    recorded = recording.environment.variables
    loud = [name for name, values in _VERBOSE.items() if recorded.get(name, "").strip() in values]
    if not loud:
        return
    found = [f"{name}={recorded[name]}" for name in loud]
    free = free_ns(recording)
    yield Observation(
        what=f"the run was started with {', '.join(found)}",
        evidence=(("free", f"{milliseconds(free)} per step ({percent(share(free, recording))})"),),
        basis="a dump does not tell how long the host writes logs",
        is_idle=True,
        advice=f"export {' '.join(_QUIET[name] for name in loud)}",
    )


RULE = Diagnostic(
    id="NPU405",
    name="verbose-logging",
    summary="CANN writes logs below error level",
    advice=f"export {' '.join(_QUIET.values())}",
    check=check,
)
