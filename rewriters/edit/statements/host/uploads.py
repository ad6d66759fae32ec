"""Copies from the host that the host waits for."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.filled import (
    KINDS,
    count_up,
    fill,
    fill_parts,
    holds_elements,
    is_list,
    is_number,
    is_read_again,
    same_in_all,
)
from npufix.rewriters.edit.statements.host.made.copied import (
    are_of_device,
    is_constant,
    is_handed,
    is_made_here,
    is_new_each_time,
    is_of_part,
    is_of_self,
    list_bound,
)
from npufix.rewriters.edit.statements.host.made.creations import draw_permutation, draw_there
from npufix.rewriters.edit.statements.host.of_host import is_of_host
from npufix.rewriters.edit.statements.host.seldom import is_computed_in, is_of_one, is_rare
from npufix.rewriters.edit.statements.host.sentences import say_kept
from npufix.rewriters.edit.statements.host.waits.batches import (
    copy_whole,
    find_batches,
    find_host_indexes,
    make_of_read,
)
from npufix.rewriters.edit.statements.kept.buffers import keep_numbers
from npufix.rewriters.edit.statements.kept.converted import convert_once, is_converted
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.facts.host_tensors import is_made_on_host, names_host
from npufix.rewriters.facts.module_facts import may_keep_buffers
from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_made_once, list_assigned
from npufix.rewriters.graph.modules.syntax import last_name, list_stored_names

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_MAKING = frozenset({"torch.tensor", "torch.as_tensor", "torch.from_numpy"})
_OF_TYPE = frozenset(f"torch.{kind}" for kind in KINDS)
_OF_HOST = _MAKING | {f"torch.{name}" for name in ("arange", "eye", "linspace", "ones", "zeros")}
_MOVING = operators.TO_DEVICE | {"type_as"}
_SHAPES = frozenset({"contiguous", "expand", "flatten", "reshape", "squeeze", "unsqueeze", "view"})
_CASTS = frozenset({"bool", "float", "half", "int", "long", "repeat", "to", "type"})
_SERVES = re.compile(r"(Runner|Builder|Worker|Proposer|Scheduler|Engine|Batch)(V?\d+)?$")
"""What hands over new lists in each step, and nothing else that one could do about it."""
_OF_REQUESTS = re.compile(r"block_table|slot_mapping|num_reqs|req_ids?\b|request_ids?\b")
"""What a server of requests hands over: others are called so that run one sample to its end."""
_SEVERAL = re.compile(
    r"(^|[._]|y)(seqs?|ids|list|hyps|shape|image|text|prompt|row|array|bbox|xyz|sample|tuple)$"
    r"|(?<!bo)(?<!eo)(?<!cl)(?<!po)(?<!los)(?<!axi)(?<!bia)(?<!clas)(?<!radiu)(?<!mas)s$"
)
"""No number: ``hyp.yseq``, ``sizes``."""
_WEIGHTS = re.compile(r"(^|_)(class|cls|code|pos)_?weights?$")
"""Numbers of the settings, one for each class: no parameter, and no weights of a batch."""
_COUNTED = re.compile(r"^(num|n)_|_(num|cnt|count)$")
"""What a step has some of, but for the rarest: ``if num_pos > 0:``."""
_COUNTS = re.compile(r"(self\.)?(avg|count|max|n|nb|num|total)_\w+$")
"""A number, whatever it ends with: ``num_boxes``."""
_OF_OPTIMIZER = re.compile(r"(self\.defaults|\w*group)\[['\"](?!params|betas)\w+['\"]\]")
"""A setting of an optimizer: a number, but for few."""
_BUFFER = (
    "the same numbers are copied to the device in every call: make it once in __init__, "
    'register_buffer("name", torch.tensor(...), persistent=False), and read self.name'
)
_ONE_COPY = (
    "each round waits for a copy of its own: copy all of it once before the loop, and take slices "
    "on the device"
)
_PINNED = (
    "the host waits for the copy: fill a pinned tensor that is kept, and copy that with "
    "non_blocking=True"
)
_FILLED = (
    "a list of one number is copied to the device, and the host waits: torch.full((n,), number, "
    "device=device) makes it there"
)
_NUMBER = (
    "a number is copied to the device, and the host waits: torch.full((), number, device=device) "
    "makes it there"
)
_RANGE = (
    "the numbers are copied to the device, and the host waits: torch.arange(start, end, "
    "device=device) makes them there"
)
_SIZES = (
    "numbers of the host are copied to the device in every call, and the host waits: keep the "
    "tensor of each list of numbers that comes again (a dictionary, functools.lru_cache), or fill "
    "a pinned tensor and copy that with non_blocking=True"
)
_OF_DEVICE = (
    "the host reads these numbers from the device, waits for them, and copies them back: compute "
    "them there (torch.stack([...]) for single tensors)"
)
_OF_ARRAY = (
    "each call makes an array of NumPy and waits until it is copied to the device: compute it "
    "there with torch, or copy from pinned memory (.pin_memory().to(device, non_blocking=True))"
)
_DRAWN = (
    "the host draws the numbers, and waits for the copy: draw them where they are needed, "
    "torch.rand(..., device=x.device); the device draws others from the same seed"
)


def find_uploads(here: Surroundings) -> Iterator[Proposal]:
    """Yield what is copied from the host in code that runs in every step."""
    yield from find_batches(here)
    yield from find_host_indexes(here)
    for node in here.nodes:
        if isinstance(node, ast.Call):
            made = _is_made(here, node) or last_name(node.func) == "new_tensor"
            found = draw_permutation(here, node) or copy_whole(here, node) or fill_parts(here, node)
            found = found or convert_once(here, node)
            found = found or (make_of_read(here, node) if made else None)
            if found is None and (_is_told_within(here, node) or is_converted(here, node)):
                continue
            advice = "" if found is not None else _advice(here, node) or _drawn(here, node)
            if advice == _BUFFER and not may_keep_buffers(here.flow.names, here.flow.cls):
                # a function, or an object of Python alone, keeps no buffers
                advice = _SIZES if here.is_hot else ""
            if advice in {_FILLED, _NUMBER}:
                if is_read_again(here, node):
                    continue  # ``n = torch.tensor([n]).cuda()``, all_reduce, ``n.item()``
                found = fill(here, node)
            elif advice == _DRAWN and isinstance(drawn := node.func, ast.Attribute):
                source = drawn.value
                found = draw_there(here, node, source) if isinstance(source, ast.Call) else None
            elif advice in {_BUFFER, _RANGE, _SIZES}:
                found = keep_numbers(here, node) if advice == _BUFFER else None
                found = found or count_up(here, node)
            if found is not None or advice:
                yield found or Proposal(node, advice)


def _is_told_within(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether what is moved is no copy of numbers: ``torch.tensor([x.sum()]).to(device)``."""
    match code.func:
        case ast.Attribute(ast.Call() as inner, method) if method in _MOVING:
            return _is_made(here, inner) and make_of_read(here, inner) is not None
    return False


def _advice(here: Surroundings, code: ast.Call) -> str:
    match code:
        case ast.Call(
            ast.Attribute(
                ast.Attribute(ast.Name("self"), name)
                | ast.Subscript(ast.Attribute(ast.Name("self"), name), ast.Name()),
                method,
            )
        ) if method in _MOVING and _moves(code):
            in_module = may_keep_buffers(here.flow.names, here.flow.cls)
            return say_kept(name, in_module=in_module) if _is_made_of_numbers(here, name) else ""
        case ast.Call(ast.Attribute(beside, "new_tensor"), [_, *_]):
            value = here.value(beside)
            on_host = here.is_tensor(beside) is False or (value and is_made_on_host(value))
            return "" if on_host or _is_just_made(here, beside) else _of(here, code, code)
        case ast.Call(ast.Attribute(made, method)) if method in _MOVING and isinstance(
            made := made.value if isinstance(made, ast.Subscript) else made, ast.Call
        ):
            made = _without_casts(made)
            of_shape = here.flow.names.dotted(made.func) == "torch._shape_as_tensor"
            if of_shape or not _is_made(here, made) or _has_device(made) or not _moves(code):
                return _ONE_COPY if of_shape and here.loop_of(code) is not None else ""
            return _of(here, code, made)
        case ast.Call() if _is_made(here, code):
            left = _is_left_there(here, code) if _has_device(code) else True
            return "" if left and not _is_written_there(here, code) else _of(here, code, code)
    return ""


def _is_just_made(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether the block makes a name without a device: an inner function may read it too."""
    statement = here.statement_of(code)
    block = here.block_of(statement)
    made = [
        s.value
        for s in block[: block.index(statement)]
        if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == ast.unparse(code)
    ]
    match made[-1:]:
        case [ast.Call() as call]:
            return _is_made(here, call) and not _has_device(call)
    return False


def _without_casts(code: ast.Call) -> ast.Call:
    """Return what is cast, cut or repeated before it is moved: ``from_numpy(a).to(x.dtype)``."""
    match code:
        case ast.Call(ast.Attribute(ast.Call() as inner, method)) if method in _SHAPES | _CASTS:
            return code if method == "to" and _moves(code) else _without_casts(inner)
        case ast.Call(ast.Attribute(ast.Subscript(ast.Call() as inner), _)):
            return _without_casts(inner)
    return code


def _drawn(here: Surroundings, code: ast.Call) -> str:
    """Return what to do about random numbers of the host: no device and no generator is named."""
    match code:
        case ast.Call(ast.Attribute(drawn, method), given, words) if method in _MOVING:
            value, named = here.value(drawn), {k.arg for k in words}
            if value is None or value.op not in operators.RANDOM & operators.FACTORIES:
                return ""
            of_draw = value.value if isinstance(value.value, tuple) else ()
            is_cast = not given and bool(named) and "device" not in named
            free = not {"device", "generator"}.intersection(map(str, of_draw))
            return _DRAWN if free and not is_cast and _moves(code) else ""
    return ""


def _of(  # noqa: PLR0911 - one case a way
    here: Surroundings, code: ast.Call, made: ast.Call
) -> str:
    data = made.args[0] if made.args else None
    given = {k.arg for call in (code, made) for k in call.keywords}
    if given & {"non_blocking", "pin_memory"} and not (
        isinstance(data, ast.List) and _of_data(here, data) == _FILLED
    ):
        return ""  # somebody has thought of it
    if data is None or _is_nothing_or_seldom(here, code, data) or here.is_tensor(data):
        return ""
    if is_number(here, data) or _OF_OPTIMIZER.fullmatch(here.text(data)):
        return _NUMBER if _is_copied(here, made) else ""
    advice = _of_data(here, data)
    loop = here.loop_of(code)
    rare = loop is None and is_rare(here, code)
    if advice and (rare if advice == _FILLED else _is_asked_for(here, code)):
        return ""
    if advice or (loop is not None and _is_read_back(here, data)):
        return advice
    seldom = loop is not None and (_is_handed(here, code, data) or is_of_one(here, loop, code))
    # ``torch.as_tensor(state["scale"], device=p.device)`` copies no tensor that is there already
    seldom = seldom or (last_name(made.func) == "as_tensor" and not is_made_here(here, data))
    if loop is not None and not (seldom or is_computed_in(loop, data)):
        return _OF_DEVICE if holds_elements(here, code, data) else _ONE_COPY
    owner = here.flow.cls
    if owner is not None and _SERVES.search(owner.name):
        is_server = _OF_REQUESTS.search("".join(here.lines)) is not None
        return (
            "" if not is_server or isinstance(data, ast.Call) else _PINNED
        )  # it is the call that takes the time
    listed = is_made_here(here, data) or is_of_part(here, data)
    listed = listed or (_takes_numbers(made) and is_handed(here, data))
    if not listed or _is_asked_for(here, code):
        return _OF_ARRAY if _is_array_of_layer(here, made, data) else ""
    if is_new_each_time(here, data) and not are_of_device(here, data):
        return ""  # whatever is done, they are copied
    return _OF_DEVICE if are_of_device(here, data) else _SIZES


def _is_written_there(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether numbers are written into a part of a tensor that was made on a device.

    ``gain = torch.ones(7, device=x.device)``, and ``gain[2:6] = torch.tensor(sizes)[[1, 0]]``.
    """
    match here.statement_of(code):
        case ast.Assign([ast.Subscript(ast.Name() as whole)], ast.Subscript(value) | value) if (
            value is code
        ):
            bound = list_bound(here, whole)
            return bool(bound) and all(isinstance(b, ast.Call) and _has_device(b) for b in bound)
    return False


def _takes_numbers(made: ast.Call) -> bool:
    """Tell whether what makes a tensor is told to be wrong for a tensor: ``x.new_tensor(view)``.

    So is ``torch.tensor(batch["label"], device=device)``; ``labels`` alone may be anything.
    """
    how = last_name(made.func)
    return how == "new_tensor" or (
        how == "tensor" and bool(made.args) and isinstance(made.args[0], ast.Subscript)
    )


def _is_asked_for(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether anything but the settings of an object decides whether numbers are copied."""
    first = int(_is_either(here, code))
    return not all(_is_setting(here, test) for test in here.tests_around(code)[first:])


def _is_either(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether other numbers are copied if these are not: both arms make a tensor of one name.

    ``x = torch.tensor(self.long)``, and ``x = torch.tensor(self.short)`` behind ``else``.
    """
    statement = here.statement_of(code)
    match statement, here.parents.get(id(statement)):
        case ast.Assign([target], value), ast.If(_, body, other) if value is code:
            same = [
                s.value
                for s in (*body, *other)
                if isinstance(s, ast.Assign) and ast.unparse(s.targets[0]) == ast.unparse(target)
            ]
            made = [isinstance(v, ast.Call) and _is_made(here, v) for v in same]
            return bool(other) and len(made) > 1 and all(made)
    return False


def _is_setting(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether a test asks what stays from call to call: ``not self.agnostic``.

    So it does where all steps of a training go one way: ``if self.training:``, ``if num_pos > 0:``.
    """
    match test:
        case ast.Name("training") | ast.Compare(ast.Constant(str()), [ast.In()], _):
            return True  # ``"scale_factor" in img_meta``
        case ast.UnaryOp(ast.Not(), inner) | ast.Compare(
            ast.Attribute() as inner, [ast.IsNot()], [ast.Constant(None)]
        ):
            return _is_setting(here, inner)
        case ast.Compare(ast.Name(name), [ast.Gt() | ast.NotEq()], [ast.Constant(0)]):
            return _COUNTED.search(name) is not None
        case ast.Compare(asked, [_], [ast.Constant(int() | str())]):
            return _is_setting(here, asked)
        case ast.Attribute(ast.Name("self") | ast.Attribute(ast.Name("self"))):
            return True
    own = isinstance(test, ast.Attribute) and isinstance(test.value, ast.Name)
    return (own and is_of_self(here, test)) or (
        isinstance(test, ast.Name) and is_of_part(here, test)
    )


def _is_array_of_layer(here: Surroundings, made: ast.Call, data: ast.expr) -> bool:
    """Tell whether ``forward`` makes an array of NumPy and copies it: no costs that SciPy solved.

    ``from_numpy(mask).cuda()``; what the host has read from the device is another thing.
    """
    of_array = here.flow.names.dotted(made.func) == "torch.from_numpy"
    in_layer = here.flow.cls is not None and here.flow.function.name == "forward"
    seldom = _is_asked_for(here, made) or is_rare(here, made)
    made_here = [data, *list_bound(here, data)]
    by_numpy = (here.flow.names.dotted(c.func) for c in made_here if isinstance(c, ast.Call))
    is_made = any((name or "").startswith("numpy.") for name in by_numpy)
    return of_array and in_layer and is_made and not (_is_read_back(here, data) or seldom)


def _is_read(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a number is read from a tensor of the device: ``mask.sum().item()``."""
    match code:
        case ast.Call(ast.Attribute(tensor, "item"), [], []):
            known = here.is_tensor(tensor)
            sure = known is True or (known is None and here.flow.cls is not None)
            return sure and not is_of_host(here, tensor)
    return False


def _is_nothing_or_seldom(here: Surroundings, code: ast.Call, data: ast.expr) -> bool:
    """Tell whether an empty list is copied, or ``x`` where it is no tensor.

    ``x if isinstance(x, Tensor) else torch.tensor(x).to(y)``
    """
    outer = here.parents.get(id(code))
    seldom = isinstance(outer, ast.IfExp) and "isinstance(" in here.text(outer.test)
    return seldom or (isinstance(data, ast.List) and not data.elts)


def _is_copied(here: Surroundings, made: ast.Call) -> bool:
    """Tell whether a number is made on the device by name, in each step, as others may be."""
    plain = not {k.arg for k in made.keywords} - {"device", "dtype", "requires_grad"}
    return plain and here.is_hot and not is_rare(here, made)


def _is_handed(here: Surroundings, code: ast.expr, data: ast.expr) -> bool:
    """Tell whether a lambda is handed what it copies: ``apply(obs, lambda x: from_numpy(x))``.

    Or a dictionary has arrays of their own: ``{k: from_numpy(v) for k, v in batch.items()}``.
    """
    given = set[str]()
    for outer in here.around(code):
        match outer:
            case ast.Lambda(args):
                given |= {arg.arg for arg in ast.walk(args) if isinstance(arg, ast.arg)}
            case ast.DictComp(generators=[ast.comprehension(target, ast.Call(called))]) if (
                last_name(called) in {"items", "values"}
            ):
                given |= list_stored_names(target)
    return any(isinstance(n, ast.Name) and n.id in given for n in ast.walk(data))


def _is_read_back(here: Surroundings, data: ast.expr) -> bool:
    """Tell whether the host has waited already: for ``a`` of ``accuracy(x.cpu().numpy())``."""
    value = here.value(data)
    parts = () if value is None else value.walk()
    return any(part.op in {"cpu", "numpy"} for part in parts)


def _of_data(here: Surroundings, data: ast.expr) -> str:
    """Return what to do where the numbers themselves say it."""
    match data:
        case ast.Call(ast.Name("range")):
            return _RANGE
        case ast.Call(ast.Name("list"), [inner], []) | ast.List(
            [ast.Call(ast.Name("list" | "range")) as inner]
        ):
            return _of_data(here, inner)
        case ast.List([_, *_] as parts) if any(
            _is_read(here, part) or here.is_tensor(part) for part in parts
        ):
            return _OF_DEVICE
        case ast.List([one]) if not is_list(here, one) and (
            _COUNTS.match(here.text(one)) or not _SEVERAL.search(here.text(one))
        ):
            return _FILLED
    if _is_repeated(data):
        return _FILLED
    return _BUFFER if is_constant(here, data) else ""


def _is_repeated(data: ast.expr) -> bool:
    """Tell whether a list holds one number several times: ``[x] * n``, ``[0, 0]``."""
    match data:
        case ast.BinOp(ast.List([_]), ast.Mult(), _):
            return True
        case ast.List([ast.Constant() as first, *others]):
            return all(ast.dump(other) == ast.dump(first) for other in others)
    return isinstance(data, ast.ListComp) and same_in_all(data) is not None


def _is_made_of_numbers(here: Surroundings, name: str) -> bool:
    """Tell whether ``self.name`` is a tensor that ``__init__`` makes on the host, and stays it."""
    if here.flow.cls is None or not is_made_once(here.flow.names, here.flow.cls, name):
        return False
    if not here.flow.cls.bases:  # no module, which could keep a buffer
        return False
    values = list_assigned(here.flow.names, here.flow.cls, name)
    if re.search(rf"register_buffer\(\s*[\"']{name}[\"']", "".join(here.lines)):
        return False
    return len(values) == 1 and any(
        # what ``__init__`` is given, ``model.to(device)`` moves no more than what it makes
        _WEIGHTS.search(v.id) is not None and v.id in list_given(method)
        if isinstance(v, ast.Name)
        else isinstance(v, ast.Call)
        and here.flow.names.dotted(v.func) in _OF_HOST
        and not _has_device(v)
        for method, v in values
    )


def _is_made(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether numbers are made a tensor: not so by ``torch.Tensor(3)``, which has three."""
    made = here.flow.names.dotted(code.func)
    of_list = bool(code.args) and isinstance(code.args[0], (ast.List, ast.ListComp))
    return made in _MAKING or (of_list and made in _OF_TYPE)


def _has_device(code: ast.Call) -> bool:
    devices = [k.value for k in code.keywords if k.arg == "device"]
    return any(not (isinstance(d, ast.Constant) and d.value in {None, "cpu"}) for d in devices)


def _is_left_there(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether the device that is named is the host: ``host = torch.device("cpu")``."""
    for device in (k.value for k in code.keywords if k.arg == "device"):
        bound = [n for n in here.nodes if isinstance(n, ast.Assign)]
        made = [n.value for n in bound if ast.unparse(device) in map(ast.unparse, n.targets)]
        return all(map(names_host, made or [device]))
    return False


def _moves(code: ast.Call) -> bool:
    """Tell whether ``.to(...)`` names a device: not so ``.to(dtype)`` and ``.to(torch.long)``."""
    given = [*code.args, *(k.value for k in code.keywords if k.arg == "device")]
    if not given:  # ``.cuda()``; not ``.to(dtype=dtype)``
        return all(k.arg == "non_blocking" for k in code.keywords)
    return any(not re.search(r"(?i)dtype|^torch\.\w+$", ast.unparse(g)) for g in given)
