"""Whether what is read is a tensor of the device: reading one of the host costs nothing."""

from __future__ import annotations

import ast
import re
from functools import lru_cache
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS
from npufix.rewriters.facts.host_tensors import (
    is_beside_arrays,
    is_given_by_host,
    is_kept_on_host,
    is_made_on_host,
    is_move_to_device,
    list_parts,
)
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, nodes_of
from npufix.rewriters.graph.modules.torch_names import TORCH_FUNCTIONS
from npufix.rewriters.graph.nodes import once_per_value
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Evaluation, Node

READING = frozenset({"item", "tolist", "cpu", "numpy"})
ARITHMETIC = frozenset({"add", "div", "mul", "sub"})
OF_ARRAYS_TOO = operators.SYMBOLS | operators.PAIRS | READING | {
    "all", "any", "dim", "mean", "numel", "prod", "reshape", "size", "std", "stride", "sum", "t",
    "transpose", "var", "view",
}  # fmt: skip
"""What a number or an array of NumPy has as well, or what returns no tensor."""
_OF_NUMBERS_TOO = frozenset({"neg", "pow", "reciprocal", "square"})
"""What Python computes of its numbers: ``x ** 2``, ``1 / x``."""
ON_HOST = frozenset({"cpu", "numpy"})
_FEW_READS = 2
_KEPT = re.compile(r"_(cpu|host)$")
_PROCESSES = re.compile(r"(^|[._])(tokenizer|(?<!attn_)(?<!attention_)(?<!logits_)processor)$")
_OF_ONE = frozenset(
    {
        Op.GETITEM, Op.ITEM, "all", "any", "argsort", "cumprod", "cumsum", "diff", "flip", "max",
        "mean", "median", "min", "prod", "quantile", "roll", "std", "sum", "var",
    }
)  # fmt: skip
"""What is computed of one tensor, where that lies."""
_OF_HOST = re.compile(
    r"(^|[\W_])(cpu|host|np|numpy|cfg|config|args|state_dict\d*|checkpoint|ckpt)([\W_]|$)"
    r"|(^|\.)(step_t|state_steps?)\b"  # which the optimizers of torch keep there
)
_COMPARED_WITH = re.compile(r"[=!<>]=? ?(self\.)?(config|cfg|args)\.[\w.]+")
"""A setting beside a tensor: ``(ids == self.config.image_token_id).sum()``."""
_HANDED = re.compile(r"(?<=[(,])\s*(\w+=)?(self\.)?(config|cfg|args)\.[\w.]+(?=\s*[,)])")
"""A setting that a function gets: ``clip_grad_norm_(parameters, args.max_norm)``."""


def is_tensor_elsewhere(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether another function of the file makes a tensor of the same name, or cuts one.

    ``sigmas`` of a sampler beside ``sigmas = torch.linspace(...)``, or ``sigmas[:, 0]``.
    """
    value, tree = here.value(code), here.flow.names.tree
    if tree is None or not isinstance(code, ast.Name) or value is None or value.op != Op.PARAM:
        return False
    return code.id in _list_tensors(tree)


@lru_cache(maxsize=8)
def _list_tensors(tree: ast.AST) -> frozenset[str]:
    """Return the names under which a file makes tensors: not those that hold lists as well."""
    made, others, cut = set[str](), set[str](), set[str]()
    for node in nodes_of(tree):
        match node:
            case ast.Assign(
                [ast.Name(name)],
                ast.Call(ast.Attribute(ast.Name("torch"), "as_tensor" | "tensor"), [ast.Name(of)]),
            ) if name == of:
                cut.add(name)  # a list until here, and then handed on
            case ast.Assign([ast.Name(name)], ast.Call(ast.Attribute(ast.Name("torch"), how))):
                (made if not how.startswith(("is_", "device")) else others).add(name)
            case ast.Assign([ast.Name(name)], ast.List() | ast.ListComp() | ast.Dict()):
                others.add(name)
            case ast.Subscript(ast.Name(name), ast.Tuple([ast.Slice(), *_])):
                cut.add(name)
    return frozenset(made - others | cut)


def first_read(code: ast.expr) -> ast.expr:
    """Return the tensor that is read first: ``x`` of ``x.cpu().numpy()``."""
    while True:
        match code:
            case ast.Call(ast.Attribute(tensor, how), [], []) if how in READING:
                code = tensor
            case ast.Attribute(ast.Call() as tensor, "data") if is_copied(tensor):
                code = tensor  # ``x.cpu().data.numpy()``
            case _:
                return code


def is_copied(code: ast.expr) -> bool:
    """Tell whether a chain of calls brings a tensor to the host: ``x.detach().cpu()``."""
    while True:
        match code:
            case ast.Call(ast.Attribute(_, "cpu" | "to")):
                return True
            case ast.Call(ast.Attribute(inner)) | ast.Attribute(inner, "data"):
                code = inner
            case _:
                return False


def is_of_host(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a tensor is on the host already, or is none of torch, as far as one can see."""
    code = first_read(code)
    text = _COMPARED_WITH.sub("", here.text(code))
    text = text if "ensor(" in text else _HANDED.sub("", text)
    if _OF_HOST.search(text) or _is_said_to_be(here, code) or _is_array_of(here, code):
        return True
    node = here.value(code)
    first = _begins_with(code)
    parts = [] if node is None else list(node.walk())
    named = [] if node is None else [part for part in list_parts(node) if part.op == Op.GLOBAL]
    made = {str(part.value).partition(".")[0] for part in named}
    copied = _begins_on_host(here, first) if node is None else _comes_from_copy(here, node)
    if copied or made & {"numpy", "random"}:
        return True
    values = _list_assigned(here, code) if node is None else [node]  # inside a comprehension
    every = [part for value in values for part in value.walk()]
    if any(map(_is_from_host, every)) and not any(part.op in operators.TO_DEVICE for part in every):
        return True
    if node is not None and (
        _is_made_there(here, node)
        or is_kept_on_host(here.flow, node)
        or is_given_by_host(here.flow, _whole_of(node))
        or is_beside_arrays(here.flow, _whole_of(node))
    ):
        return True
    if (whole := iterated(here, first)) is not None:
        # of a generator of batches it says nothing what else it is handed
        of = whole if first is code else _begins_with(whole)
        plain = first is code or not isinstance(of, ast.Call)
        return _lies_on_host(here, whole) or (plain and is_of_host(here, of))
    given = any(part.op in {Op.PARAM, Op.ATTR, Op.CALL, Op.ELEMENT} for part in parts)
    return not given and any(part.op in operators.FACTORIES for part in parts)


def _begins_with(code: ast.expr) -> ast.expr:
    """Return what is cut and computed with: ``row`` of ``torch.sum(row[row != 0])``."""
    while True:
        match code:
            case ast.Call(ast.Attribute(ast.Name("torch")), [first, *_]):
                code = first
            case ast.Call(ast.Attribute(inner, how)) if how not in operators.TO_DEVICE:
                code = inner
            case ast.Subscript(inner):
                code = inner
            case _:
                return code


def _begins_on_host(here: Surroundings, first: ast.expr) -> bool:
    """Tell whether what a comprehension cuts was copied before, or is collated of samples there."""
    if isinstance(first, ast.Call):
        return last_name(first.func) == "default_collate"
    kept = _list_assigned(here, first) if isinstance(first, ast.Name) else []
    return bool(kept) and all(is_left_there(here, value) for value in kept)


def _lies_on_host(here: Surroundings, whole: ast.expr) -> bool:
    """Tell whether rows of a copy are gone through, or what a dictionary holds copies in.

    ``for row in x.cpu():``; ``for v in found.values()`` of ``found = {"mean": x.mean().cpu()}``.
    """
    match whole:
        case ast.Call(ast.Attribute(_, "cpu" | "numpy" | "tolist"), [], []):
            return True
        case ast.Call(ast.Attribute(ast.Name(name), "values"), [], []):
            made = [
                n.value
                for n in here.nodes
                if isinstance(n, ast.Assign) and name in map(ast.unparse, n.targets)
                if n.lineno < whole.lineno
            ]
            return bool(made) and all(
                isinstance(value, ast.Dict) and all(_lies_on_host(here, v) for v in value.values)
                for value in made
            )
    return isinstance(whole, ast.Call) and _makes_on_host(here, whole)


def _is_array_of(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether numbers of an array are read of it: ``x.detach().numpy().item()``.

    Of a tensor of the device no array is made without a copy.
    """
    match code:
        case ast.Call(ast.Attribute(_, "detach"), [], []):
            pass
        case _:
            return False
    above = here.parents.get(id(here.parents.get(id(code))))
    over = here.parents.get(id(above))
    of_it = isinstance(above, ast.Call) and last_name(above.func) == "numpy"
    return of_it and isinstance(over, ast.Attribute) and over.attr in READING


def is_asked_of_host(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether ``x.any()`` asks what is only made without a device: ``x = torch.ones(n)``.

    Elements of it may be set in a loop; ``forward`` may be called below ``with torch.device(d)``.
    """
    match test:
        case ast.Call(ast.Attribute(ast.Name(name))) if here.flow.cls is None:
            pass
        case _:
            return False
    stored = [
        n
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Store)
    ]
    made = [n.value for n in here.nodes if isinstance(n, ast.Assign) and n.targets[0] in stored]
    there = [isinstance(value, ast.Call) and _makes_on_host(here, value) for value in made]
    return bool(made) and len(made) == len(stored) and all(there)


def _makes_on_host(here: Surroundings, call: ast.Call) -> bool:
    module, _, name = (here.flow.names.dotted(call.func) or "").rpartition(".")
    likes = name.endswith("_like")
    return (
        module == "torch"
        and name in operators.FACTORIES
        and not likes
        and all(k.arg not in {"device", None} for k in call.keywords)
    )


def _comes_from_copy(here: Surroundings, node: Node) -> bool:
    """Tell whether a value is computed of what was copied to the host: ``x.cpu().max()``.

    A tensor of the device that meets a number of the host stays there: ``x.norm() * n.cpu()``.
    """
    todo = [node]
    for part in todo:  # grows
        if part.op in ON_HOST:
            return True
        given = part.args
        if part.op in ARITHMETIC and len(given) > 1:
            copied = [arg for arg in given if any(p.op in ON_HOST for p in arg.walk())]
            others = [arg for arg in given if arg not in copied]
            given = () if any(is_tensor(here, arg) for arg in others) else tuple(copied)
        todo += [arg for arg in given if arg not in todo]
    return False


def is_left_there(here: Surroundings, node: Node) -> bool:
    """Tell whether a tensor is on the host, where it meets no tensor of the device."""
    asked = (_comes_from_copy, _is_made_there, _is_moved_later)
    return any(is_there(here, node) for is_there in asked)


def _is_moved_later(here: Surroundings, node: Node) -> bool:
    """Tell whether rows of a tensor, or of the whole, are moved to the device behind the place.

    ``w = t[:, 4] * float(size[0])``, then ``t = t[w > 2].to(self.device)``.
    """
    parts = [_whole_of(node)]
    for part in parts:  # grows
        users = [user for user in here.users(part) if user.args[0] is part]
        parts += [user for user in users if user.op == Op.GETITEM]
        if any(map(is_move_to_device, users)):
            return True
    return False


def _list_assigned(here: Surroundings, code: ast.expr) -> list[Node]:
    """Return the values that the function gives to what some code reads."""
    read = {ast.unparse(n) for n in ast.walk(code) if isinstance(n, ast.Name | ast.Attribute)}
    made = (n for n in here.nodes if isinstance(n, ast.Assign) and len(n.targets) == 1)
    values = (here.value(n.value) for n in made if ast.unparse(n.targets[0]) in read)
    return [value for value in values if value is not None]


def _is_from_host(node: Node) -> bool:
    """Tell whether a value is called of the host, or what a processor of text or images returns.

    ``self.lens_cpu``, ``self.processor(images=...)["input_ids"]``.
    """
    if node.op == Op.CALL:
        return _PROCESSES.search(str(node.args[0].value)) is not None
    return node.op in {Op.ATTR, Op.PARAM} and _KEPT.search(str(node.value)) is not None


def _is_said_to_be(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a branch is that of a tensor which is not on the device: ``not x.is_cuda``."""
    inner: ast.AST = code
    for outer in here.around(code):
        if isinstance(outer, ast.If) and inner in outer.body:
            both = isinstance(outer.test, ast.BoolOp) and isinstance(outer.test.op, ast.And)
            for part in getattr(outer.test, "values", ()) if both else [outer.test]:
                match part:
                    case ast.UnaryOp(ast.Not(), ast.Attribute(tensor, "is_cuda" | "is_npu")):
                        if ast.unparse(tensor) == ast.unparse(code):
                            return True
        inner = outer
    return False


def _whole_of(node: Node) -> Node:
    while node.op == Op.GETITEM:
        node = node.args[0]
    return node


def is_of_layer(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether ``forward`` has called for a value: ``x`` of ``x = self.encoder(y)``."""
    value = here.value(code)
    called = value is not None and value.op in {Op.CALL, Op.PHI}
    in_layer = here.flow.cls is not None and here.flow.function.name == "forward"
    return called and in_layer and not is_of_host(here, code)


def is_number(node: Node) -> bool:
    """Tell whether a value is a number that the host has: ``3``, ``len(x)``, ``x.size(0)``."""
    return type(node.value) in {int, float} or node.op in {Op.SIZE, "py:len"}


def without_numbers(node: Node) -> Node:
    """Return what numbers are added to, or what they divide: ``x.max()`` of ``x.max() + 1``."""
    while node.op in ARITHMETIC:
        others = [arg for arg in node.args if type(arg.value) not in {int, float}]
        if len(others) != 1:
            break
        (node,) = others
    return node


def is_list(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code makes a list, ``list(range(n))``, or names what is nothing else.

    ``sizes`` of ``sizes = [x.sum() for x in parts]``, ``losses`` of ``losses = [None] * n``.
    """
    match code:
        case ast.Call(ast.Name("list" | "range" | "sorted" | "tuple")):
            return True
        case ast.List() | ast.ListComp() | ast.Tuple():
            return True
    bound = (n for n in here.nodes if isinstance(n, ast.Assign))
    made = [n.value for n in bound if ast.unparse(code) in map(ast.unparse, n.targets)]
    lists = [m.left if isinstance(m, ast.BinOp) and isinstance(m.op, ast.Mult) else m for m in made]
    return bool(lists) and all(isinstance(value, (ast.List, ast.ListComp)) for value in lists)


def iterated(here: Surroundings, code: ast.expr) -> ast.expr | None:
    """Return what a loop goes through whose variable ``code`` is.

    ``times`` for ``t`` of ``for i, t in enumerate(times)``.
    """
    if not isinstance(code, ast.Name):
        return None
    for outer in here.around(code):
        loops = outer.generators if isinstance(outer, COMPREHENSIONS) else [outer]
        for loop in loops:
            if isinstance(loop, (ast.For, ast.comprehension)):
                found = _of_target(loop.target, loop.iter, code.id)
                if found is not None:
                    return found
    return None


def is_of_dictionary(whole: ast.expr | None) -> bool:
    """Tell whether a loop goes through tensors of their own: ``losses.values()``."""
    match whole:
        case ast.Call(ast.Attribute(_, "values"), [], []):
            return True
    return False


def _of_target(target: ast.expr, items: ast.expr, name: str) -> ast.expr | None:
    match target, items:
        case ast.Name(bound), ast.Call(ast.Name("reversed" | "tqdm" | "list"), [inner, *_]):
            return inner if bound == name else None
        case ast.Name(bound), _:
            return items if bound == name else None
        case ast.Tuple([_, inner]), ast.Call(ast.Name("enumerate"), [whole, *_]):
            return _of_target(inner, whole, name)
        case ast.Tuple([_, ast.Name(bound)]), ast.Call(ast.Attribute(of, "items"), [], []):
            values = ast.Call(ast.Attribute(of, "values", ast.Load()), [], [])
            return ast.copy_location(values, items) if bound == name else None
        case ast.Tuple(inner), ast.Call(ast.Name("zip"), several) if len(inner) == len(several):
            pairs = zip(inner, several, strict=True)
            found = (_of_target(one, whole, name) for one, whole in pairs)
            return next((each for each in found if each is not None), None)
    return None


@once_per_value
def _is_made_there(here: Surroundings, node: Node) -> bool:
    """Tell whether a number comes out of a tensor of the host: ``int(torch.rand(1) * n + 1)``.

    So does the answer to a question: ``any(torch.rand(n) < rate)``.
    """
    while node.op in _OF_ONE and node.args:  # ``torch.FloatTensor(list).mean()``
        node = node.args[0]
    if node.op not in {*ARITHMETIC, "pow"} | operators.COMPARISONS:
        return is_made_on_host(node)
    others = [arg for arg in node.args if not _is_made_there(here, arg)]
    return len(others) < len(node.args) and not any(is_tensor(here, arg) for arg in others)


_OF_TENSORS = frozenset(
    {"abs", "exp", "log", "matmul", "norm", "sigmoid", "softmax", "sqrt", "trace"}
)
"""What torch computes of nothing but tensors."""


@once_per_value
def is_tensor(here: Surroundings, node: Node) -> bool:
    """Tell whether a value is a tensor, of torch and not of NumPy."""
    if node.op in {"sum", "mean"} and node.args:
        node = node.args[0]
    if node.op in READING - {"cpu"}:
        return False
    if node.op in operators.TABLE and node.op not in OF_ARRAYS_TOO | _OF_NUMBERS_TOO:
        return True
    if node.op in ARITHMETIC | _OF_NUMBERS_TOO:
        return any(is_tensor(here, arg) for arg in node.args)
    made = (e for e in here.flow.by_operation.get(node.op, ()) if e.node is node)
    if any(_is_of_torch(here, e) for e in made):
        return True
    if any(u.op in _OF_TENSORS and u.args[0] is node for u in here.users(node)):
        met = (e for op in _OF_TENSORS for e in here.flow.by_operation.get(op, ()))
        if any(e.node.args[0] is node and _is_of_torch(here, e) for e in met):
            return True  # ``torch.trace(x)`` takes no array
    return bool(here.facts(here.flow.evaluations[0], x=node).is_tensor("x"))


def _is_of_torch(here: Surroundings, evaluation: Evaluation) -> bool:
    """Tell whether a value is what a function of torch returns: ``F.l1_loss(x, y)``."""
    code = evaluation.code
    dotted = here.flow.names.dotted(code.func) if isinstance(code, ast.Call) else None
    module, _, name = (dotted or "").rpartition(".")
    return module in TORCH_FUNCTIONS and not name.startswith(("is_", "get_", "set_"))


_HELD_BY_STATE = frozenset({Op.AFTER, Op.CALL, Op.CARRIED, Op.PHI})
_OF_SHAPE = frozenset({Op.DTYPE_OF, Op.RANK, Op.SHAPE, Op.SIZE})


def is_of_round(value: Node) -> bool:
    """Tell whether a value is computed from an element that a loop goes through, and no state.

    ``((1000 - t.expand(x.shape[0])) / 1000)[0].item()`` in ``for t in timesteps:``: of what the
    loop computes only a shape takes part.
    """
    parts = list(value.walk(lambda node: () if node.op in _OF_SHAPE else node.args))
    ops = {part.op for part in parts}
    return Op.ELEMENT in ops and not ops & _HELD_BY_STATE


def is_count(node: Node, *, cast: bool = False) -> bool:
    """Tell whether a value counts something: the sum of a mask, in whatever dtype of integers.

    With ``cast`` also one of floats: ``(x > 0).float().sum()``.
    """
    while node.op in {"detach", "clamp"}:
        node = node.args[0]
    if node.op in {"count_nonzero", "numel"}:
        return True
    if node.op != "sum" or len(node.args) < 1:
        return False
    counted = node.args[0]
    while cast and counted.op == Op.CAST:
        counted = counted.args[0]
    return counted.op in operators.COMPARISONS | {"isfinite", "isnan", "isinf", "invert"}


def is_named_loss(code: ast.expr) -> bool:
    """Tell whether a name says that it is a loss: ``loss_ce``."""
    return isinstance(code, ast.Name) and "loss" in code.id.split("_")


def brings_to_host(here: Surroundings) -> bool:
    """Tell whether a function brings several tensors to the host, to compute with them there."""
    calls = (n for n in here.nodes if isinstance(n, ast.Call) and not n.args)
    arrays = READING - {"item"}
    reads = [c for c in calls if isinstance(c.func, ast.Attribute) and c.func.attr in arrays]
    return len({ast.unparse(first_read(code)) for code in reads}) > _FEW_READS


def counts_up(here: Surroundings, data: ast.expr) -> bool:
    """Tell whether a list holds what other code adds to: ``[state.seen for state in group]``."""
    match data:
        case ast.ListComp(ast.Attribute(ast.Name(), counted)):
            nodes = nodes_of(here.flow.names.tree or here.flow.function)
            added = (n.target for n in nodes if isinstance(n, ast.AugAssign))
            return any(isinstance(t, ast.Attribute) and t.attr == counted for t in added)
    return False
