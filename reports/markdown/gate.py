"""The gate as a comment on a pull request: the verdict first, then only what changed.

The first line is a marker that nobody sees: by it CI finds the comment to update.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.reports import language
from npufix.reports.markdown.report import code, text
from npufix.reports.wording.gate import (
    HEADER,
    acceptance,
    against,
    list_changed,
    list_unchanged,
    over_time,
    row,
    sensitivity,
    verdict_line,
    word_made,
    word_saving,
)
from npufix.reports.wording.report import environment_text
from npufix.rules.shared.quantities import format_count, milliseconds

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.reports.gate_report import GatedMetric, GateReport
    from npufix.reports.report import Finding

MARKER = "<!-- npufix:gate -->"
LONGEST_COMMENT = 65_536
"""What GitHub takes as a comment; counted in bytes, which is on the safe side."""
_CUT = "\n*Cut here: {} left out. The log of the job and `npufix {} -v` show everything.*\n"
_BARS = 40
_ROOM = 400
"""For the last line."""


def to_comment(gated: GateReport, limit: int = LONGEST_COMMENT) -> str:
    """Return the gate as Markdown of at most ``limit`` bytes; whole blocks are left out."""
    english = [f"{MARKER}\n### {text(verdict_line(gated))}\n", *_blocks(gated)]
    blocks = ["\n".join(language.markdown(block.split("\n"))) for block in english]
    return fitting(blocks, limit, "gate" if gated.runs else "scan")


def fitting(blocks: Sequence[str], limit: int, command: str) -> str:
    """Return as many blocks as fit, and a pointer to the rest."""
    made = ""
    size = 0
    for number, block in enumerate(blocks):
        length = len(block.encode("utf-8", "replace")) + 1
        last = number == len(blocks) - 1
        if size + length > limit - (0 if last else _ROOM):
            left = format_count(len(blocks) - number, "block")
            return made + _CUT.format(left, command)
        made += block + "\n"
        size += length
    return made


def _blocks(gated: GateReport) -> Iterator[str]:
    if said := against(gated):
        yield f"{text(said)}\n"
    if reasons := [r for r in gated.reasons if r != gated.headline]:
        yield "".join(f"- {text(reason)}\n" for reason in reasons)
    shown = list_changed(gated.metrics)
    if shown:
        yield _table(shown)
    if said := sensitivity(gated.metrics):
        yield f"{text(said)}\n"
    if past := over_time(gated.metrics, _BARS):
        lines = [f"- {code(name)} `{bars}` {text(said)}" for name, bars, said in past]
        yield "**Over time**\n\n" + "\n".join(lines) + "\n"
    if gated.explanation:
        yield "**Why**\n\n" + "".join(f"- {text(line)}\n" for line in gated.explanation)
    if said := word_made(gated.made):
        yield f"{text(said)}\n"
    if gated.new_findings:
        yield f"**{format_count(len(gated.new_findings), 'new finding')}**\n"
    yield from map(_finding, gated.new_findings)
    yield ""  # ends the list
    yield from _fold(gated)
    yield from _how_to(gated)


def _table(metrics: Sequence[GatedMetric]) -> str:
    head = f"| {' | '.join(HEADER)} |\n|---|---:|---:|---:|---:|---|\n"
    return head + "".join(f"| {' | '.join(map(text, row(m)))} |\n" for m in metrics)


def _finding(finding: Finding) -> str:
    place = f" at {code(finding.place)}" if finding.place else ""
    worth = f": **{word_saving(finding)}**" if finding.saving else ""
    head = f"- {finding.rule}{place}, {text(finding.summary)}, {finding.safety}{worth}"
    if finding.device_ns:
        head += f" of {milliseconds(finding.device_ns)} per step"
    lines = [head]
    if finding.replacement and not finding.problem:
        wanted = [code(c.name) for c in finding.conditions if c.basis == "open"]
        only = f" (if {', '.join(wanted)})" if wanted else ""
        lines.append(f"  {_snippet(finding.code)} → {_snippet(finding.replacement)}{only}")
    elif finding.what or finding.advice:
        lines += [f"  {text(t)}  " for t in (finding.what, *finding.advice.splitlines()) if t]
    elif finding.problem:
        lines.append(f"  not written by npufix: {text(finding.problem)}")
    return "\n".join(lines)


def _snippet(source: str) -> str:
    return code("; ".join(" ".join(line.split()) for line in source.splitlines() if line.strip()))


def _fold(gated: GateReport) -> Iterator[str]:
    """Yield what is seldom read, folded away."""
    if rest := list_unchanged(gated.metrics):
        yield _details(f"{format_count(len(rest), 'metric')} without a change", _table(rest))
    if gated.accepted_findings:
        lines = [f"- {f.rule} {code(f.place) if f.place else ''}" for f in gated.accepted_findings]
        yield _details(format_count(len(lines), "accepted finding"), "\n".join(lines) + "\n")
    if gated.gone:
        lines = [f"- {text(line)}" for line in gated.gone]
        yield _details(f"{format_count(len(lines), 'finding')} gone", "\n".join(lines) + "\n")
    if gated.problems:
        lines = [f"- {code(p.where)}: {text(p.what)} — {text(p.remedy)}" for p in gated.problems]
        title = "Partial" if any(problem.damaged for problem in gated.problems) else "Notes"
        yield f"**{title}**\n\n" + "\n".join(lines) + "\n"


def _details(title: str, body: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{body}\n</details>\n"


def _how_to(gated: GateReport) -> Iterator[str]:
    """Yield how to take what was found into the baseline, and where it was measured."""
    lines = []
    for step in gated.next_steps:
        lines += ["", "```sh", step.replace("```", ""), "```"]
    if accept := acceptance(gated):
        lines += ["", "or accept it for a while in `pyproject.toml`:", "", "```toml"]
        lines += [accept.replace("```", ""), "```"]
    if lines:
        yield _details("What to do next", "\n".join(lines) + "\n")
    known = environment_text(gated.environment) if gated.environment else ""
    if gated.environment and gated.environment.simulated:
        known = f"{known}, simulated: {gated.environment.simulated}".lstrip(", ")
    yield f"<sub>{text(', '.join(filter(None, (gated.tool, known))))}</sub>\n"
