"""The environment that a script of the shell gives to a program on NPUs."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence


@dataclass(frozen=True, slots=True)
class Setting:
    """A line of a file, counted from 1, and what stands there or above it afterwards."""

    line: int
    text: str
    """Whole lines, with their ends."""
    replaces: bool = True
    """Whether it takes the place of the line; else it goes above it."""


_FOR_NPU = re.compile(r"ascend|(?<![a-z])npus?(?![a-z])|hccl|\bcann\b", re.IGNORECASE)
_ASSIGNED = r"""(?:[A-Za-z_]\w*=(?:"[^"]*"|'[^']*'|\$\([^)]*\)|[^\s"'])*\s+)*"""
_LAUNCH = re.compile(
    rf"\s*{_ASSIGNED}(?:(?:nohup|exec|time|env)\s+{_ASSIGNED})*"
    r"(?:torchrun|accelerate\s+launch|deepspeed|msrun|python3?)\b(?P<rest>.*)",
    re.DOTALL,
)
_MODULE = re.compile(
    r"-m\s+(torch\.distributed\.(run|launch)|accelerate)|\b(torchrun|accelerate|deepspeed|msrun)\b"
)
_PROGRAM = re.compile(r"\b\w*(train|fine_?tune|sft|dpo|ppo|grpo|infer|main|run)\w*\.py\b")
_BESIDE = re.compile(r"\b\w*(convert|preprocess|download|export|install|setup|eval)\w*\.py\b")
_ELSEWHERE = re.compile(
    r"^\s*(?:source|\.)\s+(?!\S*(?:set_env|setenv|activate|bashrc|profile|conda)\S*)\S",
    re.MULTILINE,
)
"""A script of the project's own that is read: nobody knows what it sets."""
_WORKERS_OF_RAY = re.compile(r"\bray\s+(start|status|job|submit)\b")
"""Its processes have the environment of their node, not that of who submits."""
_BINDS = re.compile(r"\b(taskset|numactl)\b")
WANTED = {
    "TASK_QUEUE_ENABLE": "2",
    "CPU_AFFINITY_CONF": "1",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
    "COMBINED_ENABLE": "1",
}
"""Variables that the programs of Ascend set, by how often they do (98, 90, 46, 57 of 100)."""
SLOW = {
    "TASK_QUEUE_ENABLE": ("1", "2"),  # who writes 0 looks for an error, or met one
    "ASCEND_LAUNCH_BLOCKING": ("1", "0"),
    "ASCEND_SLOG_PRINT_TO_STDOUT": ("1", "0"),
    "ASCEND_GLOBAL_LOG_LEVEL": ("012", "3"),
    "ASCEND_GLOBAL_EVENT_ENABLE": ("1", "0"),
}
"""Values that make the host wait or work, and what to take instead."""
_GIVEN = re.compile(rf"^(\s*(?:export\s+)?)({'|'.join(SLOW)})=(['\"]?)(\d)\3(?=\s|;|$)")


def find_environment(lines: Sequence[str]) -> Iterator[Setting]:
    """Yield the variables that a script sets to a slow value, and those that it does not set."""
    code = [re.sub(r"(^|\s)#.*", r"\1", line.rstrip("\r\n")) for line in lines]
    text = "\n".join(code)
    starts = [number for number, line in _logical(code) if _is_launch(line)]
    if not starts or _FOR_NPU.search("".join(lines)) is None:
        return
    for number, line in enumerate(lines, 1):
        found = _GIVEN.match(line)
        if found and found[4] in SLOW[found[2]][0]:
            place = found.end(4) - 1
            yield Setting(
                number, line[:place] + SLOW[found[2]][1] + line[place + 1 :], replaces=True
            )
    if _ELSEWHERE.search(text) or _WORKERS_OF_RAY.search(text):
        return
    missing = [name for name in WANTED if re.search(rf"\b{name}\b", text) is None]
    if _BINDS.search(text):
        missing = [name for name in missing if name != "CPU_AFFINITY_CONF"]
    first = lines[starts[0] - 1]
    indent = first[: len(first) - len(first.lstrip())]
    end = "\r\n" if first.endswith("\r\n") else "\n"
    new = "".join(f"{indent}export {name}={WANTED[name]}{end}" for name in missing)
    if new:
        yield Setting(starts[0], new, replaces=False)


def _logical(code: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Yield commands that go over several lines as one, with the number of the first."""
    start, parts = 0, [""]
    for number, line in enumerate(code, 1):
        start = start or number
        parts.append(line.removesuffix("\\"))
        if not line.endswith("\\"):
            yield start, " ".join(parts).strip()
            start, parts = 0, [""]


def _is_launch(line: str) -> bool:
    """Tell whether a command starts training or inference."""
    found = _LAUNCH.match(line)
    if found is None or _BESIDE.search(line):
        return False
    return _MODULE.search(line) is not None or _PROGRAM.search(found["rest"]) is not None
