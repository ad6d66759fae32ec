"""Joins the places in the source with what the profile measured there."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from npufix.advisor.diagnose.folding import fold
from npufix.advisor.evidence.change import Change
from npufix.advisor.evidence.estimate import Calibration, NewKernels, estimate_saving
from npufix.advisor.evidence.item import Item, make_finding, rank_items
from npufix.advisor.project.callers import Callers, Mention
from npufix.advisor.project.cold_files import folders_of_gpus, is_cold, is_test
from npufix.advisor.project.known_names import rule_names
from npufix.advisor.project.scanning import Search
from npufix.advisor.project.stored import Store
from npufix.advisor.roofline.products import GRADIENT
from npufix.advisor.roofline.work import work_of
from npufix.profiling_parsers.tables.columns import find_rows_with
from npufix.reports import report
from npufix.reports.code_digest import digest, normal_form
from npufix.rewriters.edit.loops.advice.ragged import ADVICE
from npufix.rewriters.edit.loops.advice.rows import BY_HAND
from npufix.rewriters.edit.loops.statements import EFFECT
from npufix.rewriters.edit.validation import IN_BETWEEN
from npufix.rewriters.facts.occasions import Occasion
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rewriters.write.user_folders import private_cache_folder
from npufix.rules.shared.labels import Labels
from npufix.rules.shared.recording.recorded_cells import dtype_name, tensor_bytes
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    import pandas as pd
    from numpy.typing import NDArray

    from npufix.advisor.evidence.kernel_times import MeasuredKernels
    from npufix.advisor.evidence.lines import Evidence
    from npufix.advisor.project.source_tree import SourceFile, SourceTree
    from npufix.rewriters.edit.site import Site
    from npufix.rewriters.match.recorded_call import RecordedCall
    from npufix.rules.substitution import Substitution


@dataclass(frozen=True, eq=False, slots=True, kw_only=True)
class Located(Item):
    """A site with its file and its finding."""

    file: SourceFile
    site: Site

    def with_places(self, places: Sequence[report.Place]) -> Located:
        """Return this with the other places that it speaks for."""
        more = msgspec.structs.replace(self.finding, places=list(places))
        return replace(self, finding=more)


@dataclass(frozen=True, slots=True)
class Findings:
    """What a source tree holds, what went wrong, and what the user should know beside it."""

    found: list[Located]
    problems: list[report.Problem]
    warnings: list[str]
    left_out: int = 0
    """How many are in code that no step runs, and are not shown."""


@dataclass(frozen=True, slots=True)
class Measured:
    """What turns kernels at a place into time per step and an estimate."""

    evidence: Evidence
    calibration: Calibration
    step_ns: int
    """Length of the average step, or of the recording per step."""
    kernel_times: MeasuredKernels
    proves: bool
    """Whether the source is the one that was profiled, so that records count as proof."""


def locate(  # noqa: PLR0913 - what is searched, and for whom
    tree: SourceTree,
    rules: Sequence[Substitution],
    measured: Measured | None,
    *,
    with_text: bool = True,
    cache: bool = False,
    to_write: bool = False,
    to_compare: bool = False,
) -> Findings:
    """Return every finding of a source tree, the most rewarding first, and what went wrong.

    Without ``with_text`` the sites are for a report only: no patch can be made of them. With
    ``cache`` files are not searched again that were searched before. Where it is ``to_write``, what
    is to be changed in several files is a finding in each; ``to_compare`` as in ``fold``.
    """
    found: list[Located] = []
    problems: list[report.Problem] = []
    warnings: list[str] = []

    def recorded(relative: str) -> Mapping[int, Sequence[RecordedCall]] | None:
        proves = measured is not None and measured.proves
        return measured.evidence.recorded(relative) if measured and proves else None

    if measured is None:  # nobody could say that they are worth it
        named = bool(tree.configuration.select)
        rules = [r for r in rules if not r.launches_together and (named or not r.measured_only)]
    everything = measured is not None or tree.configuration.everywhere
    left_out = 0
    store = Store(private_cache_folder("searches")) if cache else None
    search = Search(rules, tree.configuration, recorded, rule_names(), with_text, store)
    read = [f for _, f in sorted(tree.files.items()) if f.is_python or measured is None]
    for_gpus = folders_of_gpus(tree.files)
    callers = Callers(tree.files, store)
    for file, result in search.files(read):
        elsewhere = not for_gpus.isdisjoint(map(str, PurePosixPath(file.relative).parents))
        sites = [
            site
            for site in result.sites
            if everything or (not elsewhere and _runs_in_steps(tree, file, site, callers))
        ]
        left_out += len(result.sites) - len(sites)
        found += _with_evidence(file, sites, measured)
        problems += [result.problem] if result.problem else []
        warnings += result.warnings
    callers.keep()
    ranked = rank_items(found)
    if measured is None:
        ranked = fold(ranked, tree, to_write=to_write, to_compare=to_compare)
    return Findings(ranked, problems, warnings, left_out)


_BESIDE = re.compile(
    r"(^|\.)((test|log|plot|print|export|densify)_\w*|test\d*|\w*_for_sav\w+|\w*_pattern(_\d+)?)$"
    r"|ONNX|TensorRT|TRT|(?i:(non|un)_?fused)"
)
"""Functions and classes that take no part in a step on an NPU: ``test_norm``, ``ModelONNX``.

``rms_norm_pattern_1`` is what a compiler looks for, and beside ``NonFusedNorm`` stands the fused.
"""


_ONCE = re.compile(
    r"(^|\.)(__init__|_init_\w+|_*generate|expand_inputs_for_generation"
    r"|\w*(cos_sin|sin_cos|default_rope|inv_freq|freqs_cis)\w*"
    r"|(merge|fuse|load|convert|save)_\w*(lora|weights?|state|checkpoint))\w*$"
)
"""What makes a table or a model, which no step does: ``generate`` outside of its loops as well."""
_ABOUT_WHAT_IS_BUILT = frozenset({"data-loaders", "environment", "growing-caches"})
"""Searches for what has an effect on the steps wherever it stands."""
_ABOUT_TRAINING = frozenset({"data-loaders", "early-reductions", "optimizers"})
"""Searches for what stands in ``main`` and counts in each step."""
_TOO_MUCH_TO_GUESS = (
    {"boolean-mask", "same-rank-mask"},
    {"boolean-mask", "row-mask"},
    {"joining-pays"},  # what copies both halves first moves about as much as it saves
    {"host-bound"},
    {"is-tensor", "enough-columns"},
    {"runs-often"},
    {"matrix-factors", "addend-fits", "number-alpha"},
    {"worth-its-length"},
    {"small-matrices", "single-precision"},
)
"""Conditions that are open together where a change is seldom right, or seldom worth its review."""
_OF_ROWS = re.compile(r"\[(~[\w.]+|\w*mask\w*), :\]")
"""What is no number of a row, but a mask of rows: ``x[~valid, :] = 0``, ``x[pad_mask, :] = 0``."""
_TRAINS = re.compile(r"(^|/)train(ing)?(/|_\w+\.py$|\.py$)")
_USES_MINDSPEED = Mention(
    re.compile(r"(import|from) megatron\b|(?i:mindspeed)"), ("megatron", "mindspeed")
)
"""What a program has that depends on MindSpeed: no other one does for one operator."""
_POINTS = (
    "nuscenes",
    "kitti",
    "waymo",
    "lidar",
    "voxel",
    "point_cloud",
    "pointcloud",
    "mx_driving",
)
_SEES_POINTS = Mention(re.compile(f"(?i){'|'.join(_POINTS)}"), _POINTS)
"""What a program has whose blocks work on clouds of points."""
_DRIVING = (*_POINTS, "argoverse", "mmcv", "mmdet", "deform")
_DRIVES = Mention(re.compile(f"(?i){'|'.join(_DRIVING)}"), _DRIVING)
"""What a program has for which mx_driving is made: not so the graphs of molecules."""
_SERVES = re.compile(
    r"(?m)^\s*(from|import) (\S*/)?(vllm|sglang|sgl_kernel|lightllm|lmdeploy)\w*\b"
)
_SERVES_NOTHING = frozenset({"columns-one-by-one", "integer-cumsum", "repeat-interleave-int"})
"""What a server of language models has no use for: views, and a few numbers for each request."""
_TRACKS = re.compile(r"(^|[/_])(fast_?sam|track(ers?|ing)|infer(ence)?)([/_.]|$)")
_STAYS = re.compile(
    r"(Reduce|Conv|Transpose)\w*|\w*(Mat[Mm]ul|Norm|Embedding|Attention|Pool|Loss)\w*"
)
"""Gradients of weights, and what computes more than element by element."""
_LONG = 88
"""Characters of an index that is joined from parts: more are a line of their own."""
_AS_LONG = 1.5
"""How much longer a text may be than the old one where it saves one launch a call."""
_LONGER = 6
"""Lines that a loop may grow by: of ten lines in place of one a reviewer wants a measurement."""
_LEARNS = Mention(
    re.compile(r"\.backward\(|(?i:optimizer|trainer\b|lightningmodule)"),
    ("backward", "optimizer", "trainer", "lightning"),
)
"""What a program has in which gradients flow, wherever nothing says that none does."""
_BY_NAME = r"(?m)^@[\w.]+\(\s*[\"'][\w.-]+[\"']\s*\)\n(?:@.*\n)*class "
"""A class that a configuration chooses by a name: ``@ATTENTION.register("flash")``."""
_ON_NPU = re.compile(r"\btorch_npu\.(\w+)\(")
_FOR_NPU = Mention(re.compile(r"\btorch_npu\b"), ("torch_npu",))
_HOLDS_MODELS = re.compile(
    r"(^|/)(models?|networks?|loss(es)?|modules?|layers?|archs?|backbones?)/"
    r"|(^|[/_])(loss(es)?|scalers?|layers?|modules?|utils?)(_\w+)?\.py$"
)
_DEMONSTRATES = frozenset({MODULE, "main"})
"""What a file among those of models runs to show what they do."""


def _runs_in_steps(tree: SourceTree, file: SourceFile, site: Site, callers: Callers) -> bool:
    if file.path == tree.given:
        return True
    if _BESIDE.search(site.function):
        return False
    if site.rule.files:  # examples are what users run
        return not is_test(file.relative)
    is_built = site.rule.table == "fusion" and site.function.endswith("__init__")
    is_built = is_built or site.rule.search in _ABOUT_TRAINING
    by_hand = site.rewrite is None or _ONCE.search(site.function) is not None
    if by_hand and site.occasion is Occasion.CALL and not is_built:
        return False  # nobody works out by hand what is done once, or changes what makes a model
    in_training = site.rule.search == "growing-caches" and _TRAINS.search(file.relative)
    left_out = site.occasion in {Occasion.HOST, Occasion.ASIDE}
    if is_cold(file.relative) or left_out or in_training:
        return False  # in training nothing is generated
    return _is_of_use(file, site, callers, tree.configuration.allow)


def _is_of_use(file: SourceFile, site: Site, callers: Callers, allowed: frozenset[str]) -> bool:
    """Tell whether, for all that the tree says, a step runs a site and may call what it needs."""
    if site.rewrite is None and not _says_what_to_do(site):
        # nobody takes a function apart for one operator, or can tell what is not known
        in_between = site.problem == IN_BETWEEN and not site.open_conditions
        return site.rule.table != "affinity" and in_between
    unknown = {condition.name for condition in site.open_conditions} - allowed
    guessed = any(guesses <= unknown for guesses in _TOO_MUCH_TO_GUESS)
    guessed = guessed and not (_OF_ROWS.search(site.code) and "boolean-mask" in unknown)
    if site.rule.name == "masked-formula":  # a mask of rows would be broadcast the wrong way
        guessed = guessed or {"is-tensor", "same-rank-mask"} <= unknown
    learns = "no-gradients" in unknown and callers.mention(_LEARNS)
    guessed = guessed or learns or _is_worth_less_than_its_text(site)
    if guessed or _serves(file, site) or _is_one_of_a_registry(file, site, callers):
        return False
    if site.function in _DEMONSTRATES and _HOLDS_MODELS.search(file.relative):
        return site.rule.search in {"optimizers", "data-loaders"}  # configurations
    for needed in _speaks_for(site):
        if not callers.mention(needed):
            return False
    if site.rule.table != "affinity" or site.rule.search in _ABOUT_WHAT_IS_BUILT:
        return True
    # A step may call a method by another name: ``self.distance(a, b)``.
    sure = site.safety is Safety.SAFE and "." in site.function
    beside = not sure and callers.beside_steps(site, file.relative)
    return not (beside or callers.set_up(site.function, file.relative))


def _is_one_of_a_registry(file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether a class is chosen by a name, and another name stands for the fused operator."""
    owner = site.function.partition(".")[0]
    text = site.problem if site.rewrite is None else site.rewrite.text
    fused = sorted(set(_ON_NPU.findall(text)))
    if not fused or not re.search(rf"{_BY_NAME}{owner}\b", file.text):
        return False
    calls = re.compile(rf"{_BY_NAME}(?:(?!^\S)[\s\S])*?\b({'|'.join(fused)})\(")
    return callers.mention(Mention(calls, fused))


def _serves(file: SourceFile, site: Site) -> bool:
    """Tell whether a server of language models has no use for a change of its views and counts."""
    if site.rule.name not in _SERVES_NOTHING:
        return False  # asked first: the whole text is searched
    if site.rule.name == "columns-one-by-one" and _TRACKS.search(file.relative):
        return True  # views, which nothing but a backward pass makes dear
    return any(map(_SERVES.search, (file.text, "from " + file.relative)))


def _is_worth_less_than_its_text(site: Site) -> bool:
    """Tell whether a reviewer asks what is gained by a text that is so much longer, or slower."""
    text = "" if site.rewrite is None else site.rewrite.text
    is_call = site.occasion is Occasion.CALL and site.rule.table == "affinity"
    if is_call and site.rule.search in {"", "loops"}:
        return len(text) > _AS_LONG * len(site.code)
    if site.rule.search == "loops":
        longer = len(text) > 2 * len(site.code) + _LONG // 2
        return longer or text.count("\n") > _LONGER + site.code.count("\n")
    if site.rule.name == "scaled-unit-rows":
        return len(text) > len(site.code) + _LONG
    if site.rule.name == "index-list":
        return "torch.cat(" in text and len(text) > _LONG
    if site.rule.name == "gather-one-element-per-row" and "arange(" in text:
        # a column is kept: two launches in place of one
        return text.endswith(".unsqueeze(1)")
    return False


def _speaks_for(site: Site) -> Iterator[Mention]:
    """Yield what a program has somewhere that can use what a change needs."""
    owner, _, method = site.function.rpartition(".")
    if site.rule.name == "written-out-silu" and owner.isidentifier() and method == "forward":
        # ``act=SiLU``, ``SiLU()``, ``"SiLU"``; neither ``nn.SiLU`` nor "# the SiLU function"
        uses = re.compile(rf"(?m)(?<![\w./])(?<!class ){owner}(?=[^\w ]| as |$)")
        yield Mention(uses, (owner.lower(),))
    if site.rule.search == "vendor-operators":
        yield _DRIVES
    if site.rule.name == "residual-relu":
        yield _SEES_POINTS
    if site.rule.name == "rms-norm-without-weight" and "normalize(" in site.code:
        yield _FOR_NPU  # it is long beside the old code
    if any(proof.condition.name == "mindspeed-installed" for proof in site.proofs):
        yield _USES_MINDSPEED


def _says_what_to_do(site: Site) -> bool:
    """Tell whether there is more to read than why no text could be written."""
    rule = site.rule
    return bool(rule.advice) or (
        rule.search != ""
        and (rule.search != "loops" or site.problem in {EFFECT, *ADVICE, *BY_HAND})
    )


def _with_evidence(
    file: SourceFile, sites: Sequence[Site], measured: Measured | None
) -> Iterator[Located]:
    seen: dict[str, int] = {}
    for site in sites:
        if measured is None:
            if not site.rule.launches_together:
                finding = _finding(file, site, seen)
                seldom = site.occasion is not Occasion.STEP
                yield Located(file=file, site=site, finding=finding, is_seldom=seldom)
            continue
        kernels = measured.evidence.at(file.relative, site.lines, site.function)
        types = set(kernels["type"].astype(str))
        if not all(types & set(group) for group in site.rule.launches_together):
            continue
        own = _taken_over(site, kernels, measured.evidence)
        finding = _finding(file, site, seen, own, measured)
        labels = Labels(own.index)
        change = _change(file, site, own, measured) if len(own) else None
        yield Located(file=file, site=site, finding=finding, kernels=labels, change=change)


def _taken_over(site: Site, kernels: pd.DataFrame, evidence: Evidence) -> pd.DataFrame:
    """Return those kernels at a place that its replacement takes over.

    They are of the Types that the rule names, or of an operator that its pattern stands for. Where
    a place computes nothing else forward, what its gradient does element by element is of it: that
    of a subtraction is a ``Neg``, that of a mean a ``Muls``. That of a bias is still to be summed.
    """
    if not site.rule.replaces:
        return kernels[:0]
    asked = evidence.host_ops["name"].reindex(kernels["host_op"]).isin(list(site.operators))
    own = kernels["type"].isin(site.rule.replaces).to_numpy(bool)
    backward = _is_backward(kernels)
    if not own.any():
        return kernels[:0]
    forward = own | (asked.to_numpy(bool) & ~backward)
    if forward[~backward].all():
        stays = find_rows_with(kernels["type"], lambda name: _STAYS.fullmatch(name) is not None)
        own = own | (backward & ~stays & ~kernels["type"].isin(site.rule.becomes).to_numpy(bool))
    return kernels[np.where(backward, own, forward)]


def _change(
    file: SourceFile, site: Site, kernels: pd.DataFrame, measured: Measured
) -> Change | None:
    going = kernels[~kernels["type"].isin(site.rule.becomes)]
    if going.empty:
        return None
    new = _new_kernels(file, site, kernels, measured)
    becomes = site.rule.becomes
    forward, backward = new.work(measured.calibration, measured.kernel_times, becomes)
    labels = Labels(going.index)
    return Change(labels, max(1, new.forward_calls), forward, backward)


def _finding(
    file: SourceFile,
    site: Site,
    seen: dict[str, int],
    kernels: pd.DataFrame | None = None,
    measured: Measured | None = None,
) -> report.Finding:
    device_ns = calls = 0
    expected = None
    if kernels is not None and measured is not None and len(kernels):
        steps = measured.evidence.steps
        device_ns = round(int(kernels["duration_ns"].sum()) / steps)
        calls = round(len(kernels) / steps)
        expected = _saving(file, site, kernels, measured)
    return make_finding(
        site.rule,
        (file.relative, site.line, site.function),
        device_ns=device_ns,
        step_ns=measured.step_ns if measured else 0,
        saving=expected,
        fingerprint=_fingerprint(file, site, seen),
        code=site.code,
        replacement=site.rewrite.text if site.rewrite else "",
        safety=site.safety.value,
        conditions=[
            report.Condition(p.condition.name, p.condition.text, p.basis.value) for p in site.proofs
        ],
        problem=site.problem,
        kernels={str(name) for name in kernels["type"]} if kernels is not None else (),
        calls=calls,
    )


def _saving(
    file: SourceFile, site: Site, kernels: pd.DataFrame, measured: Measured
) -> report.Saving:
    going = kernels[~kernels["type"].isin(site.rule.becomes)]
    now = int(going["duration_ns"].sum())
    new = _new_kernels(file, site, kernels, measured)
    return estimate_saving(now, new, measured.calibration, measured.evidence.steps)


def _new_kernels(
    file: SourceFile, site: Site, kernels: pd.DataFrame, measured: Measured
) -> NewKernels:
    evidence = measured.evidence
    counts = [
        evidence.executions(file.relative, site.line, site.lines, {name})
        for name in sorted(site.operators)
    ]
    # Where no such call was recorded, each Type of the pattern ran once in each execution.
    types = kernels.loc[~_is_backward(kernels), "type"].value_counts()
    forward = min(
        (n for n in counts if n), default=int(types[types > 0].min() if len(types) else 1)
    )
    has_backward = bool((kernels["basis"].astype(str) == "forward").any())
    cells = kernels[["input_shapes", "input_dtypes", "output_shapes"]].drop_duplicates()
    largest, dtype = max(
        (size, dtype_name(dtypes.partition(";")[0]))
        for inputs, dtypes, outputs in cells.astype(str).itertuples(index=False)
        for size in (*tensor_bytes(inputs, dtypes), *tensor_bytes(outputs, dtypes))
    )
    largest = _count_handed_over(kernels, largest)
    passes = site.form.passes or site.rule.passes
    backward = forward if has_backward else 0
    operations, products, computed = _operations(kernels, forward)
    dtype = computed or dtype  # attention reads bfloat16, however wide its scores were
    return NewKernels(
        forward, backward, largest, passes, site.form.launches, operations, dtype, products
    )


def _count_handed_over(kernels: pd.DataFrame, largest: int) -> int:
    """Return the bytes of a tensor as a place gets it and hands it on.

    Where it is converted to float32 and back within, the new kernel reads and writes half of that.
    """
    casts = kernels[(kernels["type"] == "Cast").to_numpy() & ~_is_backward(kernels)]
    cells = casts[["input_shapes", "input_dtypes"]].drop_duplicates().astype(str)
    sizes = {max(tensor_bytes(*cell), default=0) for cell in cells.itertuples(index=False)}
    return largest // 2 if {largest, largest // 2} <= sizes else largest


def _is_backward(kernels: pd.DataFrame) -> NDArray[np.bool_]:
    return kernels["basis"].isin(["forward", "forward-function"]).to_numpy(bool)


def _operations(
    kernels: pd.DataFrame, executions: int
) -> tuple[tuple[float, float], tuple[float, float], str]:
    """Return what the products of one execution compute, what they take now, ns, and their dtype.

    The first two forward, and in a fused gradient.
    """
    own = kernels[~_is_backward(kernels)]
    work = work_of(own)
    operations = work.operations[work.of_kernel]
    spent = own["duration_ns"].to_numpy()[operations > 0]
    forward, now = float(operations.sum()) / executions, float(spent.sum()) / executions
    kinds = own["input_dtypes"].astype(str)[operations > 0]
    dtype = dtype_name(kinds.iloc[0].partition(";")[0]) if len(kinds) else ""
    return (forward, forward * GRADIENT), (now, now * GRADIENT), dtype


def _fingerprint(file: SourceFile, site: Site, seen: dict[str, int]) -> str:
    """Return a name that survives moved lines and renamed locals.

    It is of rule, file, function, code, and which of twins.
    """
    key = site.rule.id, file.relative, site.function, normal_form(site.code)
    name = digest(*key)
    seen[name] = seen.get(name, 0) + 1
    return digest(*key, str(seen[name]))
