"""Numbers and sentences of a report, in one place so that all outputs say the same."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.reports.report import Finding, HotOperator, Saving, StepSplit


def milliseconds(ns: float) -> str:
    """Return a time in ms with three significant digits, in us below 0.1 ms."""
    if abs(ns) < 100_000:  # noqa: PLR2004 - 0.1 ms
        return f"{ns / 1e3:.3g} us" if abs(ns) < 99_950 else "0.1 ms"  # noqa: PLR2004 - rounding
    ms = ns / 1e6
    return f"{ms:,.0f} ms" if ms >= 100 else f"{ms:.3g} ms"  # noqa: PLR2004 - three digits


def headline(
    findings: Sequence[Finding],
    total: Saving | None,
    split: StepSplit | None,
    hot: Sequence[HotOperator],
    *,
    with_source: bool,
) -> str:
    """Return the answer in one sentence."""
    if total is None:
        files = len({f.path for f in findings})
        if not findings:
            return "No known slow pattern in this source."
        return f"{counted(len(findings), 'slow pattern')} in {counted(files, 'file')}."
    seen = [f for f in findings if f.device_ns]
    if with_source and seen:
        spent = sum(f.share for f in seen)
        step = f" of a {milliseconds(split.total_ns)} step" if split else " per step"
        gain = _gain(total)
        return (
            f"{counted(len(seen), 'finding')}, {min(spent, 1.0):.1%} of the step: about {gain} can"
            f" be saved{step}."
        )
    return _bottleneck(split, hot)


def _gain(total: Saving) -> str:
    low, high = milliseconds(total.low_ns), milliseconds(total.high_ns)
    return low if low == high else f"{low} to {high}"


def _bottleneck(split: StepSplit | None, hot: Sequence[HotOperator]) -> str:
    first = ""
    if hot:
        op = hot[0]
        where = f", asked for at {op.where}" if op.where else ""
        first = f"{op.type} takes {op.share:.1%} of the compute time{where}"
    if split is None or not split.total_ns:
        return f"{first}." if first else "The dump holds no kernels."
    shares = {
        "computing": split.computing_ns / split.total_ns,
        "waiting for communication": split.exposed_communication_ns / split.total_ns,
        "idle": split.free_ns / split.total_ns,
    }
    main, share = max(shares.items(), key=lambda item: item[1])
    text = f"The step of {milliseconds(split.total_ns)} is {share:.1%} {main}"
    return f"{text}; {first}." if first else f"{text}."


def counted(number: int, noun: str, plural: str = "") -> str:
    """Return ``1 file``, ``2 files``."""
    return f"{number:,} {noun if number == 1 else plural or noun + 's'}"


def plain(text: str) -> str:
    """Return text of a dump or a source without characters that steer a terminal."""
    return "".join(c if c.isprintable() or c == " " else "?" for c in text)


def signed(text: str, sign: str) -> list[str]:
    """Return the lines of a code snippet, each behind a sign, indentation reduced."""
    return [f"{sign} {line}" for line in textwrap.dedent(text).splitlines()]
