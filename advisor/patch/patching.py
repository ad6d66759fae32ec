"""From findings to a patch: choose, verify, and write only what is proven."""

from __future__ import annotations

import ast
import warnings
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import msgspec

from npufix.advisor.patch.backends import needs_npu
from npufix.advisor.patch.header import write_header
from npufix.advisor.patch.profitability import Profitability, prices, weigh
from npufix.advisor.patch.verdicts import report_verdict
from npufix.advisor.project.applying import apply_in_order
from npufix.rewriters.edit.job import spell_path
from npufix.rewriters.edit.site import Basis, Site
from npufix.rewriters.verification import Job, RecordedCall, Settings, verify
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.write.patch import FileChange, unified_diff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from npufix.advisor.diagnose.findings import Located
    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.patch.profitability import Prices
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports import report
    from npufix.rules.substitution import Substitution

# Weights are floating point, so tensors of the same dtype are as well.
_SAME_DTYPE = "same-dtype"
_ACTIVATION = "activation-is-"
_INTERRUPTED = "interrupted before it was verified"


@dataclass(frozen=True, slots=True)
class PatchOptions:
    """What the user asked for."""

    portable: bool | None = None
    """Keep the old code for other devices; ``None``: unless the program needs an NPU anyway."""
    unverified: bool = False
    """Also write what could not be verified (never what was refuted), or saves no launch."""
    settings: Settings = field(default_factory=Settings)
    """How the changes are verified."""


@dataclass(frozen=True, slots=True)
class Patched:
    """The findings with verdicts, and the changes that belong into the patch."""

    findings: tuple[report.Finding, ...]
    written: tuple[report.Finding, ...]
    changes: tuple[FileChange, ...]
    diff: str
    """With a header that names what each change takes for granted."""
    interrupted: KeyboardInterrupt | None = None
    """What ended the verification before its end; then these are the changes proven so far."""


def patch(diagnosis: Diagnosis, tree: SourceTree, options: PatchOptions) -> Patched:
    """Verify the findings that may be written and compose the patch of the proven ones."""
    portable = options.portable
    if portable is None:
        portable = not needs_npu(tree)
    allowed = tree.configuration.allow
    chosen = [item for item in diagnosis.found if may_be_written(item, allowed)]
    runnable = [item for item in chosen if item.file.is_python]
    jobs = [_job(item, tree, diagnosis, portable=portable) for item in runnable]
    found, interrupted = _verify(jobs, options.settings)
    verdicts = {
        item: _as_shown(item.site.rule, verdict)
        for item, verdict in zip(runnable, found, strict=True)
        if verdict is not None
    }
    verdicts |= {item: _of_settings(item) for item in chosen if not item.file.is_python}
    weighed = {item: _weigh(item, verdict, diagnosis) for item, verdict in verdicts.items()}
    accepted = {Status.EQUIVALENT} | ({Status.NOT_VERIFIED} if options.unverified else set())
    proven = [i for i in chosen if i in verdicts and verdicts[i].status in accepted]
    idle = {item for item in proven if not weighed[item].pays}
    left_out = set() if options.unverified else idle
    taken = [item for item in proven if item not in left_out]
    changes, failed = _compose(taken, portable=portable)
    changes, broken, stopped = _leave_out_broken(changes, taken, tree, options.settings)
    failed |= broken
    failed |= {i: f"{weighed[i].why}; --unverified writes it" for i in left_out}
    failed |= {i: _INTERRUPTED for i in chosen if i not in verdicts}
    findings = [
        _attach_verdict(
            item,
            verdicts.get(item),
            Profitability()
            if item in left_out
            else weighed.get(item, Profitability()),  # else it is said twice
            failed.get(item, ""),
        )
        for item in diagnosis.found
    ]
    written = [
        finding
        for item, finding in zip(diagnosis.found, findings, strict=True)
        if item in proven and item not in failed
    ]
    header = write_header(diagnosis.report, written, changes, options.settings)
    diff = header + unified_diff(changes)
    return Patched(tuple(findings), tuple(written), tuple(changes), diff, interrupted or stopped)


def _verify(
    jobs: Sequence[Job], settings: Settings
) -> tuple[list[Verdict | None], KeyboardInterrupt | None]:
    """Return the verdicts; after an interrupt those that there are, and what has interrupted."""
    known: dict[int, Verdict] = {}

    def decided(job: Job, verdict: Verdict, total: int) -> None:
        known[id(job)] = verdict
        settings.decided(job, verdict, total)

    try:
        return list(verify(jobs, replace(settings, decided=decided))), None
    except KeyboardInterrupt as stopped:
        return [known.get(id(job)) for job in jobs], stopped


def _as_shown(rule: Substitution, verdict: Verdict) -> Verdict:
    """Return a verdict that claims no more than a run can show of what a rule is about."""
    if not rule.unseen or verdict.status is not Status.EQUIVALENT:
        return verdict
    return replace(verdict, status=Status.NOT_VERIFIED, reason=rule.unseen)


def _of_settings(item: Located) -> Verdict:
    """Return the verdict on a change of a script or a configuration, which nothing here runs."""
    site = item.site
    return Verdict(Status.NOT_VERIFIED, "", item.file.relative, site.rule.unseen, on="none")


def may_be_written(item: Located, allowed: frozenset[str]) -> bool:
    """Tell whether a change is one to verify: nothing about it is open but what is allowed."""
    site = item.site
    names = {condition.name for condition in site.open_conditions}
    return site.rewrite is not None and not site.rule.advice and names <= allowed


def _job(item: Located, tree: SourceTree, diagnosis: Diagnosis, *, portable: bool) -> Job:
    site, file = item.site, item.file
    if site.rewrite is None:
        raise ValueError(site)
    recorded: list[RecordedCall] = []
    if diagnosis.evidence is not None:
        calls = diagnosis.evidence.recorded(file.relative)
        first, last = site.function_lines
        for line in sorted(line for line in calls if first <= line <= last):
            recorded += calls[line]
    return Job(
        path=spell_path(file.path.resolve()),
        root=spell_path(tree.root.resolve()),
        original=file.text,
        patched=site.rewrite.direct,
        portable=site.rewrite.portable if portable and _is_guarded(site) else "",
        qualname=site.function,
        lines_original=(site.line,),
        lines_patched=(site.rewrite.line,),
        recorded=tuple(recorded),
        torch_npu_version=diagnosis.torch_npu,
        floating=site.rule.table == "fusion"
        or site.rule.floats_only
        or any(p.condition.name == _SAME_DTYPE for p in site.proofs),
        probes=(site.rewrite.probe,) if site.rewrite.probe else (),
        vouched=list_assumed_conditions(site),
        known=site.proven_names,
        inference=any(p.condition.excludes_gradients for p in site.proofs),
        alone=True,
    )


def list_assumed_conditions(site: Site) -> tuple[str, ...]:
    """Return the conditions that the verifier has to take for granted.

    Those that the user vouches for or the dump shows, of the calls in it, and which activation a
    configuration selects: the verifier makes up another one.
    """
    return tuple(
        proof.condition.meaning or proof.condition.name
        for proof in site.proofs
        if proof.basis in {Basis.OPEN, Basis.ASSUMED, Basis.PROFILE}
        or proof.condition.name.startswith(_ACTIVATION)
    )


def _compose(
    proven: Sequence[Located], *, portable: bool
) -> tuple[list[FileChange], dict[Located, str]]:
    """Apply the proven changes of each file one after the other."""
    by_file: dict[str, list[Located]] = {}
    for item in proven:
        by_file.setdefault(item.file.relative, []).append(item)
    changes: list[FileChange] = []
    failed: dict[Located, str] = {}
    for relative, items in sorted(by_file.items()):
        file = items[0].file
        text, in_the_way = apply_in_order(
            file.text,
            [item.site for item in items],
            file.neighbour,
            lambda _site, _same, new: new.portable if portable else new.direct,
            file.line_width,
        )
        problem = "another change in the same function is in the way; run npufix again"
        failed |= {item: problem for item in items if item.site in in_the_way}
        if relative.endswith(".py") and not _compiles(text):
            failed |= dict.fromkeys(items, "the file with all its changes is not valid Python")
        elif text != file.text:
            changes.append(FileChange(file.path, relative, file.data, file.encode(text)))
    return changes, failed


def _leave_out_broken(
    changes: Sequence[FileChange], proven: Sequence[Located], tree: SourceTree, settings: Settings
) -> tuple[list[FileChange], dict[Located, str], KeyboardInterrupt | None]:
    """Leave out the files that cannot be imported with all their changes, as they could before.

    Each change was verified alone, and mostly without the rest of its file. After an interrupt
    those are left out too of which nothing is known yet.
    """
    files = {item.file.path: item.file for item in proven}
    asked = [c for c in changes if c.relative.endswith(".py") and _differs_on_import(c)]
    jobs = [
        Job(
            spell_path(c.path.resolve()),
            spell_path(tree.root.resolve()),
            files[c.path].text,
            c.after.decode(files[c.path].encoding),
            qualname="",
            lines_original=(),
            lines_patched=(),
        )
        for c in asked
    ]
    silent = replace(settings, progress=lambda *_: None, decided=lambda *_: None)
    found, stopped = _verify(jobs, silent)
    broken = {
        c.path: f"the file with all its changes cannot be imported: {verdict.reason}"
        if verdict
        else _INTERRUPTED
        for c, verdict in zip(asked, found, strict=True)
        if verdict is None or verdict.status is Status.REFUTED
    }
    failed = {item: broken[item.file.path] for item in proven if item.file.path in broken}
    return [c for c in changes if c.path not in broken], failed, stopped


def _differs_on_import(change: FileChange) -> bool:
    """Tell whether more differs than what functions do when they are called."""
    return _list_imported(change.before) != _list_imported(change.after)


def _list_imported(data: bytes) -> str:
    """Return the code of a file without the bodies of its functions."""
    module = ast.parse(data)
    for node in ast.walk(module):
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)):
            node.body = []
    return ast.dump(module)


def _compiles(text: str) -> bool:
    """Tell whether Python takes a whole file: imports of ``__future__`` come first, for one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of the user's own strings, not of a change
            compile(text, "", "exec", dont_inherit=True)
    except (SyntaxError, ValueError, RecursionError):
        return False
    return True


def _is_guarded(site: Site) -> bool:
    return site.rewrite is not None and site.rewrite.portable != site.rewrite.direct


def _weigh(item: Located, verdict: Verdict, diagnosis: Diagnosis) -> Profitability:
    """Decide whether a change pays, by the times of the dump if there is one."""

    def known() -> Prices | None:
        evidence = diagnosis.evidence
        return None if evidence is None else prices(evidence, item.file.relative, item.site)

    return weigh(verdict, item.site.rule, known)


def _attach_verdict(
    item: Located, verdict: Verdict | None, weighed: Profitability, problem: str
) -> report.Finding:
    """Return the finding with its verdict and its own diff."""
    finding, site = item.finding, item.site
    diff = ""
    if site.rewrite is not None:
        after = item.file.encode(site.rewrite.direct)
        change = FileChange(item.file.path, item.file.relative, item.file.data, after)
        diff = unified_diff([change])
    judged = None if verdict is None else report_verdict(verdict, weighed.why)
    return msgspec.structs.replace(
        finding, diff=diff, verdict=judged, problem=problem or finding.problem
    )
