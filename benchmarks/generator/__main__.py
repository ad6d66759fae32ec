"""The command: ``python -m benchmarks.generator OUT --kernels 1000 --format both``."""

from __future__ import annotations

import argparse
from pathlib import Path

from benchmarks.generator.dump import TEXT_FILES, write_ranks
from benchmarks.generator.parameters import VERSIONS, Parameters
from benchmarks.generator.ranks import FAULTS, fault

_LINE_ENDS = {"crlf": "\r\n", "lf": "\n"}


def _options() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser("python -m benchmarks.generator", description=__doc__)
    add = parser.add_argument
    add("out", type=Path, help="folder below which the dumps are written, one per rank")
    add("--format", choices=("text", "db", "both"), default="text")
    add("--only", choices=TEXT_FILES, action="append", default=[], help="files of the text export")
    add("--kernels", type=int, default=Parameters.kernels, help="rows, over all steps of a rank")
    add("--steps", type=int, default=Parameters.steps)
    add("--ranks", type=int, default=Parameters.ranks)
    add("--devices", type=int, default=Parameters.devices)
    add("--level", type=int, choices=(0, 1, 2), default=Parameters.level)
    add("--version", choices=VERSIONS, default=Parameters.version)
    add("--variants", type=int, default=Parameters.variants, help="different shapes per layer")
    add("--host-events", type=int, default=0, help="further Python functions per launch (230 B)")
    add("--outlier", type=int, default=-1, help="index of a step that is much slower")
    add("--gap-ns", type=int, default=Parameters.gap_ns, help="idle time before each kernel")
    add("--line-end", choices=tuple(_LINE_ENDS), default="crlf")
    add("--seed", type=int, default=0)
    for name in ("schedule", "stacks", "modules", "shapes", "pmu", "communication", "warmup"):
        add(f"--no-{name}", action="store_false", dest=name)
    add("--tp", type=int, default=1, help="ranks of a tensor parallel group")
    add("--pp", type=int, default=1, help="stages of the pipeline")
    add("--fault", action="append", default=[], help="; ".join(FAULTS.values()))
    add("--truth", action="store_true", help="write truth.json: what a reader must find")
    return parser


def main() -> None:
    """Write the dumps and print where they are."""
    parser = _options()
    chosen = vars(parser.parse_args())
    folder, export, only = chosen.pop("out"), chosen.pop("format"), chosen.pop("only")
    with_truth, line_end = chosen.pop("truth"), _LINE_ENDS[chosen.pop("line_end")]
    try:
        faults = tuple(fault(text) for text in chosen.pop("fault"))
        parameters = Parameters(**chosen, faults=faults, line_end=line_end)
    except ValueError as error:
        parser.error(str(error))
    for dump in write_ranks(parameters, folder, export, only=only, with_truth=with_truth):
        print(dump)


if __name__ == "__main__":
    main()
