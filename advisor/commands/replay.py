"""``npufix replay``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress

if TYPE_CHECKING:
    from pathlib import Path


@click.command(
    epilog="""\b
Examples:
  npufix replay run1_ascend_pt --operator MatMulV3 -o bench.py
  npufix replay run1_ascend_pt --operator RmsNorm --top 1 -o bench.py
  npufix replay run1_ascend_pt --operator hcom_allReduce_ -o bench.py"""
)
@click.argument("dump", type=common.PATH)
@click.option("--operator", required=True, metavar="TYPE", help="The Type of the kernels to time.")
@click.option("-o", "--output", type=common.PATH, required=True, metavar="FILE",
              help="The program; it needs torch, not npufix.")  # fmt: skip
@click.option("--top", type=click.IntRange(min=1), default=5, show_default=True,
              help="How many different shapes, those first that take most time.")  # fmt: skip
@common.rank_option
def command(dump: Path, operator: str, output: Path, top: int, rank: int | None) -> int:
    """Write a small program that times an operator with its recorded shapes.

    It runs on an NPU, a GPU or the CPU, whatever there is, and times the operator beside other
    ways to compute the same; a collective, with torchrun, on as many ranks as there are.
    """
    from npufix.advisor.diagnose.ranks import read_dump
    from npufix.advisor.predict.timing.collectives import collective_program, is_collective
    from npufix.advisor.predict.timing.program import rules_about, timing_program
    from npufix.rules.registry import every_rule
    from npufix.rules.substitution import Substitution

    with progress("Reading the dump"):
        profile = read_dump(dump, rank).profile
    kernels, payloads = profile.kernels, profile.signals.payloads
    if is_collective(operator):
        names, each = payloads["name"].astype(str), payloads["size_bytes"].tolist()
        sizes = dict(zip(names, each, strict=True))
        output_files.write_file(output, collective_program(kernels, operator, top, sizes))
        return 0
    rules = [rule for rule in every_rule() if isinstance(rule, Substitution)]
    text = timing_program(kernels, operator, top, rules_about(operator, rules))
    output_files.write_file(output, text)
    return 0
