"""``npufix verify``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.progress_line import progress

if TYPE_CHECKING:
    from npufix.advisor.project.configuration import Configuration
    from npufix.advisor.verify.changes import Changes
    from npufix.advisor.verify.recorded_inputs import ChangeRecording

_EXIT = {"equivalent": 0, "refuted": 1, "not verified": 3}


@click.command(
    epilog="""\b
Examples:
  npufix verify                             all changes since the last commit
  npufix verify src/norm.py --against main
  npufix verify new_norm.py --against norm.py
  npufix verify --patch change.diff --counterexample wrong.py
  npufix verify --assume 'q: float[b, h, t, d]' --assume 'k: float[b, h, s, d]'
  git diff v1.0 v1.1 | npufix verify --patch -

\b
Exit status: 0 everything is equivalent, 1 something is refuted,
2 wrong usage or input, 3 something could not be verified."""
)
@click.argument("files", type=common.PATH, nargs=-1, metavar="[FILE]...")
@click.option("--patch", type=click.Path(path_type=Path, allow_dash=True), metavar="FILE.diff",
              help="A diff: what it changes in the files below --source, whether it is applied"
              " there or not; - for stdin.")  # fmt: skip
@click.option("--against", metavar="REV|FILE",
              help="What FILE is compared with: a revision of git, or another file."
              " Default: HEAD.")  # fmt: skip
@click.option("--source", type=common.PATH, default=Path(), show_default=True,
              help="Folder that the paths of the diff start from.")  # fmt: skip
@click.option("--dump", type=common.PATH, metavar="DUMP",
              help="A dump of the program, before the change or after it: its shapes and dtypes"
              " are tried first.")  # fmt: skip
@common.rank_option
@common.path_map_option
@common.allow_option
@click.option("--assume", multiple=True, metavar="'ARGUMENT: TYPE[SIZES]'",
              help="What callers pass, as in 'q: float[b, h, t, d]': equal names are equal sizes;"
              " bool, int, float or complex. May be repeated.")  # fmt: skip
@common.on_option
@common.chip_option
@common.counterexample_option
@common.cache_option
@click.option("--json", "as_json", is_flag=True, help="Print the verdicts as JSON.")
@click.option("-v", "--verbose", is_flag=True, help="Show all figures of the verdicts.")
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    files: tuple[Path, ...],
    patch: Path | None,
    against: str | None,
    source: Path,
    dump: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    allow: tuple[str, ...],
    assume: tuple[str, ...],
    on: str,
    chip: str | None,
    counterexample: Path | None,
    *,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Run every function that a change touches before and after it, and compare.

    FILE is a file or folder of a git repository: what it has changed since --against. Values,
    dtypes, gradients, effects on arguments and exceptions are compared on inputs that reach the
    changed lines, in a child process with limits on time and memory.
    """
    from npufix.advisor.verify.settings import VerdictLines, make_settings
    from npufix.advisor.verify.verifying import Given, check, report_changes

    if dump is None and (rank is not None or path_map):
        raise click.UsageError("--rank and --path-map say how to read a dump: give --dump as well")
    changes = _changes(files, patch, against, source)
    _check_assumptions(assume, changes)
    place = changes.files[0].path if changes.files else source
    configuration = common.read_configuration(place, (), allow)
    named = {path.resolve() for path in files}
    wanted = changes.without(lambda path: path not in named and configuration.excludes(path))
    common.warn([*_left_out(changes, wanted), *_name_by_itself(changes)])
    changes = wanted
    recording = None
    if dump is not None and changes.files:
        recording = _read_recording(dump, changes, configuration, rank, path_map)
        chip = chip or recording.chip_of_virtual_npu
    with progress("Verifying") as say, VerdictLines(kept=not no_cache) as lines:
        settings = make_settings(on, no_cache=no_cache, say=say, decided=lines, chip=chip)
        checked = check(changes, settings, Given(configuration.allow, recording, assume))
    found = report_changes(changes, checked)
    if counterexample is not None:
        common.write_scripts([f.verdict for f in found.functions], counterexample)
    outputs = output_files.with_json((), as_json=as_json)
    output_files.write(outputs, output_files.Result(found, details=verbose))
    if found.count("refuted") and not (allow or dump or patch):
        conditions = (
            "a change that npufix wrote holds under the conditions in the header of its patch: "
            "npufix verify --patch FILE --source FOLDER reads them, --dump proves them"
        )
        common.warn([conditions])
    return _EXIT[found.status]


def _check_assumptions(assume: tuple[str, ...], changes: Changes) -> None:
    """Read what the user says of arguments.

    Raises:
        click.UsageError: it is spelt wrong, or no changed file has such an argument.

    """
    from npufix.advisor.verify.definitions import has_argument
    from npufix.rewriters.verification.inputs.source import assumed_shapes

    for text in assume:
        try:
            name, *_ = assumed_shapes.parse_assumption(text)
        except assumed_shapes.AssumptionError as error:
            raise click.UsageError(f"--assume: {error}") from None
        if not any(has_argument(file.original, name) for file in changes.files):
            raise click.UsageError(f"--assume: no function that changes has an argument {name!r}")


def _left_out(changes: Changes, wanted: Changes) -> list[str]:
    from npufix.rules.shared.quantities import format_count

    count = len(changes.files) - len(wanted.files)
    excluded = format_count(count, "changed file")
    text = f"the configuration excludes {excluded}; name them to verify them"
    return [text] if count else []


def _name_by_itself(changes: Changes) -> list[str]:
    names = sorted(frozenset[str]().union(*changes.granted.values()))
    return [f"the header of the diff takes for granted: {', '.join(names)}"] if names else []


def _read_recording(
    dump: Path,
    changes: Changes,
    configuration: Configuration,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
) -> ChangeRecording:
    from npufix.advisor.verify.recorded_inputs import read_recording

    with progress("Reading the dump"):
        found = read_recording(dump, changes, configuration, rank=rank, path_map=path_map)
    common.warn(found.warnings)
    return found


def _changes(
    files: tuple[Path, ...], patch: Path | None, against: str | None, source: Path
) -> Changes:
    """Return the change that the user names.

    Raises:
        click.UsageError: the options contradict each other.

    """
    from npufix.advisor.verify import changes, git_changes

    if patch is not None:
        if files or against:
            raise click.UsageError("--patch names the whole change; leave FILE and --against out")
        if not source.is_dir():
            raise click.UsageError(f"--source {source} is no folder")
        if str(patch) == "-":
            return changes.from_patch(sys.stdin.buffer.read(), "the diff", source)
        return changes.from_patch(changes.read(patch), str(patch), source)
    if against is not None and Path(against).is_file():
        if len(files) != 1 or files[0].is_dir():
            raise click.UsageError(f"name one FILE to compare with {against}")
        return changes.from_files(Path(against), files[0])
    return git_changes.from_git(files or (Path(),), against or "HEAD")
