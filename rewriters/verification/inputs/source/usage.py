"""What a function does with its arguments: how many dimensions they have, what keys they hold.

``b, h, t, d = q.shape`` says that q has four; ``x[:, :, 0]`` that x has at least three.
"""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, TypeAlias

from npufix.rewriters.edit.edit import segment
from npufix.rewriters.graph.modules.names import source_lines
from npufix.rewriters.graph.modules.syntax import parse_once, walk
from npufix.rewriters.verification.inputs.source import guards, operands
from npufix.rewriters.verification.inputs.source.operands import find_flags, is_element
from npufix.rewriters.verification.inputs.source.training.loops import (
    Batch,
    Result,
    find_batch,
    find_batches,
    find_result,
)
from npufix.rewriters.verification.inputs.source.training.losses import (
    find_bound,
    list_class_weights,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Function: TypeAlias = "ast.FunctionDef | ast.AsyncFunctionDef"
_BY_PATTERN = {"rearrange", "repeat", "reduce"}
_BY_SIZE = {"size", "stride"}
_BY_AXES = {"transpose", "unbind", "swapaxes"}
_SEQUENCES = {"cat", "stack", "concat", "hstack", "vstack", "zip", "enumerate", "sorted", "list"}
_PAIR = 2
_KEEP_SIZES = frozenset(
    [
        *("to", "type", "type_as", "float", "double", "half", "bfloat16", "long", "int", "bool"),
        *("cpu", "cuda", "npu", "clone", "detach", "contiguous"),
    ]
)
"""Methods that return as many numbers in as many dimensions."""
_COUNTED = frozenset(["range", "arange", "eye", "tril_indices", "triu_indices"])
"""What takes whole numbers alone."""
_COUNTED_LATER = frozenset(["one_hot", "split", "chunk", "narrow", "topk", "tril", "triu", "roll"])
"""And what does after the tensor that it is about."""
_LENGTHS = r"(^|_)(len(s|gths?)?|idx|ind(ex|ices))$"
_OF_ONE = frozenset(["range", "int", "float"])
_OF_NUMBERS = frozenset(["sqrt", "log", "log2", "floor", "ceil", "gcd", "isqrt"])
_SIZED = frozenset(
    [
        *("view", "reshape", "expand", "unflatten", "new_zeros", "new_ones", "new_empty"),
        *("zeros", "ones", "empty", "randn", "rand"),
    ]
)
"""What takes sizes, one by one or in a tuple."""
_OF_COMPLEX = {"view_as_real", "imag", "angle", "irfft", "irfft2", "irfftn", "istft"}
_OPTIMIZERS = r"(Npu)?(Fused)?(Adam|SGD|RMSprop|Adagrad|Adadelta|Lamb|LAMB|Lion)\w*"
OF_TENSORS = frozenset(
    [
        *("shape", "dtype", "device", "dim", "ndim", "size", "view", "reshape", "to", "float"),
        *("half", "bool", "long", "unsqueeze", "squeeze", "expand", "masked_fill", "transpose"),
        *("permute", "contiguous", "sum", "mean", "new_zeros", "type_as", "T", "mT", "grad"),
        *("requires_grad", "is_cuda", "is_npu", "real", "imag", "layout"),
    ]
)


@dataclass(slots=True)
class Use:
    """What is done with one argument."""

    dims: set[int] = field(default_factory=set)
    """How many dimensions it has, where the code says so."""
    tested: bool = False
    """Whether it asks how many there are: then others may do as well."""
    least: int = 0
    """How many it has at least."""
    columns: int = 0
    """How long the last of them is at least: 5 for ``x[:, [0, 4]]`` and ``x[..., 4]``."""
    corners: bool = False
    """Whether it holds the corners of boxes, whatever follows them."""
    keys: list[str] = field(default_factory=list)
    """Names under which it holds something."""
    listed: bool = False
    """Whether it is a list of what the code calls so: ``tokens, pooled = inputs``."""
    paired: bool = False
    """Whether it is two things: ``key, value = layer_past``."""
    deep: bool = False
    """Whether it holds what holds something: ``past[0][1]``, ``for key, value in past``."""
    looped: bool = False
    """Whether the code goes through it, or joins what it holds."""
    called: bool = False
    given: int = 0
    """How many arguments it is called with, at most."""
    flags: bool = False
    """Whether it holds what is True or False: ``x.masked_fill(~pad[:, None], 0)``."""
    decides: bool = False
    """Whether a test asks how large it is: a number."""
    trained: bool = False
    """Whether an optimizer is made for it."""
    sets: bool = False
    """Whether it is a setting of an optimizer: a number."""
    attributes: set[str] = field(default_factory=set)
    added: bool = False
    """Whether it stands in a sum or a product."""
    summed: bool = False
    """Whether it is added to something and used for nothing else: no flags."""
    counts: bool = False
    """Whether it is a whole number: a size, or how many there are."""
    rounds: bool = False
    """Whether a loop has as many rounds, so that there are as many of something else."""
    indexed: bool = False
    """Whether it has elements, so that it is no number: ``x[i]``."""
    elements: bool = False
    """Whether single ones of its elements are numbers: ``n[i].item()``, ``x[:, : n[i]]``."""
    below: str = ""
    """What its numbers are less than: ``n`` for ``bincount(x, minlength=n)``."""
    length: int = 0
    """How many elements it has at least, by plain indexes: 4 for ``sizes[3]``."""
    weighs: bool = False
    """Whether it holds a number for each class: ``F.cross_entropy(x, y, weight=weights)``."""
    numbers: bool = False
    """Whether its elements are whole: ``chosen == expert``, ``x[: int(lengths[b])]``."""
    measured: Literal["", "float", "share"] = ""
    """Whether a loss measures it, or holds it against probabilities: never whole numbers."""
    batches: Batch | None = None
    """What a loop takes from it with every round, if it takes that apart."""
    batch: Batch | None = None
    """In what form it is taken apart itself."""
    gives: Result | None = None
    """What is read of what it returns."""
    derived: bool = False
    """Whether gradients are computed of it."""
    added_up: bool = False
    """Whether it is a list of numbers: ``torch.tensor(sum(counts))``."""

    @property
    def in_loops(self) -> Use:
        """What holds whatever a text says: its parts, and what it is in a training loop."""
        kept = Use(keys=self.keys, counts=self.counts, batches=self.batches, batch=self.batch)
        kept.derived, kept.corners, kept.listed = self.derived, self.corners, self.listed
        if self.gives is not None:
            kept.gives, kept.called, kept.attributes = self.gives, self.called, self.attributes
        return kept

    @property
    def is_complex(self) -> bool:
        """Whether its numbers are complex, without being asked whether they are."""
        return "is_complex" not in self.attributes and bool(self.attributes & _OF_COMPLEX)

    @property
    def kind(self) -> Literal["int", "float", "complex", "bool"] | None:
        """What its elements are, if nothing else would do."""
        return (
            "int" if self.numbers
            else "complex" if self.is_complex
            else "bool" if self.flags
            else "float" if self.measured
            else None
        )  # fmt: skip

    @property
    def as_tensor(self) -> bool:
        """Whether it is used as a tensor is, or in sums, where a number says little."""
        return self.added or bool(self.attributes & OF_TENSORS)


def find_function(tree: ast.Module, qualname: str) -> Function | None:
    """Return the definition of a function, the last of several."""
    body: list[ast.stmt] = tree.body
    found: ast.AST | None = None
    for name in qualname.partition(".<locals>")[0].split("."):
        named = [n for n in _flat(body) if getattr(n, "name", None) == name]
        if not named:
            return None
        found = named[-1]
        body = getattr(found, "body", [])
    return found if isinstance(found, ast.FunctionDef | ast.AsyncFunctionDef) else None


def _flat(body: list[ast.stmt]) -> Iterator[ast.stmt]:
    """Yield statements and those below ``if`` and ``try``."""
    for statement in body:
        yield statement
        for part in ("body", "orelse", "handlers", "finalbody"):
            if isinstance(statement, ast.If | ast.Try | ast.With | ast.ExceptHandler):
                yield from _flat(getattr(statement, part, []))


def read_source(text: str, qualname: str) -> str:
    """Return the text of a function; empty if there is none."""
    try:
        function = find_function(parse_once(text), qualname)
    except (SyntaxError, ValueError):
        return ""
    return "" if function is None else segment(source_lines(text), function)


def list_arguments(function: Function) -> list[ast.arg]:
    """Return the named arguments."""
    given = function.args
    return [*given.posonlyargs, *given.args, *given.kwonlyargs]


def find_uses(function: Function) -> dict[str, Use]:
    """Return what is done with each argument, as long as it is what was given."""
    found = {arg.arg: Use() for arg in list_arguments(function)}
    until = {name: find_last_line(function, name) for name in found}
    for node in walk(function):
        for name, use in found.items():
            if getattr(node, "lineno", 0) <= until[name]:
                _note(use, node, name)
    _note_what_is_said(found, function, until)
    for name, use in found.items():
        use.batches, use.batch = find_batches([function], name), find_batch(function, name)
        use.gives = find_result([function], name) if use.called else None
        use.numbers |= use.elements and re.search(_LENGTHS, name.lower()) is not None
        _note_kept_shapes(use, function, name)
    marks = (
        ("summed", operands.find_summed),
        ("decides", operands.list_deciding),
        ("deep", operands.list_looped_twice),
        ("counts", operands.list_plain_keys),
        ("corners", operands.find_corners),
        ("derived", operands.find_derived),
        ("added_up", operands.list_added_up),
    )
    for mark, name in ((mark, n) for mark, find in marks for n in find(function, found)):
        setattr(found[name], mark, True)
    return found


def _note_what_is_said(found: dict[str, Use], function: Function, until: Mapping[str, int]) -> None:
    """Note what numbers and dimensions the code around arguments says that they have."""
    numbered = [(n, b, set[int]()) for n, b in operands.list_compared_with_counters(function)]
    numbered += [(n, "", dims) for n, dims in operands.list_places(function)]
    for use, bound, dims in ((found[n], b, d) for n, b, d in numbered if n in found):
        use.numbers, use.below = True, use.below or bound
        use.dims |= dims
    for name, count in operands.list_ranks(function, found):
        found[name].dims.add(count)
    for name, least in guards.find_least_axes(function, until).items():
        found[name].least = max(found[name].least, 0 if found[name].tested else least)
    for name, line, axes, below in guards.list_refused(function):
        if name in found and line <= until[name]:
            found[name].dims |= set() if axes is None else {len(axes)}
            found[name].below = found[name].below or below


def _note_kept_shapes(use: Use, function: Function, name: str) -> None:
    """See ``size = x.shape`` and, wherever it stands, ``size[3]`` or ``b, t, d = size``.

    Below ``x = x.float()`` as well, where ``b, t, d = x.shape`` says the same.
    """
    until = find_last_line(function, name, sized=True)
    assigned = [n for n in walk(function) if isinstance(n, ast.Assign) and n.lineno <= until]
    targets = [node.targets[0] for node in assigned if is_shape(node.value, name)]
    for one in targets:
        if isinstance(one, ast.Tuple) and all(isinstance(n, ast.Name) for n in one.elts):
            use.dims.add(len(one.elts))
    kept = [target.id for target in targets if isinstance(target, ast.Name)]
    stored = [n.id for n in walk(function) if isinstance(n, ast.Name) and type(n.ctx) is ast.Store]
    once = {one for one in kept if stored.count(one) == 1}
    for node in walk(function) if once else ():
        if getattr(getattr(node, "value", None), "id", "") not in once:
            continue
        if isinstance(node, ast.Subscript):
            use.least = max([use.least, *(_axes_for(n) for n in read_axis(node.slice))])
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
            parts = node.targets[0].elts
            if not any(isinstance(part, ast.Starred) for part in parts):
                use.dims.add(len(parts))


def find_last_line(function: Function, name: str, *, sized: bool = False) -> int:
    """Return the last line on which a name is sure to mean the argument.

    Or what has its sizes, with ``sized``: ``x = x.float()``.
    """
    stores = [
        statement.lineno
        for statement in walk(function)
        if isinstance(statement, ast.Assign | ast.AugAssign | ast.For | ast.AnnAssign)
        and not (sized and _keeps_sizes(statement, name))
        and any(
            isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
            for n in walk(statement)
        )
    ]
    return min(stores, default=function.end_lineno or function.lineno)


def _keeps_sizes(statement: ast.stmt, name: str) -> bool:
    value = statement.value if isinstance(statement, ast.Assign) else None
    called = getattr(value, "func", None)
    return getattr(called, "attr", "") in _KEEP_SIZES and _is(getattr(called, "value", None), name)


def _is(node: ast.AST | None, name: str) -> bool:
    return isinstance(node, ast.Name) and node.id == name


def _note(use: Use, node: ast.AST, name: str) -> None:
    if isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Tuple | ast.List):
        note_unpacking(use, node.targets[0], node.value, name)
    elif isinstance(node, ast.Compare):
        _note_comparison(use, node, name)
    elif isinstance(node, ast.Subscript):
        _note_subscript(use, node, name)
    elif isinstance(node, ast.Slice):
        use.elements |= is_element(node.lower, name) or is_element(node.upper, name)
    elif isinstance(node, ast.Call):
        _note_call(use, node, name)
    elif isinstance(node, ast.For | ast.comprehension) and _is(node.iter, name):
        use.looped = True
        use.deep |= isinstance(node.target, ast.Tuple)
    elif isinstance(node, ast.Attribute) and _is(node.value, name):
        use.attributes.add(node.attr)
        use.dims |= {2} if node.attr == "T" else set()  # of others torch warns, and means no one
    elif isinstance(node, ast.BinOp) and (_is(node.left, name) or _is(node.right, name)):
        use.added = True


def is_shape(node: ast.AST, name: str) -> bool:
    """Say whether this is ``name.shape`` or ``name.size()``."""
    if isinstance(node, ast.Call) and not node.args and isinstance(node.func, ast.Attribute):
        return node.func.attr in _BY_SIZE and _is(node.func.value, name)
    return isinstance(node, ast.Attribute) and node.attr == "shape" and _is(node.value, name)


def note_unpacking(use: Use, targets: ast.Tuple | ast.List, value: ast.expr, name: str) -> None:
    """Note how many dimensions ``b, t, d = x.shape`` says that ``x`` has."""
    stars = sum(isinstance(target, ast.Starred) for target in targets.elts)
    count = len(targets.elts) - stars
    if isinstance(value, ast.Tuple):  # ``b, n, device = *x.shape, x.device``
        starred = [is_shape(v.value, name) for v in value.elts if isinstance(v, ast.Starred)]
        use.dims |= {count - len(value.elts) + 1} if starred == [True] and not stars else set()
    use.paired |= _is(value, name) and len(targets.elts) == _PAIR and not stars
    cut = isinstance(value, ast.Subscript) and is_shape(value.value, name)
    if cut or (stars and is_shape(value, name)):
        use.least = max(use.least, count)
    elif is_shape(value, name):
        use.dims.add(count)


def _note_comparison(use: Use, node: ast.Compare, name: str) -> None:
    """See ``x.dim() == 3``, ``len(x.shape) == 3`` and ``x.ndim in (3, 4)``."""
    left = node.left
    counted = isinstance(left, ast.Attribute) and left.attr == "ndim" and _is(left.value, name)
    if isinstance(left, ast.Call):
        func = left.func
        dim = isinstance(func, ast.Attribute) and func.attr in {"dim", "ndimension"}
        counted = dim and _is(getattr(func, "value", None), name)
        counted |= _is(func, "len") and len(left.args) == 1 and is_shape(left.args[0], name)
    if counted:
        use.tested = True


def _numbers(nodes: list[ast.expr]) -> list[int]:
    return [n.value for n in nodes if isinstance(n, ast.Constant) and type(n.value) is int]


def _note_subscript(use: Use, node: ast.Subscript, name: str) -> None:
    if is_shape(node.value, name):
        use.least = max([use.least, *(_axes_for(n) for n in read_axis(node.slice))])
    use.deep |= is_element(node.value, name) and _is_number(node.slice)
    if not _is(node.value, name):
        return
    use.indexed = True
    # ``x[2:]`` is to hold something as well
    first = node.slice.lower if isinstance(node.slice, ast.Slice) and not node.slice.upper else None
    use.length = max([use.length, *(_axes_for(n) for n in read_axis(first or node.slice))])
    if isinstance(node.slice, ast.Constant) and isinstance(node.slice.value, str):
        use.keys += [node.slice.value] * (node.slice.value not in use.keys)
    elif isinstance(node.slice, ast.Tuple):
        plain = [n for n in node.slice.elts if not _adds_nothing(n)]
        use.least = max(use.least, len(plain))
        last = node.slice.elts[-1] if node.slice.elts else node.slice
        listed = last.elts if isinstance(last, ast.List) else [last]
        use.columns = max([use.columns, *(_axes_for(n) for one in listed for n in read_axis(one))])


def _is_number(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and type(node.value) is int


def _adds_nothing(node: ast.expr) -> bool:
    """Say whether this is ``None`` or ``...`` in a subscript."""
    return isinstance(node, ast.Constant) and (node.value is None or node.value is ...)


def read_axis(node: ast.expr) -> list[int]:
    """Return the axis that an index names: 1 for ``1``, -1 for ``-1``; none if it is no number."""
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        return [-n for n in _numbers([node.operand])]
    return _numbers([node])


def _axes_for(axis: int) -> int:
    """Return how many dimensions there must be for an axis of this number."""
    return axis + 1 if axis >= 0 else -axis


def _note_call(use: Use, node: ast.Call, name: str) -> None:
    func, arguments = node.func, node.args
    called = func.attr if isinstance(func, ast.Attribute) else getattr(func, "id", "")
    use.called |= _is(func, name)
    use.given = max(use.given, _is(func, name) * (len(arguments) + len(node.keywords)))
    if re.fullmatch(_OPTIMIZERS, called):
        use.trained |= _is(next(iter(arguments), None), name)
        use.sets |= any(_is(keyword.value, name) for keyword in node.keywords)
    held = arguments[:1] if called in _OF_ONE else [getattr(func, "value", None)]
    use.rounds |= called == "range" and any(_is(argument, name) for argument in arguments)
    use.elements |= called in {*_OF_ONE, "item"} and any(is_element(one, name) for one in held)
    use.counts |= any(_is_computed_from(size, name) for size in _list_counts(node, called))
    if _is(next(iter(arguments), None), name):
        use.attributes |= {called} & {*_OF_COMPLEX, "is_complex"}
    use.weighs |= any(_is(w, name) for w in list_class_weights(node))
    use.flags |= find_flags(node) == name
    if any(name in re.split(r"\W", ast.unparse(one)) for one in [*arguments[:1], func]):
        use.below = find_bound(node) or use.below
    use.numbers |= called == "one_hot" and _is(next(iter(arguments), None), name)
    use.looped |= called in _SEQUENCES and any(_is(argument, name) for argument in arguments)
    if called == "einsum" and arguments and isinstance(arguments[0], ast.Constant):
        operands = str(arguments[0].value).partition("->")[0].split(",")
        for letters, operand in zip(operands, arguments[1:], strict=False):
            if _is(operand, name) and "." not in letters:
                use.dims.add(len(letters.strip().replace(" ", "")))
    elif called in _BY_PATTERN and len(arguments) >= _PAIR and _is(arguments[0], name):
        pattern = arguments[1]
        left = str(getattr(pattern, "value", "...")).partition("->")[0]
        if "..." not in left:
            use.dims.add(len(re.sub(r"\([^)]*\)", "x", left).split()))
    if isinstance(func, ast.Attribute) and _is(func.value, name):
        _note_method(use, called, arguments)


def _list_counts(node: ast.Call, called: str) -> Iterator[ast.expr]:
    """Yield what a call takes as whole numbers."""
    of = getattr(node.func, "value", None)
    of_math = _is(of, "math")
    alone = called in _SIZED and len(node.args) == 1 and isinstance(node.args[0], ast.Name)
    if alone:
        return  # a tuple of sizes, or a dtype
    if called in _COUNTED or called in _SIZED or (of_math and called in _OF_NUMBERS):
        for argument in node.args:
            yield from argument.elts if isinstance(argument, ast.Tuple | ast.List) else [argument]
    elif called in _COUNTED_LATER:
        own = of is not None and not re.search(r"^(torch|F)$|functional$", ast.unparse(of))
        yield from node.args if own else node.args[1:]
        yield from (keyword.value for keyword in node.keywords)
    elif called in {"min", "max"} and of is None and len(node.args) == _PAIR:
        # ``max(start, first)``; of ``max(t, 1.0)``, t may be a tensor
        yield from node.args if all(isinstance(a, ast.Name) for a in node.args) else ()


def _is_computed_from(node: ast.expr, name: str) -> bool:
    """Say whether this is an argument, or a sum, product or quotient with it."""
    if isinstance(node, ast.BinOp):
        return _is_computed_from(node.left, name) or _is_computed_from(node.right, name)
    return _is(node.operand if isinstance(node, ast.UnaryOp) else node, name)


def _note_method(use: Use, called: str, arguments: list[ast.expr]) -> None:
    if called == "permute":
        flat = [n for a in arguments for n in (a.elts if isinstance(a, ast.Tuple) else [a])]
        use.dims.add(len(flat))
    elif called in _BY_AXES | _BY_SIZE:
        least = [_axes_for(n) for a in arguments[:_PAIR] for n in read_axis(a)]
        use.least = max([use.least, *least])
    elif called in {"get", "pop"} and arguments and isinstance(arguments[0], ast.Constant):
        key = arguments[0].value
        if isinstance(key, str) and key not in use.keys:
            use.keys.append(key)
