"""``npufix run``."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.console import stopping
from npufix.advisor.console.loudness import is_quiet

if TYPE_CHECKING:
    from pathlib import Path


class _Program(click.Command):
    """What stands behind the name of the script belongs to the script."""

    allow_interspersed_args = False


@click.command(
    cls=_Program,
    epilog="""\b
Examples:
  npufix run train.py --epochs 3
  npufix run --disable use_fused_rope train.py
  npufix run --config demo.yaml train.py
  npufix run -m package.train
  torchrun --nproc_per_node 8 --no-python npufix run train.py

\b
Exit status: that of the program; 2 if it could not be started.""",
)
@click.argument("program", metavar="SCRIPT")
@click.argument("arguments", nargs=-1, type=click.UNPROCESSED, metavar="[ARGUMENT]...")
@click.option("-m", "as_module", is_flag=True, help="SCRIPT is the name of a module.")
@common.rule_option
@click.option("--disable", multiple=True, metavar="NAME", callback=common.split,
              help="A rule or a switch (use_fused_rope) that is not to be used; may be"
              " repeated.")  # fmt: skip
@click.option("--allow", multiple=True, metavar="[RULE:]CONDITION", callback=common.split,
              help="Vouch for a condition that is not proven; may be repeated.")  # fmt: skip
@click.option("--config", type=common.PATH, metavar="FILE",
              help="A YAML file with the same switches: use_fused_rope: false.")  # fmt: skip
@click.option("--on", type=click.Choice(["auto", "npu", "virtual-npu"]), default="auto",
              show_default=True, help="auto: without an NPU nothing is changed.")  # fmt: skip
@common.chip_option
@click.option("--verify", is_flag=True, help="Replace only what is proven equivalent here.")
@click.option("--measure", type=click.IntRange(min=1), metavar="STEPS",
              help="Run that many steps with the old code and as many with the new,"
              " and compare.")  # fmt: skip
@click.option("--json", "json_file", type=common.PATH, metavar="FILE",
              help="Write what was done as JSON.")  # fmt: skip
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    program: str,
    arguments: tuple[str, ...],
    rules: tuple[str, ...],
    disable: tuple[str, ...],
    allow: tuple[str, ...],
    config: Path | None,
    on: str,
    chip: str | None,
    measure: int | None,
    json_file: Path | None,
    *,
    as_module: bool,
    verify: bool,
) -> int:
    """Run a program with the changes of the rules in memory; nothing on disk changes.

    As `python SCRIPT ARGUMENT...` would run it: modules are changed when they are imported, and
    the script itself. Tracebacks and debuggers show the files as they are. At the end stderr says
    what was replaced, what was not and why.
    """
    from npufix.advisor.runtime.process.settings_file import read
    from npufix.advisor.runtime.process.switches import Switches, from_file
    from npufix.advisor.runtime.program import RunRequest, run

    stopping.end()
    said = Switches() if config is None else from_file(read(config), str(config))
    said = said.merged(Switches(rules, disable, allow))
    wanted = RunRequest(
        program,
        arguments,
        said,
        as_module=as_module,
        on=on,
        chip=chip or "A2",
        verify=verify,
        steps=measure,
        json_file=json_file,
        quiet=is_quiet(),
    )
    return run(wanted)
