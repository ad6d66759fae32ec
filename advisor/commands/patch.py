"""``npufix patch``."""

from __future__ import annotations

import shlex
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

import click

from npufix.advisor.commands import common
from npufix.advisor.commands import outputs as output_files
from npufix.advisor.console.loudness import colour_is_asked_for, is_quiet, wants_colour
from npufix.advisor.console.progress_line import progress
from npufix.advisor.console.speaking import say
from npufix.reports.data.sources import Sources
from npufix.reports.report import Report

if TYPE_CHECKING:
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.patch.patching import Patched
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.advisor.verify.settings import VerdictLines
    from npufix.rewriters.verification import Settings

NOTHING_WRITTEN = 3
_TOP = 10
"""How many hot operators the reports show, the page apart."""


@click.command(
    epilog="""\b
Examples:
  npufix patch run1_ascend_pt --source src > npufix.patch
  git apply --directory=src npufix.patch
  npufix patch run1_ascend_pt --source src --write
  npufix patch --source src --allow same-dtype -o npufix.patch"""
)
@click.argument("dump", type=common.PATH, required=False)
@click.option("--source", type=common.PATH, help="Folder of the program; always needed.")
@common.rank_option
@common.path_map_option
@click.option("-o", "--output", type=common.PATH, help="Write the patch to a file.")
@click.option("--write", is_flag=True, help="Change the source files.")
@click.option("--report", "reports", multiple=True, metavar="[FORMAT=]FILE",
              callback=output_files.parser_of(output_files.formats_of(Report)),
              help="Write a report with verdicts: .html, .md, ...; may be repeated.")  # fmt: skip
@common.rule_option
@common.everywhere_option
@common.allow_option
@common.assume_option
@click.option("--portable/--npu-only", default=None,
              help="Keep the old code for other devices. Default: unless the program imports"
              " torch_npu unconditionally.")  # fmt: skip
@click.option("--unverified", is_flag=True,
              help="Also write what could not be verified, or saves no launch.")  # fmt: skip
@common.on_option
@common.chip_option
@common.counterexample_option
@common.cache_option
@click.option("--json", "as_json", is_flag=True, help="Print the report with verdicts as JSON.")
@click.option(
    "-v", "--verbose", is_flag=True, help="Show the findings with all figures of the verdicts."
)
def command(  # noqa: PLR0913, PLR0917 - one parameter an option
    dump: Path | None,
    source: Path | None,
    rank: int | None,
    path_map: tuple[tuple[str, str], ...],
    output: Path | None,
    reports: tuple[tuple[str, Path], ...],
    rules: tuple[str, ...],
    allow: tuple[str, ...],
    assume: tuple[str, ...],
    on: str,
    chip: str | None,
    counterexample: Path | None,
    *,
    everywhere: bool,
    write: bool,
    portable: bool | None,
    unverified: bool,
    no_cache: bool,
    as_json: bool,
    verbose: bool,
) -> int:
    """Write the changes of a diagnosis as a unified diff, each verified in a child process.

    The diff goes to stdout unless -o, --write or --json is given; everything else goes to stderr.
    Without DUMP the source alone decides. Verification runs the functions of SOURCE. Where nothing
    is written there is no file, the first line says why, and the exit status is 3.
    """
    from npufix.advisor.diagnose.diagnosis import Options, diagnose
    from npufix.advisor.diagnose.source_scan import scan
    from npufix.advisor.patch.grouping import commands
    from npufix.advisor.patch.patching import PatchOptions, patch
    from npufix.advisor.project.source_tree import read_source_tree
    from npufix.advisor.verify.settings import VerdictLines, make_settings
    from npufix.rewriters.write.writing import write as write_files

    output = None if output == Path("-") else output  # as everywhere: stdout, where it goes anyway
    source = _look_at_source(source, dump)
    configuration = common.read_configuration(
        source, rules, allow, assume=assume, everywhere=everywhere
    )
    with progress("Reading the dump and the source"):
        tree = read_source_tree(source, configuration)
        top = output_files.rows_wanted(reports, _TOP)
        options = Options(top, rank, path_map, configuration)
        result = diagnose(dump, tree, options) if dump else scan(tree, to_write=True)
    common.warn([*result.warnings, *_absent(result, tree)])
    with progress("Verifying") as show, VerdictLines(kept=not no_cache, told=verbose) as lines:
        chip = chip or _chip(result.report)
        settings = make_settings(on, no_cache=no_cache, say=show, decided=lines, chip=chip)
        if result.found and not unverified:
            _check_ground(settings)
        patched = patch(result, tree, PatchOptions(portable, unverified, settings))
    if stopped := patched.interrupted:
        _leave_verified(patched, output, lines, elsewhere=write or as_json)
        raise stopped
    steps = commands(result.found, configuration.allow, result.report, _list_given(allow, assume))
    finished = _with_verdicts(result.report, patched, steps)  # the source last, if all went well
    if output is not None and patched.diff:
        common.write_text(output, patched.diff)
    if reports:
        _save_reports(reports, finished, result, tree)
    if counterexample is not None:
        common.write_scripts([f.verdict for f in patched.findings if f.verdict], counterexample)
    if write:
        common.warn(write_files(patched.changes, tree.root))
    if output is not None and not write and patched.diff:
        finished = _with_next_step(finished, output)
    _show(finished, patched, output=output, write=write, as_json=as_json, verbose=verbose)
    return common.exit_status(finished) or (0 if patched.diff else NOTHING_WRITTEN)


def _without_source(dump: Path | None) -> click.UsageError:
    """Say what is missing; ``npufix patch src``, as one says ``npufix scan src``, means this."""
    if dump is None or not any((*dump.glob("*.py"), *dump.glob("*/*.py"))):
        return click.UsageError("Missing option '--source'.")
    path = shlex.quote(str(dump))
    return click.UsageError(f"{dump}: it holds Python code: npufix patch --source {path}")


def _list_given(allow: tuple[str, ...], assume: tuple[str, ...]) -> list[str]:
    options = (("--allow", allow), ("--assume", assume))
    return [word for option, names in options for name in names for word in (option, name)]


def _absent(result: Diagnosis, tree: SourceTree) -> list[str]:
    """Say what will keep code from being verified, before that takes its time."""
    from npufix.advisor.patch.absent import find_absent
    from npufix.advisor.patch.patching import may_be_written

    allowed = tree.configuration.allow
    files = {item.file for item in result.found if may_be_written(item, allowed)}
    names = find_absent(files, tree.root)
    if not names:
        return []
    return [f"not installed here, stood in for as decorators and base classes: {', '.join(names)}"]


def _leave_verified(
    patched: Patched,
    output: Path | None,
    lines: VerdictLines,
    *,
    elsewhere: bool,
) -> None:
    """Leave the diff of what was verified before an interrupt; files of the program stay."""
    from npufix.rules.shared.quantities import format_count

    proven = format_count(len(patched.written), "verified change")
    if output is not None and patched.diff:
        common.write_text(output, patched.diff)
        say(f"npufix: {proven} in {output}; what was not verified yet is left out")
    elif elsewhere or not patched.diff:
        say("npufix: nothing is written")
    else:
        say(f"npufix: {proven} in the diff; what was not verified yet is left out")
        _print_diff(patched.diff)
    lines.say_kept()


def _save_reports(
    reports: output_files.Outputs, finished: Report, result: Diagnosis, tree: SourceTree
) -> None:
    from npufix.advisor.commands.run_outputs import DiagnosedRun

    run = DiagnosedRun(result, tree)
    made = output_files.Result(finished, Sources(tree.root), top=_TOP, run=run)
    output_files.save(reports, made)


def _check_ground(settings: Settings) -> None:
    """Refuse to begin where nothing can be verified."""
    from npufix.rewriters.verification.workers.backends import Backend, BackendError

    if settings.ground is Backend.NONE:
        raise BackendError(
            "no change can be verified: torch is not installed",
            "pip install torch, or take them as they are with --unverified",
        )


def _look_at_source(source: Path | None, dump: Path | None) -> Path:
    """Say what was taken back of an interrupted change, and that nothing can be verified.

    Raises:
        click.UsageError: there is no source; ``npufix patch src`` names one as a dump.

    """
    from npufix.rewriters.write.recovering import recover

    if source is None:
        raise _without_source(dump)
    for said in recover(source):
        say(f"npufix: {said}")
    if find_spec("torch") is None:
        say("npufix: torch is not installed; nothing can be verified: pip install npufix[verify]")
    return source


def _chip(report: Report) -> str | None:
    from npufix.rewriters.verification.virtual_npu import of_profile

    return of_profile(report.environment.chip) if report.environment else None


def _with_verdicts(report: Report, patched: Patched, steps: list[str]) -> Report:
    import msgspec

    judged = iter(patched.findings)
    findings = [next(judged) if found.kind == "code" else found for found in report.findings]
    return msgspec.structs.replace(report, findings=findings, next_steps=steps)


def _with_next_step(report: Report, output: Path) -> Report:
    import msgspec

    step = f"git {apply_words(Path(report.source))} {shlex.quote(str(output.resolve()))}"
    return msgspec.structs.replace(report, next_steps=[step, *report.next_steps])


def apply_words(source: Path) -> str:
    """Return how git applies a patch whose paths are those below the source folder.

    Below the top of a repository git takes them as paths from the top on, finds that none of them
    is in the folder, and silently does nothing.
    """
    folder = source if source.is_dir() else source.parent
    top, whole = Sources(folder).repository, folder.resolve()
    if whole == top or not (top / ".git").exists():
        return f"-C {shlex.quote(str(folder))} apply"
    below = shlex.quote(whole.relative_to(top).as_posix())
    at_top = Path.cwd() == top
    return f"{'' if at_top else f'-C {shlex.quote(str(top))} '}apply --directory={below}"


def _show(  # noqa: PLR0913 - what to show and where
    report: Report,
    patched: Patched,
    *,
    output: Path | None,
    write: bool,
    as_json: bool,
    verbose: bool,
) -> None:
    """Print the verdicts and, if it goes nowhere else, the diff."""
    from npufix.advisor.console.screen import make_console

    if as_json:
        from npufix.reports.report import to_json

        common.print_json(to_json(report))
        return
    from npufix.reports.terminal.findings import show_findings
    from npufix.reports.terminal.patch import show_patched
    from npufix.reports.terminal.report import show_problems

    if is_quiet():
        if output is None and not write:
            _print_diff(patched.diff)
        else:
            say(_summary(report, patched), err=False)
        return
    out = make_console(stderr=output is None and not write)
    out.print(_summary(report, patched) + "\n" * bool(report.findings), style="bold")
    if verbose:
        show_findings(report.findings, out, details=True)
    else:
        show_patched(report.findings, patched.written, out)
    if report.problems:
        out.print()
        show_problems(report.problems, out)
    if write and patched.changes:
        for change in patched.changes:
            out.print(f"Changed {change.relative}", soft_wrap=True)
        out.print("npufix undo takes it back.")
    for number, step in enumerate(report.next_steps if verbose else report.next_steps[:2]):
        out.print("\n" * (not number) + f"Next: {step}", soft_wrap=True)
    if output is None and not write:
        _print_diff(patched.diff)


def _summary(report: Report, patched: Patched) -> str:
    from npufix.rules.shared.quantities import format_count

    if not patched.findings:
        return "No known slow pattern in this source; nothing to patch."
    written, all_found = len(patched.written), format_count(len(patched.findings), "finding")
    proven = sum(
        f.verdict is not None and f.verdict.status == "equivalent" for f in patched.written
    )
    files = format_count(len(patched.changes), "file")
    if not written:
        return f"Nothing is written: {_why_none(report)}."
    if proven == written:
        return f"{written} of {all_found} in the patch, each proven equivalent; {files} changed."
    return f"{written} of {all_found} in the patch, {proven} proven equivalent; {files} changed."


def _why_none(report: Report) -> str:
    """Return why no change is written, and what would alter that."""
    waiting = unverified = refuted = rest = 0
    for finding in report.findings:
        status = finding.verdict.status if finding.verdict else ""
        is_open = any(condition.basis == "open" for condition in finding.conditions)
        refuted += status == "refuted"
        unverified += status == "not verified"
        waiting += not status and is_open and not finding.problem
        rest += status == "equivalent" or (not status and bool(finding.problem or not is_open))
    reasons = (
        (waiting, f"{waiting} wait for conditions: --allow or --assume vouches for them"),
        (unverified, f"{unverified} could not be verified: --unverified writes them"),
        (refuted, f"{refuted} are refuted"),
        (rest, f"{rest} save nothing or cannot be written"),
    )
    return "; ".join(text for count, text in reasons if count)


def _print_diff(diff: str) -> None:
    # Colours of a terminal in a file are no patch: FORCE_COLOR alone does not bring them there.
    from npufix.advisor.console.screen import make_console

    if colour_is_asked_for() or (sys.stdout.isatty() and wants_colour() is not False):
        from rich.syntax import Syntax

        text = diff.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
        make_console().print(Syntax(text, "diff", theme="ansi_dark", background_color="default"))
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(diff.encode("utf-8", "surrogateescape"))
