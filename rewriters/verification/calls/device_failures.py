"""What can go wrong with a device, whatever the code does: in words, with a remedy.

The numbers are those of ``aclError``, as the manual of CANN lists them.
"""

from __future__ import annotations

import re
from typing import NamedTuple


class Failure(NamedTuple):
    """A kind of failure."""

    pattern: re.Pattern[str]
    what: str
    remedy: str
    breaks: bool = True
    """Whether nothing runs in the process afterwards."""

    def __str__(self) -> str:
        return f"{self.what}; {self.remedy}"


def _failure(pattern: str, what: str, remedy: str, *, breaks: bool = True) -> Failure:
    return Failure(re.compile(pattern, re.IGNORECASE), what, remedy, breaks)


_LOGS = "the logs of CANN say more (ASCEND_PROCESS_LOG_PATH, default ~/ascend/log)"
_OTHER = "choose another with ASCEND_RT_VISIBLE_DEVICES; npu-smi info shows who uses which"
_FAILURES = (
    _failure(
        r"NPU out of memory|\b207001\b|\bEL0004\b",
        "the memory of the device is full",
        _OTHER,
        breaks=False,
    ),
    _failure(
        r"\b5070(14|15|16|34|35|36|42|43)\b|(aicore|vector core) (trap )?(exception|timeout)",
        "a kernel crashed on the device (AI Core exception)",
        _LOGS,
    ),
    _failure(r"\b50701[78]\b|aicpu (exception|timeout)", "an AI CPU kernel crashed", _LOGS),
    _failure(
        r"\b20700[4-8]\b|\b207012\b|\b107001\b|no available device|Invalid device id",
        "the device is busy, or not to be had for this user",
        _OTHER,
    ),
    _failure(
        r"\b507(000|001|008|010|012|033|053|054|899)\b|UCE ERROR|FORCE STOP|driver|\bdrv",
        "the driver or the runtime of the device fails",
        f"npu-smi info shows its health; {_LOGS}",
    ),
)


def find_failure(error: str) -> Failure | None:
    """Return what an error message says about the device, if that is what it is about."""
    return next((known for known in _FAILURES if known.pattern.search(error)), None)
