"""What is left out where nothing was measured: code of no step, and changes nobody would merge.

``npufix scan`` counts these in one line; with a dump every place that runs is told.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.advisor.project.callers import Callers, Mention
from npufix.advisor.project.cold_files import is_cold, is_test
from npufix.advisor.project.generated import GENERATED_FILE
from npufix.rewriters.edit.site import IN_BETWEEN
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.modules.scopes import MODULE
from npufix.rules.substitution import Safety

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from npufix.advisor.project.source_tree import SourceFile, SourceTree
    from npufix.rewriters.edit.site import Site

_BESIDE = re.compile(
    r"(^|\.)((test|log|plot|print|export|densify)_\w*|(get|make)_(mock|dummy)_\w*|\w+_logs|test\d*|\w*_for_sav\w+|\w*_pattern(_\d+)?)$"
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
_TAKES_STEPS = re.compile(
    r"backward|(?i:trainer)|\btrain\w*\(|\.(step|fit|learn|prepare|minimize|launch)\(|\binitialize\("
    r"|(training|train)_step"
)
"""What a script does that trains, itself or by others: one that was copied from it may not."""
_MAKES_OPTIMIZERS = frozenset({"configured-optimizer", "fused-optimizer"})
_ASKS_DEVICE = "for_cuda"
"""The form of optimizers that are fused where ``device.type == "cuda"``."""
_TOO_MUCH_TO_GUESS = (
    {"boolean-mask", "same-rank-mask"},
    {"boolean-mask", "row-mask"},
    {"boolean-mask", "column-mask"},
    {"is-tensor", "column-mask"},
    {"is-tensor", "enough-columns"},
    {"mask-despite-name"},
    {"runs-often"},
    {"matrix-factors", "addend-fits", "number-alpha"},
    {"worth-its-length"},
    {"small-matrices", "single-precision"},
    {"batches-of-rows", "same-dtype", "large-matrices"},
    {"batches-of-matrices", "same-dtype", "large-matrices"},
    {"one-more-dimension", "same-dtype", "large-matrices"},
)
"""Conditions that are open together where a change is seldom right, or seldom worth its review."""
_OF_ROWS = re.compile(r"\[(~[\w.]+|\w*mask\w*), :\]")
"""What is no number of a row, but a mask of rows: ``x[~valid, :] = 0``, ``x[pad_mask, :] = 0``."""
_TRAINS = re.compile(r"(^|/)train(ing)?(/|_\w+\.py$|\.py$)")
_USES_MINDSPEED = Mention(r"(import|from) megatron\b|(?i:mindspeed)", ("megatron", "mindspeed"))
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
_SEES_POINTS = Mention(f"(?i){'|'.join(_POINTS)}", _POINTS)
"""What a program has whose blocks work on clouds of points."""
_DRIVING = (*_POINTS, "argoverse", "mmcv", "mmdet", "deform")
_DRIVES = Mention(f"(?i){'|'.join(_DRIVING)}", _DRIVING)
"""What a program has for which mx_driving is made: not so the graphs of molecules."""
_SCALES = Mention(r"\bGradScaler\(", ("gradscaler",))
"""What takes the steps of an optimizer that a function of another file makes."""
_SERVES = re.compile(
    r"(?m)^\s*(from|import) (\S*/)?(vllm|sglang|sgl_kernel|lightllm|lmdeploy)\w*\b"
)
_SERVES_NOTHING = frozenset({"columns-one-by-one", "integer-cumsum", "repeat-interleave-int"})
"""What a server of language models has no use for: views, and a few numbers for each request."""
_TRACKS = re.compile(r"(^|[/_])(fast_?sam|track(ers?|ing)|infer(ence)?)([/_.]|$)")
_OF_NUMPY = re.compile(r"(?m)^import numpy\b")
_OF_TORCH = re.compile(r"(?<![\w.])(torch|F|nn)\.\w|\bTensor\b")
_LONG = 88
"""Characters of an index that is joined from parts: more are a line of their own."""
_OF_TWO = re.compile(r"\blayer of 2:")
"""What is said of keys and values alone: one launch less is not worth new names in checkpoints."""
_TURNS = re.compile(r"\.(permute|transpose|(un)?flatten|(un)?squeeze|sum)\(")
_MORE_TEXT: Mapping[str, tuple[Callable[[str], int], int]] = {
    "einsum-product": (lambda text: len(_TURNS.findall(text)), 3),
    "scaled-unit-rows": (len, _LONG),
}
"""By how many views, or characters, a text may be longer: a product saves calls of the host."""
_A_LITTLE = 44
"""Characters by which a text may be longer than the old one where it saves one launch a call."""
_LONGER = 6
"""Lines that a loop may grow by: of ten lines in place of one a reviewer wants a measurement."""
_LEARNS = Mention(
    r"\.backward\(|(?i:optimizer|trainer\b|lightningmodule)",
    ("backward", "optimizer", "trainer", "lightning"),
)
"""What a program has in which gradients flow, wherever nothing says that none does."""
_GOES_BACK = Mention(r"\.backward\(", ("backward",))
"""What a program has that trains, by itself or with what is handed to it."""
_GENERATES = Mention(r"\bdef generate\(", ("def generate(",))
"""What a library has whose models are trained and served."""
_FOR_GPU = re.compile(r"(?<!to)_(gpu|cuda)(\.|$)")
"""What a program calls elsewhere, where it knows NPUs: ``patch_forward_gpu``."""
_FOR_APPLE = re.compile(r"(?is)\A\s*(\"\"\"|''')((?!\1).)*\b(mps|mlx)\b")
"""What the docstring of a file says that is there for another device."""
_IN_FLOAT32 = re.compile(r"(?i)f(p|loat)?_?32")
"""What a class says in its name that keeps its weights so on purpose: ``LayerNormF32``."""
_OF_EXPERTS = re.compile(r"\bnpu_(moe_\w+|grouped_matmul\w*)\(")
"""Whoever has written these for experts has thought of their router."""
_INFERS_ONLY = "expert-router"
_INFERS = ("chat", "decod", "generat", "infer", "respond", "sampl", "search", "stream", "transcri")
_INFERS_TOO = Mention(
    rf"\bdef \w*(?:{'|'.join(_INFERS)})\w*\(|forward_chunk|\bvllm\b",
    (*_INFERS, "vllm", "chunk"),
)
"""What a program has that makes texts or audio token by token, whatever it is called."""
_IS_TRAINED = Mention(
    r"(?i)gradient_?checkpointing", ("gradient_checkpointing", "gradientcheckpointing")
)
"""What a model of transformers has for its training, whoever does it."""
_OF_JOINED = frozenset(
    {
        "joining-pays", "activation-is-silu", "activation-is-gelu", "activation-is-gelu-tanh",
        GENERATED_FILE,
    }
)  # fmt: skip
"""What may be open where gate and up are joined: the rest is one guess too many."""
_SENDS = Mention(r"(?m)^\s*(import|from) ray\b", ("ray",))
"""What a program has whose processes send each other what they return."""
_BY_ELEMENT = re.compile(r"^(?!.*index_select).*arange\(", re.DOTALL)
_LEARNS_NOTHING = re.compile(r"\b(no_grad|inference_mode)\b")
_BY_NAME = r"(?m)^@[\w.]+\(\s*[\"'][\w.-]+[\"']\s*\)\n(?:@.*\n)*class "
"""A class that a configuration chooses by a name: ``@ATTENTION.register("flash")``."""
_CALLED_AS_METHOD = re.compile(r"(?!(?:torch|th|F|nn)\.)([A-Za-z_]\w*(?:\.\w+)*)\.(\w+)\(")
_ON_NPU = re.compile(r"\btorch_npu\.(\w+)\(")
_FOR_NPU = Mention(r"\btorch_npu\b", ("torch_npu",))
_HOLDS_MODELS = re.compile(
    r"(^|/)(models?|networks?|loss(es)?|modules?|layers?|archs?|backbones?)/"
    r"|(^|[/_])(loss(es)?|scalers?|layers?|modules?|utils?)(_\w+)?\.py$"
)
_DEMONSTRATES = frozenset({MODULE, "main"})
"""What a file among those of models runs to show what they do."""


def runs_in_steps(tree: SourceTree, file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether a site is worth a finding where nothing was measured: a step may run it."""
    if file.path == tree.given:
        return True
    if _BESIDE.search(site.function):
        return False
    if site.rule.files:  # examples are what users run
        return not is_test(file.relative)
    is_built = site.rule.table == "fusion" and site.function.endswith("__init__")
    is_built = is_built or site.rule.search in _ABOUT_TRAINING
    is_built = is_built or site.rule.name in _MAKES_OPTIMIZERS
    seldom = site.rewrite is None or _ONCE.search(site.function) is not None
    # a launch or a copy less is worth a change where steps are many: in ``main`` nobody knows
    seldom = seldom or (site.rule.table == "affinity" and site.function not in _DEMONSTRATES)
    if seldom and site.occasion is Occasion.CALL and not is_built:
        return False  # nobody works out by hand what is done once, or changes what makes a model
    in_training = site.rule.search == "growing-caches" and _TRAINS.search(file.relative)
    left_out = site.occasion in {Occasion.HOST, Occasion.ASIDE}
    if site.rule.name in _MAKES_OPTIMIZERS:
        from npufix.rewriters.facts.occasions import is_aside

        if not is_aside(site.function):
            # ``for fold in folds:`` makes one for all steps; whoever asks for a device has one
            left_out = site.occasion is Occasion.HOST and site.form.pattern.__name__ != _ASKS_DEVICE
    loads = site.rule.search == "data-loaders"  # of training: who finds them reads their names
    left_out = left_out and not loads
    if is_cold(file.relative, loads_data=loads) or left_out or in_training:
        return False  # in training nothing is generated
    in_no_step = callers.unused(site.function) or _only_evaluates(file, site)
    of_use = not in_no_step and _is_of_use(file, site, callers, tree.configuration.allow)
    return of_use and (file.path in tree.named or not _is_beside(file, site, callers))


def _only_evaluates(file: SourceFile, site: Site) -> bool:
    """Tell whether a script makes an optimizer, or loads data to train on, and takes no step.

    ``evaluate_coco.py`` has been copied from ``train.py``.
    """
    of_training = site.rule.name in _MAKES_OPTIMIZERS or site.rule.search in _ABOUT_TRAINING
    return of_training and "__main__" in file.text and not _TAKES_STEPS.search(file.text)


def _is_of_use(file: SourceFile, site: Site, callers: Callers, allowed: frozenset[str]) -> bool:
    """Tell whether, for all that the tree says, a step runs a site and may call what it needs."""
    if site.rewrite is None and not _says_what_to_do(site):
        # nobody takes a function apart for one operator, or can tell what is not known
        in_between = site.problem == IN_BETWEEN and not site.open_conditions
        return site.rule.table != "affinity" and in_between
    unknown = {condition.name for condition in site.open_conditions} - allowed
    guessed = any(guesses <= unknown for guesses in _TOO_MUCH_TO_GUESS)
    guessed = guessed and not (_OF_ROWS.search(site.code) and "boolean-mask" in unknown)
    if "joining-pays" in unknown:
        # what copies both halves first moves as much as it saves, but for the backward pass
        others = unknown - _OF_JOINED
        learns = callers.mention(_LEARNS) or callers.mention(_IS_TRAINED)
        guessed = guessed or bool(others) or not learns
    guessed = guessed or ("is-tensor" in unknown and _is_of_arrays(file.text))
    if site.rule.name == "masked-formula":  # a mask of rows would be broadcast the wrong way
        guessed = guessed or {"is-tensor", "same-rank-mask"} <= unknown
    if site.rule.name == "columns-one-by-one":  # views, which only a backward pass makes dear
        guessed = guessed or "is-tensor" in unknown or not callers.mention(_LEARNS)
    guessed = guessed or _is_worth_less_than_its_text(site) or _learns(file, site, callers)
    made_for_others = "no-grad-scaler" in unknown and "." not in site.function
    guessed = guessed or (made_for_others and callers.mention(_SCALES))
    # who is sent the dictionary may have no device
    guessed = guessed or ("log-takes-tensors" in unknown and callers.mention(_SENDS))
    guessed = guessed or _is_method_of_program(file, site, callers)
    guessed = guessed or (site.rule.name == _INFERS_ONLY and _only_trains(callers))
    of_tokens = site.rule.search == "growing-caches" and callers.mention(_GOES_BACK)
    guessed = guessed or (of_tokens and not callers.mention(_INFERS_TOO))
    guessed = guessed or (site.rule.search == "projections" and bool(_OF_TWO.search(site.problem)))
    # "every layer computes it anew", and there is one
    guessed = guessed or (site.rule.search == "handed-in" and callers.built_once(site.function))
    guessed = guessed or _is_one_of_a_registry(file, site, callers)
    chosen = guessed or _has_stand_in(site, callers)
    chosen = chosen or (site.rule.name in _MAKES_OPTIMIZERS and _is_chosen(file, site))
    chosen = chosen or (_FOR_GPU.search(site.function) is not None and "npu" in file.text)
    chosen = chosen or (site.rule.name == _INFERS_ONLY and bool(_OF_EXPERTS.search(file.text)))
    chosen = chosen or ("float32-weights" in unknown and bool(_IN_FLOAT32.search(site.function)))
    if chosen or _serves(file, site) or _FOR_APPLE.match(file.text):
        return False
    if site.function in _DEMONSTRATES and _HOLDS_MODELS.search(file.relative):
        return site.rule.search in {"optimizers", "data-loaders"}  # configurations
    return all(map(callers.mention, _speaks_for(site)))


def _is_beside(file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether all that call the function of a site, as far as names tell, are in no step."""
    if site.rule.table != "affinity" or site.rule.search in _ABOUT_WHAT_IS_BUILT:
        return False
    # A step may call a method by another name: ``self.distance(a, b)``.
    sure = site.safety is Safety.SAFE and "." in site.function
    beside = not sure and callers.beside_steps(site, file.relative)
    name = site.function.rpartition(".")[2]
    called_here = name == site.function or f"self.{name}(" in file.text
    beside = beside or (called_here and callers.only_inferred(site.function))
    beside = beside or callers.only_between(site.function)
    return beside or callers.set_up(site.function, file.relative)


@lru_cache(maxsize=1)  # the findings of a file come one after the other
def _is_of_arrays(source: str) -> bool:
    """Tell whether a module computes with NumPy alone: what it selects by a mask is no tensor."""
    return _OF_NUMPY.search(source) is not None and _OF_TORCH.search(source) is None


def _learns(file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether elements are picked by an index through which gradients may flow.

    That of an index adds up element by element, that of ``index_select`` row by row; where it is
    measured, the kernels tell.
    """
    text = "" if site.rewrite is None else site.rewrite.text
    if site.rule.name != "gather-one-element-per-row" or not _BY_ELEMENT.search(text):
        return False
    above = file.text.splitlines()[site.function_lines[0] - 1 : site.line]
    return not any(map(_LEARNS_NOTHING.search, above)) and callers.mention(_LEARNS)


def _only_trains(callers: Callers) -> bool:
    """Tell whether an operator without gradients serves nothing of a program."""
    return callers.mention(_GOES_BACK) and not callers.mention(_GENERATES)


def _is_method_of_program(file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether an operator may be a method of a class that the program has itself.

    ``graph.repeat_interleave(k)`` beside ``class PackedGraph: def repeat_interleave(self, n)`` is
    none of a tensor, unless more speaks for one than this call: ``graph = torch.zeros(n)``.
    """
    called = _CALLED_AS_METHOD.match(site.code)
    if called is None or all(proof.condition.name != "is-tensor" for proof in site.proofs):
        return False
    owner, method = called.groups()
    own = rf"(?m)^[ \t]+def {method}\(\s*self\b"
    first, last = site.function_lines
    lines = "\n".join(file.text.splitlines()[first - 1 : last])
    known = rf"(?<![\w.]){re.escape(owner)} *(:[^=,)\n]*Tensor\b|= *(torch|F|nn)\.)"
    return not re.search(known, lines) and callers.mention(Mention(own, (f"def {method}(",)))


def _is_one_of_a_registry(file: SourceFile, site: Site, callers: Callers) -> bool:
    """Tell whether a class is chosen by a name, and another name stands for the fused operator."""
    owner = site.function.partition(".")[0]
    text = site.problem if site.rewrite is None else site.rewrite.text
    fused = sorted(set(_ON_NPU.findall(text)))
    if not fused or owner not in _list_chosen_by_name(file.text):
        return False
    calls = rf"{_BY_NAME}(?:(?!^\S)[\s\S])*?\b({'|'.join(fused)})\("
    return callers.mention(Mention(calls, fused, fused))


def _is_chosen(file: SourceFile, site: Site) -> bool:
    """Tell whether a function makes an optimizer of torch_npu besides, or one that takes no steps.

    ``SGD([nn.Parameter(torch.zeros(1))])`` is there for a schedule of the learning rate.
    """
    first, last = site.function_lines
    text = "\n".join(file.text.splitlines()[first - 1 : last])
    return "NpuFused" in text or re.search(r"Parameter\(torch\.\w+\(", site.code) is not None


def _has_stand_in(site: Site, callers: Callers) -> bool:
    """Tell whether a program puts code of its own in the place of this, on an NPU.

    ``class NpuRMSNorm`` or ``def npu_apply_rotary_emb_llama`` beside ``RMSNorm`` and
    ``apply_rotary_emb``, and in it the operator that would be written here; or the class by its
    name where torch_npu is used: ``replace_forward("SparseAttention", npu_attention)``.
    """
    owner, _, function = site.function.rpartition(".")
    name = owner if owner.isidentifier() else function
    text = site.problem if site.rewrite is None else site.rewrite.text
    fused = sorted(set(_ON_NPU.findall(text)))
    if not fused or not name.isidentifier():
        return False
    named = rf"(?:(?:npu|ascend)_?{name}\w*|{name}_?(?:npu|ascend))\b"
    body = rf"(?:(?!^[^\s)])[\s\S])*?\b(?:{'|'.join(fused)})\("
    stands = Mention(rf"(?m)^(?:class|def) _*(?i:{named}){body}", fused, fused)
    quoted = f'"{name}"', f"'{name}'"
    patched = rf"(?s)\A(?=.*\btorch_npu\.).*?\w\(\s*(?:{'|'.join(quoted)}) *,"
    return callers.mention(stands) or (
        owner == name
        and callers.mention(Mention(patched, [each.lower() for each in quoted], ("torch_npu.",)))
    )


@lru_cache(maxsize=1)  # the findings of a file come one after the other
def _list_chosen_by_name(source: str) -> frozenset[str]:
    """Return the classes of a module that a registry holds: ``@register("swiglu")`` above one."""
    return frozenset(re.findall(rf"{_BY_NAME}(\w+)", source))


def _serves(file: SourceFile, site: Site) -> bool:
    """Tell whether a server of language models has no use for a change of its views and counts."""
    if site.rule.name not in _SERVES_NOTHING:
        return False
    if site.rule.name == "columns-one-by-one" and _TRACKS.search(file.relative):
        return True  # views, which nothing but a backward pass makes dear
    return _is_server(file.text) or _SERVES.search("from " + file.relative) is not None


@lru_cache(maxsize=1)  # the findings of a file come one after the other
def _is_server(source: str) -> bool:
    return _SERVES.search(source) is not None


def _is_worth_less_than_its_text(site: Site) -> bool:
    """Tell whether a reviewer asks what is gained by a text that is so much longer, or slower."""
    text = "" if site.rewrite is None else site.rewrite.text
    is_call = site.occasion is Occasion.CALL and site.rule.table == "affinity"
    if is_call and site.rule.search in {"", "loops"}:
        return len(text) > len(site.code) + _A_LITTLE
    if site.rule.search == "loops":
        longer = len(text) > 2 * (len(site.code) + _LONG)
        return longer or text.count("\n") > _LONGER + site.code.count("\n")
    if site.rule.name in _MORE_TEXT:
        count, more = _MORE_TEXT[site.rule.name]
        return count(text) > count(site.code) + more
    if site.rule.name == "index-list":
        return "torch.cat(" in text and len(text) > _LONG
    if site.rule.name == "gather-one-element-per-row" and "arange(" in text:
        # a column is kept: two launches in place of one; or only an evaluation ends with it
        return text.endswith(".unsqueeze(1)") or "PostProcess" in site.function
    return False


def _speaks_for(site: Site) -> Iterator[Mention]:
    """Yield what a program has somewhere that can use what a change needs."""
    owner, _, method = site.function.rpartition(".")
    if site.rule.name == "written-out-silu" and owner.isidentifier() and method == "forward":
        # ``act=SiLU``, ``SiLU()``, ``"SiLU"``; neither ``nn.SiLU`` nor "# the SiLU function"
        uses = rf"(?m)(?<![\w./])(?<!class ){owner}(?=[^\w ]| as |$)"
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
    is_named = site.rule.search not in {"", "loops"}
    return site.rule.advice != "" or is_named or site.says_what_to_do
