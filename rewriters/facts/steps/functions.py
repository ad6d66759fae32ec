"""Functions that their annotations, loops and calls tell to run in each step, or on the host."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.graph.modules.syntax import holds_line, last_name, nodes_of, walk

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from npufix.rewriters.graph.dataflow import FunctionFlow
    from npufix.rewriters.graph.modules.names import FunctionNode

_NETWORK = re.compile(r"(^|\.)(\w+_)?(model|net|network|unet|transformer|dit|denoiser|controlnet)$")
SAMPLES = re.compile(r"_*(\w+_)?(sample|predict|infer|inference|denoise)(_.*)?")
_STEPS = re.compile(r"(^|[._])scheduler\.step$")
_IN_PLACE_OF_KERNELS = frozenset({"dequant", "dequantize", "fallback", "naive", "ref", "reference"})
"""What runs where a device lacks an operator, or when weights are loaded."""
_OF_TENSORS = re.compile(r"\b(Long|Float|Bool|Int)?Tensor\b")
_COMPUTED = re.compile(
    r"^(?!.*\b(str|ndarray|Image)\b).*\b(\w*Tensor|float|[Ll]ist|[Tt]uple)\b", re.DOTALL
)
"""What is returned by those who compute, not by those who print, plot or save."""
_ON_HOST = re.compile(
    r"(Dataset|DataModule|DataLoader|Collat(or|er)(For\w+|With\w+|Wrapper)?|Batcher|Tokenizer(Fast)?|FeatureExtractor|Featurizer"
    r"|ImageProcessor(Fast)?|VideoProcessor|(?<!Attn)(?<!Attention)(?<!Logits)(?<!Score)Processor"
    r"|TritonPythonModel|[a-z]Proto)$"  # ``DataProto``, what processes hand to each other
)
_WAITS_FOR_OTHERS = frozenset({"ray.get", "ray.wait", "torch.distributed.rpc.rpc_sync"})
OF_TEXT = frozenset({"tokenizer", "processor"})
"""What is handed to those who turn text into numbers, or numbers into text."""
_OWN_TEXT = frozenset(f"self.{name}" for name in OF_TEXT)
_MESSAGE = re.compile(r"[a-z]Proto\b")
_ON_DEVICE = frozenset(
    {"autocast", "backward", "cuda", "enable_grad", "inference_mode", "no_grad", "npu", "to"}
)
"""What a class calls that computes on a device of its own."""
_WITHOUT_GRADIENT = frozenset({"inference_mode", "no_grad"})
"""What a driver says as well, of what it computes on the host."""
_FOR_HOST = re.compile(
    r"_*collate(_.*)?|\w+_collate(_fn)?|_*data_collator(_\w+)?|\w*_getitem(_.*|__)?|worker_init_fn|\w+_(?<!to_)cpu"
    r"|_*(\w+_)?get_(m?rope|position)_index(_\w+)?"
    r"|_*(de)?tokenize_(\w+_)?(text|prompt|caption|conversation|dialog(ue)?|message)s?(_\w+)?"
)
"""What loads data, or stands beside its like for the device: ``connected_components_cpu``.

``get_rope_index`` of models for images goes over the tokens of each text, once for all layers:
those who adapt them hand it ids of the host.
"""


_EVALUATES = re.compile(
    r"(?i)(dev|test|valid|val|validate|validation|eval|evaluate|evaluation)([_-].*)?"
)
_DEBUGS = re.compile(
    r"(?i)^_*((is|in|for|enable|if|do|run)_)*(debug(ging)?|ci|ci_test|sanity_check)(_mode)?$"
)
_WARNS = frozenset({"error", "warn", "warning"})
_OPTIMIZES = re.compile(r"(?i)(^|_)(opt|optim|optimi[sz]er)(_|$)")
_BACKWARD = frozenset({"backward", "manual_backward"})
_LEARNS_BY = re.compile(
    r"_*(opt|optim|optimi[sz]er)_(step|update)|_*(step|update)_(opt|optim|optimi[sz]er)"
)
"""A method that goes back and takes the step: ``self.optimizer_update(self.optimizer, loss)``."""
_LOADED = re.compile(r"(?i)load|data|batches")
_LOSS = re.compile(r"(^|_)loss(_|$)")
_OF_TENSORS_ALONE = frozenset(
    {"detach", "masked_fill", "new_full", "new_ones", "new_tensor", "new_zeros", "permute",
     "unsqueeze"}
)  # fmt: skip


def computes(function: FunctionNode, words: Sequence[str]) -> bool:
    """Tell whether a function turns tensors into tensors or numbers, as far as annotated.

    ``words`` are those of its name; what stands in for a kernel, or unpacks weights, is none.
    """
    given = (*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs)
    tensors = sum(
        a.annotation is not None and _OF_TENSORS.search(ast.unparse(a.annotation)) is not None
        for a in given
    )
    if function.returns is None:  # of several tensors, something else than a check of them
        returned = (n.value for n in nodes_of(function) if isinstance(n, ast.Return))
        is_computed = tensors > 1 and any(value is not None for value in returned)
    else:
        is_computed = tensors > 0 and _COMPUTED.search(ast.unparse(function.returns)) is not None
    return _IN_PLACE_OF_KERNELS.isdisjoint(words) and is_computed


def moves_given(function: FunctionNode) -> bool:
    """Tell whether a function moves what it is handed, to compute with it: ``t = t.to(device)``."""
    given = list_given(function)
    moved = [
        name
        for node in nodes_of(function)
        if isinstance(node, ast.Assign)
        for name in map(ast.unparse, node.targets)
        if name in given and not _NETWORK.search(name)
        if re.match(rf"{name}\.to\((device=)?device\b", ast.unparse(node.value))
    ]
    returned = [n for n in nodes_of(function) if isinstance(n, ast.Return) and n.value is not None]
    moves = bool(moved) or any(map(_moves_each, nodes_of(function)))
    return "device" in given and moves and bool(returned)


def _moves_each(node: ast.AST) -> bool:
    """Tell whether all of a batch is moved: ``{k: v.to(device) for k, v in batch.items()}``."""
    of_batch = isinstance(node, ast.DictComp | ast.ListComp) and not _NETWORK.search(
        ast.unparse(node.generators[0].iter)
    )
    return of_batch and any(
        isinstance(n, ast.Call) and re.search(r"\.to\((device=)?device\b", ast.unparse(n))
        for n in ast.walk(node)
    )


def takes_tensors(function: FunctionNode) -> bool:
    """Tell whether a function asks what it is handed for what tensors alone have: ``x.permute``.

    ``def make_targets(x): y = x.new_zeros(len(x))`` runs as often as there are batches.
    """
    given = {*list_given(function)} - {"self"}
    return any(
        isinstance(node, ast.Attribute)
        and isinstance(node.value, ast.Name)
        and node.value.id in given
        and node.attr in _OF_TENSORS_ALONE
        for node in nodes_of(function)
    )


def list_repeated(function: FunctionNode) -> Iterable[ast.AST]:
    """Return what a step runs: of ``sample``, which begins with a table of times, its loops."""
    nodes = nodes_of(function)
    loops = [n for n in nodes if isinstance(n, (ast.For, ast.While))]
    if not (loops and SAMPLES.fullmatch(function.name)):
        return nodes
    return [inner for loop in loops for inner in walk(*loop.body)]


def samples(function: FunctionNode, line: int = 0) -> bool:
    """Tell whether a function has a loop over the steps of a sample, around a line if given.

    Each round calls a network and a scheduler: ``x = self.scheduler.step(self.unet(x, t), t, x)``.
    Training does so too: that of the learning rate.
    """
    for loop in nodes_of(function):
        if not isinstance(loop, ast.For) or not (
            not line or loop.body[0].lineno <= line <= (loop.end_lineno or line)
        ):
            continue
        calls = [ast.unparse(n.func) for n in walk(*loop.body) if isinstance(n, ast.Call)]
        learns = any(called.endswith(".backward") for called in calls)
        if not learns and any(map(_STEPS.search, calls)) and any(map(_NETWORK.search, calls)):
            return True
    return False


def trains(function: FunctionNode, line: int = 0) -> bool:
    """Tell whether a function has a loop with ``loss.backward()``, around a line if given."""
    loops = [n for n in nodes_of(function) if isinstance(n, ast.For | ast.While)]
    return any(
        (not line or loop.body[0].lineno <= line <= (loop.end_lineno or line))
        and any(
            isinstance(n, ast.Call) and last_name(n.func) == "backward" for n in walk(*loop.body)
        )
        for loop in loops
    )


def knows_device(cls: ast.ClassDef) -> bool:
    """Tell whether a class says where it computes: who proposes plans does so on the host."""
    held = (n for n in nodes_of(cls) if isinstance(n, ast.Attribute | ast.keyword | ast.arg))
    return any("device" in {getattr(n, "attr", ""), getattr(n, "arg", "")} for n in held)


def is_host_code(flow: FunctionFlow) -> bool:
    """Tell whether a function loads data, turns text into numbers, or drives other processes."""
    compiled = any(_is_kernel(flow, code) for code in flow.function.decorator_list)
    if compiled or _FOR_HOST.fullmatch(flow.function.name) or _takes_tokenizer(flow.function):
        return True
    if flow.cls is None:
        return (
            _drives_others(flow)
            or _takes_message(flow.function)
            or (flow.names.tree is not None and _is_of_actors(flow.names.tree, flow.names.dotted))
        )
    classes = (flow.cls, *flow.names.bases(flow.cls))
    bases = [_name_of_base(base) for cls in classes for base in cls.bases]
    if any(base.endswith("Module") and not base.endswith("DataModule") for base in bases):
        return False  # a ``DataPreProcessor`` or ``Sampler`` that is a module runs on the device
    if not {"Sampler", "BatchSampler", "DistributedSampler"}.isdisjoint(bases):
        return True  # that of a loader, not of a model
    if not {"Transform", "BaseTransform"}.isdisjoint(bases):
        return True  # one after the other, a loader calls them with its samples
    return (
        any(_ON_HOST.search(name) for name in (flow.cls.name, *bases))
        or _drives_others(flow)
        or any(_asks_for_cores_alone(flow, code) for code in flow.cls.decorator_list)
    )


def _takes_message(function: FunctionNode) -> bool:
    """Tell whether a function gets what processes hand to each other: ``data: "DataProto"``.

    A driver computes with it on the host; where a worker has it moved, a method does so.
    """
    args = (*function.args.args, *function.args.kwonlyargs)
    kinds = (ast.unparse(a.annotation) for a in args if a.annotation is not None)
    return any(_MESSAGE.search(kind) is not None for kind in kinds)


def _is_kernel(flow: FunctionFlow, decorator: ast.expr) -> bool:
    """Tell whether Numba compiles a function, for the host or as a kernel: ``@cuda.jit()``."""
    code = decorator.func if isinstance(decorator, ast.Call) else decorator
    return (flow.names.dotted(code) or "").startswith("numba.")


def _asks_for_cores_alone(flow: FunctionFlow, decorator: ast.expr) -> bool:
    """Tell whether an actor of Ray has no device: ``@ray.remote(num_cpus=10)``."""
    of_ray = isinstance(decorator, ast.Call) and flow.names.dotted(decorator.func) == "ray.remote"
    return of_ray and _names_cores_alone(decorator)


def _names_cores_alone(decorator: ast.expr) -> bool:
    asked = {keyword.arg for keyword in getattr(decorator, "keywords", ())}
    return "num_cpus" in asked and asked.isdisjoint({None, "num_gpus", "resources"})


@lru_cache(maxsize=2)
def _is_of_actors(module: ast.Module, dotted: Callable[[ast.expr], str | None]) -> bool:
    """Tell whether a module holds what runs in processes without a device, and no part of a model.

    Those are actors of Ray that ask ``@ray.remote(num_cpus=10)``, and functions below a bare
    ``@ray.remote``; what stands beside them packs and unpacks what they hand on.
    """
    found = False
    for node in module.body:
        if isinstance(node, ast.ClassDef) and any(_name_of_base(b) == "Module" for b in node.bases):
            return False
        for decorator in getattr(node, "decorator_list", ()):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            if dotted(called) == "ray.remote":
                bare = called is decorator and not isinstance(node, ast.ClassDef)
                if not bare and not _names_cores_alone(decorator):
                    return False
                found = True
    calls = (n for n in nodes_of(module) if isinstance(n, ast.Call))
    return found and not any(
        _is_of_device(call) and last_name(call.func) not in _WITHOUT_GRADIENT for call in calls
    )


def _name_of_base(code: ast.expr) -> str:
    """Return the last name of a base: ``Dataset`` of ``data.Dataset[Batch]``."""
    return last_name(code.value if isinstance(code, ast.Subscript) else code)


def _drives_others(flow: FunctionFlow) -> bool:
    """Tell whether a function, or its class, has other processes compute: ``ray.get(refs)``.

    What they send back lies on the host; not so in an actor that computes, or moves, itself.
    """
    code = flow.function if flow.cls is None else flow.cls
    nodes = nodes_of(code)
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    waits = any((flow.names.dotted(call.func) or "") in _WAITS_FOR_OTHERS for call in calls)
    if flow.cls is not None and not waits:
        methods = [n for n in flow.cls.body if isinstance(n, ast.FunctionDef)]
        waits = any(map(_takes_message, methods)) or _asks_texts(nodes)
    return waits and not any(map(_is_of_device, calls))


def _asks_texts(nodes: Iterable[ast.AST]) -> bool:
    """Tell whether a class turns texts into numbers, and waits for who answers them: ``await``."""
    nodes = list(nodes)
    texts = {ast.unparse(n) for n in nodes if isinstance(n, ast.Attribute) and n.attr in OF_TEXT}
    return not texts.isdisjoint(_OWN_TEXT) and any(isinstance(n, ast.Await) for n in nodes)


def _is_of_device(call: ast.Call) -> bool:
    """Tell whether a call says where something is computed: not so ``x.to(torch.int16)``."""
    name = last_name(call.func)
    to_kind = name == "to" and all(ast.unparse(a).startswith("torch.") for a in call.args)
    return name in _ON_DEVICE and not (to_kind and call.args and not call.keywords)


def runs_seldom(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a test lets a line run for an old torch, for what is wrong, or for a metric."""
    function = flow.function
    return (
        _is_for_old_torch(flow, line)
        or _is_warned_of(function, line)
        or _is_evaluated(function, line)
        or _is_debugged(function, line)
        or _validates(function)
    )


def _validates(function: FunctionNode) -> bool:
    """Tell whether a function goes over data for its losses, and learns nothing from them.

    ``self.model.eval()``, then ``for batch in loader: total += self.model(batch)["loss"]``.
    """
    nodes = list(nodes_of(function))
    called = {n.func.attr for n in nodes if isinstance(n, ast.Call) and _is_method(n.func)}
    loops = [n for n in nodes if isinstance(n, ast.For) and _LOADED.search(ast.unparse(n.iter))]
    told = any("loss" in ast.unparse(n).lower() for loop in loops for n in loop.body)
    return "eval" in called and told and called.isdisjoint({*_BACKWARD, "step", "zero_grad"})


def _is_method(code: ast.expr) -> TypeGuard[ast.Attribute]:
    return isinstance(code, ast.Attribute)


def _is_warned_of(function: FunctionNode, line: int) -> bool:
    """Tell whether a line runs where numbers are wrong, which the log is told: ``if n != len(x):``.

    Not so where something is missing, ``if kernel is None:``, or a setting says so. What replaces
    numbers that are none, behind ``if torch.isnan(x).any():``, needs no log.
    """
    for node in nodes_of(function):
        if isinstance(node, ast.If) and _finds_nan(_spelled_out(function, node.test)):
            if holds_line(node.body, line):
                return True
            continue
        if not isinstance(node, ast.If) or not _compares_numbers(node.test):
            continue
        for block in (node.body, node.orelse):
            if not holds_line(block, line):
                continue
            calls = [s.value for s in block if isinstance(s, ast.Expr)]
            if any(isinstance(c, ast.Call) and last_name(c.func) in _WARNS for c in calls):
                return True
    return False


def _is_evaluated(function: FunctionNode, line: int) -> bool:
    """Tell whether a line runs where a mode says that nothing is trained: ``mode == "dev"``."""
    return any(
        isinstance(node, ast.If) and holds_line(node.body, line) and _asks_for_evaluation(node.test)
        for node in nodes_of(function)
    )


def _is_debugged(function: FunctionNode, line: int) -> bool:
    """Tell whether a line runs where somebody looks for a mistake: ``if args.ci_test:``."""
    return any(
        holds_line(node.body, line)
        and any(map(_DEBUGS.search, map(last_name, _list_required(node.test))))
        for node in nodes_of(function)
        if isinstance(node, ast.If)
    )


def _list_required(test: ast.expr) -> list[ast.expr]:
    """Return what must be true: ``a`` and ``b`` of ``a and b``."""
    return test.values if isinstance(test, ast.BoolOp) and isinstance(test.op, ast.And) else [test]


def _asks_for_evaluation(test: ast.expr) -> bool:
    match test:
        case ast.BoolOp(ast.Or(), parts):
            return all(map(_asks_for_evaluation, parts))
        case ast.BoolOp(ast.And(), parts):
            return any(map(_asks_for_evaluation, parts))
        case ast.Compare(_, [ast.Eq()], [ast.Constant(str(name))]):
            return _EVALUATES.fullmatch(name) is not None
        case ast.Compare(_, [ast.In()], [ast.List(parts) | ast.Tuple(parts) | ast.Set(parts)]):
            names = [p.value for p in parts if isinstance(p, ast.Constant)]
            given = [name for name in names if isinstance(name, str)]
            return (
                bool(given) and len(given) == len(parts) and all(map(_EVALUATES.fullmatch, given))
            )
    return False


def _finds_nan(test: ast.expr) -> bool:
    """Tell whether a test asks for numbers that are none: ``torch.isnan(x).any()``."""
    match test:
        case ast.BoolOp(_, values):
            return all(map(_finds_nan, values))
        case ast.BinOp(left, ast.BitOr(), right):
            return _finds_nan(left) and _finds_nan(right)
        case ast.UnaryOp(ast.Not(), ast.Call(func, args)):
            parts: list[ast.expr] = [func, *args]
            wanted = {"isfinite"}
        case ast.Call(func, args):
            parts = [func, *args]
            wanted = {"isinf", "isnan"}
        case _:
            return False
    calls = {last_name(n.func) for p in parts for n in ast.walk(p) if isinstance(n, ast.Call)}
    own = {last_name(func)} | calls
    return not own.isdisjoint(wanted) and own <= wanted | {"all", "any", "item", "max", "sum"}


def _spelled_out(function: FunctionNode, test: ast.expr) -> ast.expr:
    """Return ``not x.isfinite().all()`` for ``not ok.all()`` behind ``ok = x.isfinite()``."""
    match test:
        case ast.UnaryOp(ast.Not(), inner):
            return ast.UnaryOp(ast.Not(), _spelled_out(function, inner))
        case ast.Call(ast.Attribute(ast.Name(name), how), [], []):
            made = [
                n.value
                for n in nodes_of(function)
                if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)
            ]
            if len(made) == 1:
                return ast.Call(ast.Attribute(made[0], how, ast.Load()), [], [])
    return test


def _compares_numbers(test: ast.expr) -> bool:
    """Tell whether a test compares what no setting says: ``size != x.size(1)``."""
    return any(
        isinstance(part, ast.Compare)
        and not isinstance(part.ops[0], (ast.Is, ast.IsNot, ast.In, ast.NotIn))
        and not any(
            isinstance(n, ast.Constant) and isinstance(n.value, (str, bool)) for n in ast.walk(part)
        )
        for part in ast.walk(test)
    )


def _takes_tokenizer(function: FunctionNode) -> bool:
    """Tell whether a function of its own turns text into numbers: who gets a tokenizer calls it.

    A method that gets one computes as well, once a text: ``inference(self, text, tokenizer)``.
    So does who gets one and leaves it: ``make_masks(tokens, special_tokens, tokenizer)``.
    """
    given = list_given(function) & OF_TEXT
    reads = {n.id for n in nodes_of(function) if isinstance(n, ast.Name)} if given else set()
    return "self" not in list_given(function) and bool(given & reads)


def list_given(function: FunctionNode) -> set[str]:
    """Return the names of the parameters of a function."""
    args = function.args
    return {arg.arg for arg in (*args.posonlyargs, *args.args, *args.kwonlyargs)}


def _is_for_old_torch(flow: FunctionFlow, line: int) -> bool:
    """Tell whether a line is for a torch that lacks something: ``if hasattr(F, "gelu")``, else.

    So is a function that its module takes for an old one: ``if version < "1.7": silu = _silu``.
    """
    tests = [s for s in getattr(flow.names.tree, "body", ()) if isinstance(s, ast.If) and s.orelse]
    old = [n for s in tests if "torch.__version__" in ast.unparse(s.test) for n in s.body]
    if flow.function.name in [ast.unparse(n.value) for n in old if isinstance(n, ast.Assign)]:
        return True
    for node in nodes_of(flow.function):
        match node:
            case ast.If(ast.Call(ast.Name("hasattr"), [module, _]), _, [first, *_]):
                of_torch = (flow.names.dotted(module) or "").partition(".")[0] == "torch"
                if of_torch and first.lineno <= line <= (node.end_lineno or line):
                    return True
    return False


def takes_step(function: FunctionNode) -> bool:
    """Tell whether a function learns from one batch: ``loss.backward()``, then ``optim.step()``.

    Some hand the loss on, ``self.optim.step(loss)``, or the optimizer, ``scaler.step(optim)``.
    """
    calls = [n for n in nodes_of(function) if isinstance(n, ast.Call)]
    steps = [
        c
        for c in calls
        if isinstance(c.func, ast.Attribute)
        and c.func.attr == "step"
        and isinstance(c.func.value, ast.Name | ast.Attribute)
        and any(_OPTIMIZES.search(last_name(part)) for part in (c.func.value, *c.args[:1]))
    ]
    if any(c.args and _LEARNS_BY.fullmatch(last_name(c.func)) for c in calls):
        return True
    given = (last_name(arg) for call in steps for arg in call.args[:1])
    return bool(steps) and (
        any(last_name(c.func).lstrip("_") in _BACKWARD for c in calls)
        or any(map(_LOSS.search, given))
    )
