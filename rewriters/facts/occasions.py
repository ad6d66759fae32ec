"""When code runs, as far as its names and loops tell: in each step, once per call, on the host."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.facts.host_tensors import returns_made_on_host, works_on_host
from npufix.rewriters.facts.steps.between import runs_between
from npufix.rewriters.facts.steps.building import (
    BUILDS,
    OF_MODELS,
    quantises_weight,
    rescales_weights,
    takes_state,
)
from npufix.rewriters.facts.steps.classes import (
    WORD,
    computes_loss,
    is_called_in_step,
    is_metric,
    is_told,
    list_words,
)
from npufix.rewriters.facts.steps.environments import rolls_out, wraps_simulator
from npufix.rewriters.facts.steps.functions import (
    OF_TEXT,
    SAMPLES,
    computes,
    is_host_code,
    knows_device,
    list_given,
    list_repeated,
    moves_given,
    runs_seldom,
    samples,
    takes_step,
    takes_tensors,
    trains,
)
from npufix.rewriters.facts.steps.gpu_packages import needs_gpu
from npufix.rewriters.facts.steps.kept import is_called_by, is_kept
from npufix.rewriters.facts.steps.loops import Pace, pace, reads_data
from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.graph.modules.names import FunctionNode
from npufix.rewriters.graph.modules.scopes import MODULE, scopes
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of, walk

if TYPE_CHECKING:
    from collections.abc import Mapping

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.scopes import Scope
    from npufix.rewriters.match.matching import Match


_SAVES = re.compile(
    r"_*(\w+_)?(save(?!_for_)|load(?!_balanc)|export)(_\w+)?|_*merge_(to|loras?|weights|adapters?)(_\w+)?"
    r"|_*(get_)?init(ial)?_(\w+_)?(cache|state)s?|_*get_\w+_params(_\w+)?"
)
"""What is no step, nor any function that it defines: also what begins a stream of audio."""
_SETS_UP = re.compile(
    r"_*(init|reset|load|save|export|register|setup)_(parameters|weights|model|checkpoint|buffers?)(_.*)?"
    r"|(save|load)_(\w+_)?checkpoints?|(get|save|load)_(.*_)?state(_dict)?(_.*)?|(fast)?_*(gptq|quanti[sz]e)(_.*)?"
)
_ONCE = re.compile(
    r"_*((get_)?(\w+_)?(text|prompt)_(embeds?|embeddings)|generate(?!_token$)|main|prepare|expand_inputs|batch_repeat|evaluate(?!_actions?$)|validate|encode_(prompt|image|text|tokens|video|audio)"
    r"|on_\w*epoch|[gs]et_time_?steps|(truncate|trim|cut)_((\w+_)?(after|at|before|to)_(eos|stop|end)|prefix|suffix))(_.*)?"
)
_VALIDATES = re.compile(
    r"_*(valid(_(step|epoch|one_epoch)|$)|prediction_step$|sample_images?(_inference)?$|make_inputs|(make|get|create)_(dummy|example)_inputs"
    r"|(?i:intersection_?and_?union))"
)
_TAKES_STEPS = re.compile(r"(\w+_)?(model|net|network|unet|step|search|score)(_fn)?")
"""What a loop over the steps of a sample calls: ``self.unet(x, t)``, ``step_fn(x)``."""
_SEARCHES = re.compile(r"Beam_?Search")
"""What a class of its own has for the steps of one text: ``BeamSearch.forward``."""
_INFERS = re.compile(r"_*(\w+_)?infer(ence)?")
"""What runs once for a text or an image, from its input to its end."""
_BESIDE_EPOCHS = re.compile(r"on_(\w+_)?(init|stage|epoch|fit|validation|test)_(start|end|begin)")
_GENERATES = re.compile(
    r"(a?sync_)?generate(_(sequences|responses|rollouts|completions))?(_async)?$"
)
_LEARNS = re.compile(r"(?i)loss|backward|reward|log_?prob")
_CALLED_ONCE = re.compile(r"(Pipeline|Recipe|Benchmark)\w*$|(GenerationMixin|TextPreprocessor)$")
_UNIT = re.compile(r"(\w*[a-z])?Pipeline(Unit|Block|Mixin)?")
_DONE_ONCE = frozenset(
    {
        "add", "build", "calibrate", "convert", "create", "dump", "export", "from", "get_config",
        "capture", "fuse", "init", "initialize", "load", "log", "make", "merge", "parse",
        "precompute", "print", "prune", "quantize", "read", "register", "report", "reset", "resize",
        "save", "set", "setup", "show", "unmerge", "warmup", "write",
    }
)  # fmt: skip
"""What a function does once, where its name begins with it."""
_MAKES = frozenset({"add", "convert", "create", "make", "merge", "resize"})
"""What it may do for each batch as well."""
_ASIDE = frozenset(
    {
        "benchmark", "checkpoint", "collate", "collator", "config", "dataloader", "dataset",
        "debug", "demo", "draw", "eval", "evaluate", "evaluation", "evaluator", "example",
        "gptq", "loading", "main", "metric", "metrics", "plot", "postprocess", "postprocessor",
        "preprocess", "probe", "processor", "profile", "repr", "summary", "test", "tokenizer",
        "val", "vali", "validate", "validation", "visualise", "visualization", "visualize", "viz",
        "weights",
    }
)  # fmt: skip
"""Words of what runs beside the steps, or on the host."""
_BETWEEN_STEPS = frozenset(
    {
        "benchmark", "debug", "demo", "deprecated", "dummy", "eval", "evaluation", "evaluator",
        "explain", "explainer", "gradcam", "interpret", "interpretation",
        "metrics", "plot", "quant", "vali", "validate", "validation", "validator", "visualization",
        "visualize", "visualizer", "viz", "export", "gptq",
    }
)  # fmt: skip
"""Words of what runs after an epoch, or once: ``SegmentationEvaluator.update``."""
_MADE_FIRST = frozenset(
    {"distributed", "engine", "group", "model", "models", "optimizer", "optimizers", "weights"}
)
"""What is made before the first step, whatever else a name says: ``_init_train_model``."""
EACH_STEP = frozenset(
    {
        "assign", "attention", "attn", "calc", "calculate", "compute", "consistency",
        "contrastive", "criterion",
        "distill", "divergence", "embed", "encode", "entropy", "execute", "forward", "fwd", "iou",
        "iter", "l1", "loss", "losses", "lovasz", "masked", "mse", "penalty", "pooling", "rope",
        "rotary", "sample", "sampling", "segments", "smoothness", "step", "targets", "train",
        "training",
    }
)  # fmt: skip
_ONE_STEP = re.compile(r"_*(train|training|update)_(\w+_)?(step|batch|iter|minibatch)|_*step")
_IS_STEP = frozenset({"forward", "fwd", "loss", "losses", "train", "training"})
_MAKES_MASK = re.compile(
    r"(^|_)(lens?|lengths?|pad|padding|seq|sequence)_(\w+_)?masks?$|^_?(\w+_)?masks?_from_lengths?$"
)
"""What batches are masked by, in each step: ``get_mask_from_lengths``, ``sequence_mask``."""
_PART_OF_MODEL = re.compile(
    r"(Module|Layer|Block|Loss|Criterion|Head|Model|Encoder|Decoder|Attention|Runner|Sampler"
    r"|MetadataBuilder|Proposer|Assigner|Matcher|Coder|Detector|Backbone|Neck|Transformer|Segmentor)(V?\d+)?$"
)
_KEEPS_STATE = re.compile(r"Cache(Pool)?$|(Step|Forward)Context$|(Attn|Attention)Metadata$")
"""Classes that hold tensors of the step, where they know a device: ``StepContext.new``."""
_SERVES_STEPS = re.compile(r"(Runner|MetadataBuilder|Proposer|Speculator)(V?\d+)?$")
"""Classes whose methods prepare and build what one step of a server needs."""
_FOR_A_STEP = re.compile(r"_*(build|prepare)(_|$)")
_ENDS_OF_SERVING = re.compile(r"(capture|warm_?up|dummy|profil)")
"""What a server does before the first request: ``build_for_cudagraph_capture``."""


def occasion(
    flow: FunctionFlow, match: Match | None = None, code: ast.expr | ast.stmt | None = None
) -> Occasion:
    """Return when a match runs, or a function for all that is known of it.

    ``image.repeat_interleave(n)`` in ``Pipeline.__call__`` runs once per call, and in each step
    where it stands in the loop over the steps.
    """
    if is_host_code(flow) or wraps_simulator(flow) or returns_made_on_host(flow):
        return Occasion.HOST
    if match is not None and works_on_host(flow, match):
        return Occasion.HOST
    name = flow.function.name
    code = code if match is None else match.evaluation.statement
    line = 0 if code is None else code.lineno
    names = [each.rpartition(".")[2] for each in flow.qualname.split(".<locals>.")]
    of_saver = any(map(_SAVES.fullmatch, names)) and not _is_part_of_step(flow)
    if of_saver or runs_between(flow, in_loop=is_in_loop(flow, line)):
        return Occasion.ASIDE
    builds = BUILDS.fullmatch(name) is not None and not _makes_for_batch(flow)
    builds = builds or takes_state(flow.function) or quantises_weight(flow.function)
    builds = builds or rescales_weights(flow.function)
    if builds or is_called_by(flow, BUILDS):
        return Occasion.CALL
    of_sample = match is None and _INFERS.fullmatch(name) and not is_in_loop(flow, line)
    of_sample = of_sample and not (  # ``moe_infer``, which the layer itself calls
        flow.scope is not None and flow.scope.cls is not None and is_called_by_forward(flow.scope)
    )
    how_often = pace(flow.function, line) if line else None
    tries = name == MODULE and not reads_data(flow.function)
    if of_sample or tries or how_often is Pace.BETWEEN or _is_aside(flow, line):
        return Occasion.ASIDE
    once = _ONCE.fullmatch(name) is not None and not _is_part_of_step(flow)
    # beside the loop of ``train``, not of the ``train_batch`` that takes one step in parts
    around = not _ONE_STEP.fullmatch(name)
    once = once or (around and how_often is Pace.AROUND) or name == MODULE
    once = once or (flow.cls is not None and _is_called_once(flow.cls))
    once = once or (name != "forward" and bool(list_given(flow.function) & OF_TEXT))
    # what stands beside the loop of ``train(self)`` runs once for all of its rounds
    beside = line > 0 and trains(flow.function) and not trains(flow.function, line)
    once = once or (around and beside)
    in_loop = is_in_loop(flow, line) and (
        match is not None or trains(flow.function, line) or samples(flow.function, line)
    )
    return Occasion.CALL if once and not in_loop else Occasion.STEP


def _makes_for_batch(flow: FunctionFlow) -> bool:
    """Tell whether a step has tensors merged, or converted: ``merge_embeddings(ids, images)``."""
    own = [word.lower() for word in WORD.findall(flow.function.name)]
    if own[0] not in _MAKES or not OF_MODELS.isdisjoint(own):
        return False
    return _is_part_of_step(flow) or takes_tensors(flow.function)


def _is_called_once(cls: ast.ClassDef) -> bool:
    """Tell whether a class does all that a user asks for: ``ImagePipeline``, or a unit of one."""
    units = (last_name(base) for base in cls.bases)
    return _CALLED_ONCE.search(cls.name) is not None or any(map(_UNIT.fullmatch, units))


def _is_part_of_step(flow: FunctionFlow) -> bool:
    """Tell whether a step calls what sounds like done once: ``self._prepare_mask(x)``.

    So do the helpers of a module, and those who prepare a step of a server.
    """
    scope, module = flow.scope, flow.names.tree
    if scope is None or scope.function.name == "generate":
        return False
    if "training" in list_given(scope.function):
        return True  # ``prepare_for_cdn(dn_args, training, num_queries)``
    if module is not None and _is_called_in_steps(scope, module):
        return True
    return scope.cls is not None and (is_called_by_forward(scope) or _prepares_step(scope))


def _prepares_step(scope: Scope) -> bool:
    """Tell whether a class of a server makes what its next step needs: ``prepare_inputs``."""
    name = scope.function.name
    serves = scope.cls is not None and _SERVES_STEPS.search(scope.cls.name) is not None
    return serves and _FOR_A_STEP.match(name) is not None and _ENDS_OF_SERVING.search(name) is None


def _is_aside(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line runs beside the steps, by its function or by what stands around it."""
    return (
        is_aside(flow.qualname, _list_reported(flow.function))
        or "beam" in list_words(flow.function.name)  # its hypotheses are kept by the host
        or any(map(_is_cache, flow.function.decorator_list))
        or _is_beside_epochs(flow)
        or needs_gpu(flow)
        or is_kept(flow, line)
        or runs_seldom(flow, line)
        or _is_beside_loop(flow, line)
        or _has_text_made(flow)
    )


def _has_text_made(flow: FunctionFlow) -> bool:
    """Tell whether a function has a whole text generated: ``self.llm.generate(...)``, once a call.

    What learns from the texts trains as well: ``loss = self.policy_loss(batch)``.
    """
    name = flow.function.name
    if name == "forward" or {*WORD.findall(name)} & EACH_STEP:
        return False
    calls = [n.func for n in nodes_of(flow.function) if isinstance(n, ast.Call)]
    made = any(isinstance(c, ast.Attribute) and _GENERATES.match(c.attr) for c in calls)
    return made and not any(_LEARNS.search(last_name(c)) for c in calls)


def is_aside(qualname: str, reported: frozenset[str] = frozenset()) -> bool:
    """Tell whether a name says that no step runs a function: ``Trainer.validation_step``.

    Not so the words of what a step has ``reported`` besides.
    """
    name = qualname.rpartition(".")[2]
    words = list_words(qualname) & _BETWEEN_STEPS - (reported or _list_named(name))
    tests = "test" in list_words(name)
    return name != "forward" and bool(words or tests or _VALIDATES.match(name))


def _list_named(name: str) -> frozenset[str]:
    """Return what a step hands out besides: ``metrics`` of ``get_loss_and_metrics``."""
    steps = {word.lower() for word in WORD.findall(name)} & _IS_STEP
    return frozenset({"metric", "metrics"}) if steps else frozenset()


def _list_reported(function: FunctionNode) -> frozenset[str]:
    """Return the same for what returns it: ``return losses.mean(), metrics``."""
    returned = (n.value for n in nodes_of(function) if isinstance(n, ast.Return))
    pairs = (value.elts[0] for value in returned if isinstance(value, ast.Tuple) and value.elts)
    parts = (part for first in pairs for part in ast.walk(first))
    if any(isinstance(part, ast.Name) and part.id in {"loss", "losses"} for part in parts):
        return frozenset({"metric", "metrics"})
    return _list_named(function.name)


def _is_beside_epochs(flow: FunctionFlow) -> bool:
    """Tell whether a function stands in a hook between epochs, or is a metric."""
    return any(map(_BESIDE_EPOCHS.fullmatch, flow.qualname.split("."))) or is_metric(flow.cls)


def _is_cache(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return last_name(called) in {"cache", "lru_cache", "cached_property"}


def _is_beside_loop(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line stands before or behind the loop over a sample, or over a rollout."""
    of_search = flow.cls is not None and _SEARCHES.search(flow.cls.name) is not None
    loops = _loops(flow) if line else []
    if any(loop.lineno <= line <= (loop.end_lineno or line) for loop in loops):
        return False
    calls = [n.func for loop in loops for n in walk(*loop.body) if isinstance(n, ast.Call)]
    if of_search or SAMPLES.fullmatch(flow.function.name):
        return any(_TAKES_STEPS.fullmatch(last_name(called)) for called in calls)
    return any(map(rolls_out, calls))


def _loops(flow: FunctionFlow) -> list[ast.For | ast.AsyncFor | ast.While]:
    loops = (ast.For, ast.AsyncFor, ast.While)
    return [node for node in nodes_of(flow.function) if isinstance(node, loops)]


def is_in_loop(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a loop of the function runs a line several times."""
    return any(loop.body[0].lineno <= line <= (loop.end_lineno or line) for loop in _loops(flow))


def is_hot(scope: Scope, module: ast.Module | None = None) -> bool:
    """Tell whether a name and a class, or who calls it, say that a function runs in every step.

    ``occasion`` takes that for granted where nothing speaks against it; a wait of the host is worth
    telling only where something speaks for it.

    ``forward``, ``compute_loss`` and what else a module does; ``train_one_epoch``. Not
    ``__init__``, ``load_weights``, ``evaluate``, and nothing of a data set or a metric. A function
    of the ``module`` runs as often as those that call it by its name.
    """
    if is_metric(scope.cls):
        return False
    name, runs = scope.function.name, scope.function
    is_program = (name in {"main", MODULE} and trains(runs)) or (
        name in {"__call__", "main", MODULE} and samples(runs)
    )
    if is_program or _is_hot_by_name(scope):
        return True
    if module is None or _runs_aside(scope):
        return False
    if scope.path and not scope.is_method:  # what a function of each step defines for itself
        outer = scope.qualname.rpartition(".<locals>.")[0]
        around = (s for s in scopes(module) if s.qualname == outer)
        return not is_done_once(scope) and any(is_hot(s, module) for s in around)
    turns = not scope.is_method and (
        _turns_tensors(scope.function) or _MAKES_MASK.search(scope.function.name) is not None
    )
    return turns or _is_called_in_steps(scope, module)


def _is_called_in_steps(scope: Scope, module: ast.Module) -> bool:
    """Tell whether a function of a module, or a method, is called by what runs in every step."""
    return "<locals>" not in scope.path and scope.qualname in _list_called_in_steps(module)


def _turns_tensors(function: FunctionNode) -> bool:
    """Tell whether a function of a module computes with tensors: ``def ends(n: Tensor) -> Tensor``.

    Whoever imports it calls it in each step.
    """
    own = [word.lower() for word in WORD.findall(function.name)]
    once = BUILDS.fullmatch(function.name) or _ONCE.fullmatch(function.name)
    if "training" in list_given(function) and not BUILDS.fullmatch(function.name):
        return True
    if once or not (_DONE_ONCE - {"add"}).isdisjoint(own[:1]):  # ``add_blank(labels)``
        return False
    moves = moves_given(function) and not SAMPLES.fullmatch(function.name)
    return moves or computes(function, own)


def sets_up(scope: Scope) -> bool:
    """Tell whether a function builds a module, or loads and saves it: what it calls is no step.

    The ``__init__`` of what is no module may run in each: that of a batch, or of boxes.
    """
    name = scope.function.name
    if name == "__init__":
        return scope.cls is not None and _is_part_of_model(scope.cls)
    return _SETS_UP.fullmatch(name) is not None or takes_state(scope.function)


def is_done_once(scope: Scope, *, of_step: bool = False) -> bool:
    """Tell whether a name says that a function runs once, or beside steps: ``_fuse_weights``.

    What a step calls ``of_step`` may make something for it each time: ``self.add_noise(x)``.
    """
    name = scope.function.name
    if of_step and name.endswith("_") and not name.endswith("__"):
        return _runs_aside(scope)  # ``set_low_quality_matches_`` writes into a tensor of the step
    own = [word.lower() for word in WORD.findall(name)]
    done = _DONE_ONCE - _MAKES if of_step else _DONE_ONCE
    once = bool(own) and (own[0] in done or own[-1] == "init")  # ``rope_init``
    return once or _runs_aside(scope)


def _runs_aside(scope: Scope) -> bool:
    """Tell whether a name says that a function runs beside steps, and no ``forward`` calls it."""
    aside = list_words(scope.qualname) & _ASIDE
    aside -= _list_reported(scope.function) if aside else frozenset()
    may_be_of_forward = aside <= {"preprocess", "weights"}
    return bool(aside) and not (may_be_of_forward and is_called_by_forward(scope))


@lru_cache(maxsize=2)
def _list_called_in_steps(module: ast.Module) -> frozenset[str]:
    """Return the names of what is called in every step, through others as well.

    ``"ends"`` is a function of the module, ``"Net._mask"`` a method that its own class calls.
    """
    every = list(scopes(module))
    helpers = {scope.function.name: scope for scope in every if not scope.path}
    methods = {scope.qualname: scope for scope in every if scope.is_method}
    hot = [scope for scope in every if _is_hot_by_name(scope)]
    found: set[str] = set()
    for scope in hot:  # grows
        for node in list_repeated(scope.function):
            if node.__class__ is not ast.Call:
                continue
            called = ""
            match node:
                case ast.Call(ast.Name(name)) if name in helpers and name not in scope.hidden:
                    called, other = name, helpers[name]
                case ast.Call(ast.Attribute(ast.Name("self"), name)) if scope.cls is not None:
                    owners = (scope.cls.name, *map(last_name, scope.cls.bases))
                    own = (f"{owner}.{name}" for owner in owners)
                    called = next((each for each in own if each in methods), "")
                    other = methods.get(called, scope)
            if (
                called
                and called not in found
                and not (other.is_method and is_done_once(other, of_step=True))
            ):
                found.add(called)
                hot.append(other)
                hot += _list_overriding(methods, other, found)
    return frozenset(found)


def _list_overriding(methods: Mapping[str, Scope], of: Scope, found: set[str]) -> list[Scope]:
    """Return, and put to the others, the methods that subclasses have in the place of one."""
    if of.cls is None:
        return []
    own, base = of.function.name, of.cls.name
    names = {
        name: scope
        for name, scope in methods.items()
        if scope.cls is not None and scope.function.name == own and name not in found
        if base in map(last_name, scope.cls.bases)
    }
    found.update(names)
    return list(names.values())


def _is_hot_by_name(scope: Scope) -> bool:
    name = scope.function.name
    own = [word.lower() for word in WORD.findall(name)]
    if name == "update" and scope.cls is not None and is_told(scope.cls):
        return True
    if _runs_aside(scope):
        return False
    if name == "__call__" and scope.cls is not None and is_called_in_step(scope.cls):
        return True
    made_first = "init" in own and not _MADE_FIRST.isdisjoint(own)
    if name.startswith("__") or not own or own[-1] == "init" or made_first:
        return False
    if set(own) & EACH_STEP or {"clip", "grad"} <= set(own):
        return True
    # ``build_model`` runs once, the ``build`` of what is made for each batch does not
    once = own[0] in _DONE_ONCE and (len(own) > 1 or own[0] != "build")
    once = once and not _prepares_step(scope)
    of_model = not once and scope.cls is not None and _is_part_of_model(scope.cls)
    return of_model or takes_step(scope.function)


def is_called_by_forward(scope: Scope) -> bool:
    """Tell whether the ``forward`` of a class calls a method of its own."""
    methods = [] if scope.cls is None else scope.cls.body
    forwards = (m for m in methods if isinstance(m, FunctionNode) and m.name == "forward")
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr == scope.function.name
        and ast.unparse(node.func.value) == "self"
        for forward in forwards
        for node in nodes_of(forward)
    )


def _is_part_of_model(cls: ast.ClassDef) -> bool:
    """Tell whether a class computes with tensors step by step: its name says so, or ``forward``."""
    if any(_PART_OF_MODEL.search(name) for name in (cls.name, *map(last_name, cls.bases))):
        return not cls.name.endswith("Proposer") or knows_device(cls)
    if _KEEPS_STATE.search(cls.name) and knows_device(cls):
        return True
    methods = {item.name for item in cls.body if isinstance(item, FunctionNode)}
    return "forward" in methods or ("__call__" in methods and computes_loss(cls))
