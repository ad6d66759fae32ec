"""Double precision, which no AI core computes."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.of_host import first_read, is_of_host
from npufix.rewriters.edit.statements.proposal import Proposal
from npufix.rewriters.facts.host_tensors import is_brought_to_host, is_made_on_host, names_host
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_DOUBLE = re.compile(r"\btorch\.(float64|double|DoubleTensor|complex128|cdouble)\b|^float64$")
_BY_DEVICE = re.compile(r"(?i)npu|\.is_floating_point|finfo|promote")
"""What decides on the dtype by the device, or asks for it."""
_REASONED = re.compile(r"(?i)\b(fp64|float64|double[- ]precision)\b")
"""Whoever writes down why it is float64 has chosen: "``fp64`` to avoid precision loss"."""
_ASKED_FOR = re.compile(r"(?i)fp64|float64|double")
"""What lets the caller choose: ``elif dtype == torch.float64:``, ``if args.double:``."""
_WHY = re.compile(r"(?i)\b(to|for|avoid\w*|because|since|prevent\w*|otherwise|needs?|must)\b")
"""What a comment says that gives a reason: "(float64 to avoid exact 0.0)"."""
_SOLVES = frozenset(
    {"cholesky", "det", "eigh", "inv", "inverse", "logdet", "lstsq", "pinv", "pinverse", "qr"}
    | {"slogdet", "solve", "svd"}
)
"""What loses digits by its nature, and runs on no AI core in any precision."""
_CHECKS = frozenset({"allclose", "assert_allclose", "assert_close", "gradcheck"})
_ADVICE = (
    "no AI core computes float64: the AI CPU does, one to two orders of magnitude slower; compute "
    "in float32 (take differences of what is close before products), or make a table once on the "
    "host in float64 and copy it as float32"
)


def find_doubles(here: Surroundings) -> Iterator[Proposal]:
    """Yield the first place of a function that makes a tensor of the device one of float64.

    Not so where results are checked against those of float64, ``torch.allclose(y, reference)``, or
    where float32 has failed, ``except RuntimeError: eigh(x.double())``, or the docstring says so.
    """
    calls = {last_name(n.func) for n in here.nodes if isinstance(n, ast.Call)}
    said = ast.get_docstring(here.flow.function, clean=False) or ""
    if not calls.isdisjoint(_CHECKS) or _REASONED.search(said):
        return
    for node in here.nodes:
        if isinstance(node, ast.Call) and _makes_double(here, node):
            if any(isinstance(outer, ast.ExceptHandler) for outer in here.around(node)):
                continue
            if _ASKED_FOR.search(" ".join(map(here.text, here.tests_around(node)))):
                continue
            why = here.comments_of(node)
            if _REASONED.search(why) and _WHY.search(why):
                return
            yield Proposal(node, _ADVICE)
            return


def _makes_double(here: Surroundings, code: ast.Call) -> bool:
    given = {k.arg: k.value for k in code.keywords}
    by_name = "dtype" in given and is_double(here, given["dtype"])
    match code:
        case ast.Call(ast.Attribute(tensor, "double"), [], []):
            return _is_of_device(here, code, tensor)
        case ast.Call(ast.Attribute(tensor, "to" | "type"), args):
            cast = by_name or any(is_double(here, arg) for arg in args)
            return cast and _is_of_device(here, code, tensor)
    value = here.value(code)
    if not by_name or value is None or value.op not in operators.TABLE:
        return False
    made = value.op in operators.FACTORIES
    if made and not ("device" in given or value.op.endswith("_like")):
        return False  # on the host
    if value.op == "as_tensor" and "device" not in given and not here.is_tensor(code.args[0]):
        return False  # a number or an array, which stays where it is
    return not (_holds_numbers(code) or _is_left(here, code))


def _holds_numbers(code: ast.Call) -> bool:
    """Tell whether a few numbers are put into a tensor: ``torch.tensor([count, total])``.

    Kernels of one element take as long in any precision, as do those who add them up over ranks.
    """
    return bool(code.args) and isinstance(code.args[0], ast.List | ast.Constant)


def is_double(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code names a dtype of double precision: also on some devices alone.

    What is only compared with it keeps a dtype: ``x.dtype if x.dtype == torch.float64 else d``; so
    does ``torch.float64 if x.dtype == torch.float64 else torch.float32``.
    """
    if isinstance(code, ast.IfExp):
        match code.test:
            case ast.Compare(_, [ast.Eq()], [kind]) if is_double(here, kind):
                return is_double(here, code.orelse)
        return any(is_double(here, arm) for arm in (code.body, code.orelse))
    text = here.text(code)
    return _DOUBLE.search(text) is not None and _BY_DEVICE.search(text) is None


def _is_of_device(here: Surroundings, code: ast.Call, tensor: ast.expr) -> bool:
    """Tell whether what is converted may be on the device: a tensor, and not of the host."""
    value = here.value(tensor)
    if value is None or here.is_tensor(tensor) is False or is_made_on_host(value):
        return False
    if here.facts(here.evaluations[id(tensor)], x=value).ndim("x") == 0:
        return False  # one number: ``x.abs().max().double()``
    if is_brought_to_host(value):
        return False
    given = [*code.args, *(k.value for k in code.keywords)]
    to_host = any(map(names_host, given))  # ``x.to("cpu", torch.float64)``
    return not (to_host or is_of_host(here, first_read(tensor)) or _is_left(here, code))


def _is_handed_on(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a cast only goes to another library, which asks for it: ``data.update(x)``."""
    match here.parents.get(id(code)):
        case ast.Assign([ast.Name(name)]):
            pass
        case _:
            return False
    nodes = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    read = [n for n in nodes if isinstance(n.ctx, ast.Load) and n.lineno > code.lineno]
    return bool(read) and all(_is_handed_to(here, n) for n in read)


def _is_handed_to(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code is the argument of a method of what the function was handed."""
    match here.parents.get(id(code)):
        case ast.Call(ast.Attribute(ast.Name(owner) as of, method), given) if code in given:
            value = here.value(of)
            handed = value is not None and value.op == Op.PARAM
            return (
                handed
                and owner != "self"
                and method not in operators.PURE_METHODS | {*operators.TABLE}
            )
    return False


def _is_left(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether it runs on no NPU, or is brought to the host at once: ``x.double().cpu()``.

    One number, inverted in double precision as gradients are scaled, is left as well:
    ``scale.double().reciprocal().float()``, and so are matrices: ``torch.inverse(pose.double())``.
    """
    outer = here.parents.get(id(code))
    called = outer.func if isinstance(outer, ast.Call) else outer
    if isinstance(called, ast.Attribute) and called.attr in _SOLVES | {"reciprocal"}:
        return True
    to_host = isinstance(outer, ast.Attribute) and outer.attr in {"cpu", "numpy"}
    if _is_handed_on(here, code):
        return True
    tests = "".join(map(here.text, here.tests_around(code)))
    return to_host or _BY_DEVICE.search(tests) is not None
