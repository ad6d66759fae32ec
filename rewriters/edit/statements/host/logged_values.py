"""Values of the device that are read for people alone: printed, added up, or kept beside others."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.edit.statements.host.accumulated import is_left_as_made, keep_until_read
from npufix.rewriters.edit.statements.host.element_reads import IN_LOOP
from npufix.rewriters.edit.statements.host.of_host import is_named_loss
from npufix.rewriters.edit.statements.host.sentences import (
    FOR_FINITE,
    FOR_LOG,
    FOR_METERS,
    FOR_SUM,
    FORM_LOGGED,
)
from npufix.rewriters.edit.statements.host.waits.finite import (
    FINITE,
    LEARNS,
    asks_finite,
    stops,
)
from npufix.rewriters.edit.statements.proposal import Proposal, put
from npufix.rewriters.facts.module_facts import mentions
from npufix.rewriters.facts.steps.classes import is_told
from npufix.rewriters.graph.modules.syntax import last_name

if TYPE_CHECKING:
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_LOGS = re.compile(
    r"^(print|info|debug|warning|log\w*|\w+_log(ging)?|append|add_scalar\w*|record\w*|update|write|set_postfix|format|metrics?|track_\w+)$"
)
_LOGS_IN = re.compile(r"(?i)(^|_)(logs?|logging|metrics)(_|$)")
_STATISTICS = re.compile(r"(^|_)([Ss]tats|[Ss]tatistics)$|[a-z](Stats|Statistics)$")
_LOGGERS = re.compile(
    r"(?i)(^|_)(history|logger|meters?|monitor|pbar|progress|recorder|stats?|tracker|writer)(_|$)"
)
"""Whose methods get what people look at: ``loss_recorder.add(loss=x)``."""
_SUMS_UP = re.compile(r"array|f?sum|len|max|mean|median|min|std|(as_)?tensor|stack|zip|enumerate")
_KEPT = re.compile(
    r"(?i)(^|_)(tb|log\w*|(train(ing)?|learn(ing)?)_infos?|loss(es)?|metrics?|scalars?|stats?|statistics|meters?)(_|$)"
)
"""What a dictionary of values to log is called: ``tb_dict["loss"] = loss.item()``."""
_LIGHTNING = frozenset({"lightning", "pytorch_lightning"})
_OF_LIGHTNING = frozenset({"on_epoch", "on_step", "prog_bar", "rank_zero_only", "sync_dist"})
"""What Lightning's ``self.log`` alone is told besides."""
_REDUCES = frozenset({"mean", "sum"})
_OVER_RANKS = re.compile(r"(^|_)reduce(_|$)")
"""What makes the mean of all ranks of a number, for a log as well."""


def find_logged(  # noqa: C901, PLR0911, PLR0912 - one case a way
    here: Surroundings, code: ast.Call, tensor: ast.expr, how: str, *, counts: bool = False
) -> Proposal | None:
    """Return what to do with a value that is only for people to read, ``None`` if it is not so.

    It is printed, added up, put into a list or a text, or beside others: ``{"l": l.item(), ...}``.
    What a dictionary keeps stays on the device, until somebody prints it.
    """
    if here.flow.cls is not None and is_told(here.flow.cls) and here.loop_of(code) is not None:
        return Proposal(code, FOR_METERS)
    if how not in {"item", "float", "int"}:
        copied = _keep_copy(here, code, tensor) if how == "cpu" else None
        return copied or _tell_rows(here, code)
    if how == "item" or (how == "float" and is_named_loss(_whole_value(tensor))):
        stays = keep_until_read(here, code, tensor, counts=counts)
        if stays is not None:
            return stays
    inner: ast.AST = code
    for outer in here.around(code):
        if isinstance(outer, ast.Slice) or inner is getattr(outer, "slice", None):
            return None  # ``parts.append(rows[start : start + n.item()])``
        inner = outer
        match outer:
            case ast.Call(function) if last_name(function) in FINITE:
                return Proposal(code, FOR_FINITE) if stops(here, outer) else None
            case ast.Call(ast.Name("dict"), [], words) if _is_kept_in(
                here, outer, [word.value for word in words]
            ):
                return _keep_or_tell(here, code, tensor, how, outer)
            case ast.Call() if _tells_lightning(here, outer, code):
                return _leave_there(here, code, tensor, "", {"log-takes-tensors"})
            case ast.Call(ast.Attribute(_, name) | ast.Name(name)) if _LOGS.match(name):
                used = name == "update" and not isinstance(here.parents.get(id(outer)), ast.Expr)
                used = used or (name == "append" and _is_decided_by(here, outer))
                return None if used else Proposal(code, FOR_LOG)
            case ast.Call(function) if _STATISTICS.search(last_name(function)):
                return Proposal(code, FOR_LOG)  # ``self._stats(loss.item(), scores)``
            case ast.JoinedStr():
                return Proposal(code, FOR_LOG)
            case ast.Dict() if isinstance(above := here.parents.get(id(outer)), ast.Call) and (
                _tells_lightning(here, above, outer)
            ):
                return _leave_there(here, code, tensor, "", {"log-takes-tensors"})
            case ast.Dict(values=values) if _is_kept_in(here, outer, values) or _is_loss_returned(
                here, outer, code
            ):
                return _keep_or_tell(here, code, tensor, how, outer)
            case ast.AugAssign(kept, ast.Add()) if here.loop_of(outer) is not None or isinstance(
                kept, ast.Attribute
            ):
                if _moves(here, kept):
                    return Proposal(code, IN_LOOP)
                used = _picks(here, kept) or _is_listed(here, kept)
                return None if used else Proposal(code, FOR_SUM)
            case ast.Assign([ast.Subscript(kept)]) if _KEPT.search(last_name(kept) or ""):
                return _keep_or_tell(here, code, tensor, how, outer)
            case ast.Assign([ast.Name(name)], value) if value is code or _falls_back(value):
                watched = _is_only_logged(here, name)
                finite = watched and any(asks_finite(here, n) for n in here.nodes if _is(n, name))
                return Proposal(code, FOR_FINITE if finite else FOR_LOG) if watched else None
            case ast.stmt():
                break
    return None


def _moves(here: Surroundings, total: ast.expr) -> bool:
    """Tell whether rounds count with a number, and do not only sum up: ``rows + offset``."""
    loop, text = here.loop_of(total), ast.unparse(total)
    sums = [] if loop is None else [n for n in ast.walk(loop) if isinstance(n, ast.BinOp)]
    pairs = [pair for n in sums for pair in ((n.left, n.right), (n.right, n.left))]
    return any(ast.unparse(one) == text and here.is_tensor(other) for one, other in pairs)


def _is_decided_by(here: Surroundings, append: ast.Call) -> bool:
    """Tell whether a list goes to a function that may decide by it: ``parts = divide(lengths)``."""
    match append.func:
        case ast.Attribute(ast.Name(name), _) if not _KEPT.search(name):
            return any(
                isinstance(n, ast.Call)
                and any(isinstance(arg, ast.Name) and arg.id == name for arg in n.args)
                and isinstance(here.parents.get(id(n)), (ast.Assign, ast.For))
                and not _SUMS_UP.fullmatch(last_name(n.func) or "")
                for n in here.nodes
            )
    return False


def _tell_rows(here: Surroundings, code: ast.Call) -> Proposal | None:
    """Return what to do with rows for a log of training: ``metrics["acc"] = hits.tolist()``.

    Arrays of an evaluation are for the host.
    """
    match here.statement_of(code):
        case ast.Assign([ast.Subscript(kept)], value) | ast.Expr(
            ast.Call(ast.Attribute(ast.Subscript(kept), "extend"), [value])
        ) if value is code:
            learns = LEARNS.search(here.flow.function.name) is not None
            if learns and _KEPT.search(last_name(kept) or ""):
                return None if here.loop_of(code) is not None else Proposal(code, FOR_LOG)
    return None


def _keep_copy(here: Surroundings, code: ast.Call, tensor: ast.expr) -> Proposal | None:
    """Return ``loss.detach().clone()`` for ``{"loss": loss.detach().cpu()}`` of a log."""
    kept = here.parents.get(id(code))
    if is_copied_for_log(here, code):
        return _keep(here, code, tensor, "cpu", here.statement_of(code))
    if not isinstance(kept, ast.Dict) or not _is_log(here.parents.get(id(kept))):
        return None
    is_loss = is_named_loss(_whole_value(tensor))
    return _keep_or_tell(here, code, tensor, "cpu", kept) if is_loss else None


def is_copied_for_log(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a step copies a number for its log: ``metrics["reward"] = x.mean().cpu()``."""
    match here.parents.get(id(code)), code.func:
        case ast.Assign([ast.Subscript(kept)]), ast.Attribute(made, "cpu"):
            learns = LEARNS.search(here.flow.function.name) and _KEPT.search(last_name(kept))
            of = _whole_value(made)
            return bool(learns) and isinstance(of, ast.Call) and last_name(of.func) in _REDUCES
    return False


def _picks(here: Surroundings, kept: ast.expr) -> bool:
    """Tell whether a sum picks rows: ``rows[start : start + n]``, and then ``start += n``."""
    named = ast.unparse(kept)
    picking = (n.slice for n in here.nodes if isinstance(n, ast.Subscript))
    return any(ast.unparse(n) == named for index in picking for n in ast.walk(index))


def _is_listed(here: Surroundings, kept: ast.expr) -> bool:
    """Tell whether what is added up goes into a list of no log: ``starts.append(start)``."""
    named = ast.unparse(kept)
    return any(
        isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "append"
        and _KEPT.search(last_name(call.func.value)) is None
        and named in map(ast.unparse, call.args)
        for call in here.nodes
    )


def _is(code: ast.AST, name: str) -> TypeGuard[ast.Name]:
    return isinstance(code, ast.Name) and code.id == name and isinstance(code.ctx, ast.Load)


def _falls_back(code: ast.expr) -> bool:
    """Tell whether a value is read if there is one: ``x.item() if torch.is_tensor(x) else x``."""
    match code:
        case ast.IfExp(_, read, ast.Constant() | ast.Name()):
            return _reads_one(read)
    return False


def _is_start(here: Surroundings, store: ast.expr) -> bool:
    """Tell whether a name gets what is read, or nothing yet: ``norm, kl = None, None``."""
    match here.parents.get(id(store)):
        case ast.Assign([_], value):
            return _reads_one(value) or _falls_back(value) or isinstance(value, ast.Constant)
        case ast.Tuple() as names:
            bound = here.parents.get(id(names))
            values = getattr(getattr(bound, "value", None), "elts", [None])
            return all(isinstance(value, ast.Constant) for value in values)
    return False


def _takes_itself(code: ast.stmt, name: str) -> bool:
    value = getattr(code, "value", None)
    if not isinstance(value, ast.expr) or not _falls_back(value):
        return False
    return any(_is(n, name) for n in ast.walk(value))


def _is_only_logged(here: Surroundings, name: str) -> bool:
    """Tell whether a number of each round is kept, printed or added up: ``losses.append(loss)``.

    So is what training stops by where it is not finite. Several branches may read it.
    """
    loads = [n for n in here.nodes if _is(n, name)]
    stores = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name and n not in loads]
    again = [n for n in map(here.statement_of, stores) if _takes_itself(n, name)]
    if len(again) == 1:  # ``norm = norm.item() if is_tensor(norm) else norm``
        end = again[0].end_lineno or 0
        loads = [n for n in loads if n.lineno > end]
        stores = [n for n in stores if here.statement_of(n) is again[0]]
    told = [n for n in loads if not _is_asked_for(here, n)]
    return (
        bool(told)
        and all(_is_start(here, n) for n in stores)
        and all(here.loop_of(n) is not None for n in stores)
        and all(
            here.loop_of(n) is not None and (_is_log_of(here, n) or asks_finite(here, n))
            for n in told
        )
    )


def _is_asked_for(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether it is asked whether there is a value: ``if norm is not None:``."""
    outer = here.parents.get(id(code))
    return isinstance(outer, ast.Compare) and isinstance(outer.ops[0], ast.Is | ast.IsNot)


def _is_log_of(  # noqa: C901, PLR0911 - one case a way
    here: Surroundings, name: ast.AST
) -> bool:
    for outer in here.around(name):
        match outer:
            case ast.Call(ast.Attribute(kept, "append"), [given]):
                return given is name and _KEPT.search(last_name(kept)) is not None
            case ast.Call(ast.Attribute(_, called) | ast.Name(called)) if _LOGS.match(called):
                by_name = any(name in ast.walk(word.value) for word in outer.keywords)
                told = isinstance(here.parents.get(id(outer)), ast.Expr)
                return called != "update" or (by_name and told)  # ``meters.update(loss=x)``
            case ast.Call(function) if _OVER_RANKS.search(last_name(function) or ""):
                return True
            case ast.Call(ast.Attribute(owner, called)):
                told = isinstance(here.parents.get(id(outer)), ast.Expr)
                return _LOGS_IN.search(called) is not None or (
                    told and _LOGGERS.search(last_name(owner) or "") is not None
                )
            case ast.Dict(keys, values) if _is_log(here.parents.get(id(outer))) or any(
                value is name and isinstance(key, ast.Constant) and _KEPT.search(str(key.value))
                for key, value in zip(keys, values, strict=True)
            ):
                return True
            case ast.Assign([ast.Subscript(kept)]):
                return _KEPT.search(last_name(kept) or "") is not None
            case ast.AugAssign(kept, ast.Add()):
                return not (_picks(here, kept) or _is_listed(here, kept))
            case ast.JoinedStr():
                return True
            case ast.stmt():
                return False
    return False


def _keep_or_tell(
    here: Surroundings, code: ast.Call, tensor: ast.expr, how: str, kept: ast.expr | ast.stmt
) -> Proposal | None:
    """Return how a dictionary keeps the value, ``None`` where that saves no wait."""
    if _waits_anyway(here, code):
        return None
    return _keep(here, code, tensor, how, kept) or Proposal(code, FOR_LOG)


def _keep(
    here: Surroundings, code: ast.Call, tensor: ast.expr, how: str, kept: ast.expr | ast.stmt
) -> Proposal | None:
    """Return the value as a tensor of the device in a dictionary that nobody here reads.

    It is a copy, ``loss.detach().clone()``: ``loss += other`` may come later.
    """
    whole = _weighed(here, code)
    if how == "int" or here.holder_of(whole) is not kept or not _is_handed_on(here, kept):
        return None
    if mentions(here.flow.names, ("dump", "dumps")):  # ``json.dump(stats, file)`` wants numbers
        return None
    if re.search(r"\b(log_vars|num_samples)\b", here.text(kept)):  # of which mmcv makes arrays
        return None
    tensor = _whole_value(tensor)
    is_new = isinstance(tensor, ast.BinOp) or whole is not code or is_left_as_made(here, tensor)
    copied = "" if is_new else ".clone()"
    return _leave_there(here, code, tensor, copied, set())


def _weighed(here: Surroundings, code: ast.expr) -> ast.expr:
    """Return the product that a value is part of: ``loss.item() * self.weight``."""
    while isinstance(above := here.parents.get(id(code)), ast.BinOp):
        if not isinstance(above.op, ast.Mult):
            break
        code = above
    return code


def _leave_there(
    here: Surroundings, code: ast.Call, tensor: ast.expr, copied: str, proven: set[str]
) -> Proposal:
    """Return a tensor of the device in place of the number that is read of it."""
    text = f"{here.text_detached(tensor)}{copied}"
    return put(
        here,
        code,
        text,
        form=FORM_LOGGED,
        asked=(("x", here.text(tensor)),),
        proven=proven | ({"is-tensor"} if here.is_tensor(tensor) else set()),
    )


def _tells_lightning(here: Surroundings, call: ast.Call, value: ast.expr) -> bool:
    """Tell whether Lightning is handed a value, of which it makes a tensor of its own anyhow.

    ``self.log("loss", value, prog_bar=True)``, and ``self.log_dict({"loss": loss.item()})``.
    """
    words = {word.arg for word in call.keywords}
    modules = {module.partition(".")[0] for module in here.flow.names.imports.values()}
    match call:
        case ast.Call(ast.Attribute(ast.Name("self"), "log"), given, named):
            handed = [*given[1:2], *(word.value for word in named if word.arg == "value")]
        case ast.Call(ast.Attribute(ast.Name("self"), "log_dict"), given):
            handed = given[:1]
        case _:
            return False
    return value in handed and not (
        words.isdisjoint(_OF_LIGHTNING) and modules.isdisjoint(_LIGHTNING)
    )


def _waits_anyway(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether the function reads arrays as well, whose wait is that of all values."""
    inside = set(map(id, ast.walk(code)))
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in {"tolist", "numpy"}
        and id(n) not in inside
        for n in here.nodes
    )


def _whole_value(code: ast.expr) -> ast.expr:
    """Return ``x`` of ``x.detach().cpu()``, ``x.clone()`` and ``x.data``."""
    match code:
        case ast.Call(ast.Attribute(inner, "detach" | "cpu" | "clone"), [], []):
            return _whole_value(inner)
        case ast.Attribute(inner, "data"):
            return _whole_value(inner)
    return code


def _is_handed_on(here: Surroundings, kept: ast.expr | ast.stmt) -> bool:
    """Tell whether a dictionary is only filled here: returned, kept, given to no function.

    ``wandb.log({"loss": loss.item()})`` and ``print(stats)`` would read it at once.
    """
    above = kept if isinstance(kept, ast.stmt) else here.parents.get(id(_outermost(here, kept)))
    while isinstance(above, ast.Tuple):
        above = here.parents.get(id(above))
    match above:
        case ast.Return():
            return True
        case ast.Assign([ast.Name() | ast.Attribute() as held]):
            pass
        case ast.Assign([ast.Subscript(held)]):
            pass
        case ast.Call(ast.Attribute(held, "update"), [_], []) if isinstance(
            here.parents.get(id(above)), ast.Expr
        ):
            pass
        case _:
            return False
    name = here.text(held)
    calls = (call for call in here.nodes if isinstance(call, ast.Call))
    given = (code for c in calls for code in (*c.args, *(k.value for k in c.keywords)))
    return name not in map(here.text, given)


def _is_kept_in(here: Surroundings, code: ast.expr, values: list[ast.expr]) -> bool:
    """Tell whether a dictionary holds values to log: several that are read, or by its name."""
    named = _is_log(here.parents.get(id(_outermost(here, code))))
    return named or sum(map(_reads_one, values)) > 1


def _is_loss_returned(here: Surroundings, kept: ast.Dict, code: ast.expr) -> bool:
    """Tell whether a step of training returns its loss: ``return {"loss": loss.item()}``."""
    keys = [k for k, v in zip(kept.keys, kept.values, strict=True) if v is code]
    is_loss = any(isinstance(k, ast.Constant) and "loss" in str(k.value) for k in keys)
    learns = LEARNS.search(here.flow.function.name) is not None
    outer = here.parents.get(id(kept))
    outer = here.parents.get(id(outer)) if isinstance(outer, ast.Tuple) else outer
    return is_loss and learns and isinstance(outer, ast.Return)


def _outermost(here: Surroundings, code: ast.expr) -> ast.expr:
    """Return the dictionary that holds others: ``dict(losses=dict(total=loss.item()), n=8)``."""
    while True:
        match here.holder_of(code):
            case ast.Dict() | ast.Call(ast.Name("dict"), []) as above:
                code = above
            case _:
                return code


def _is_log(code: ast.AST | None) -> bool:
    """Tell whether a dictionary gets the name of a log: ``tb_dict = {"loss": loss.item()}``."""
    match code:
        case ast.Assign([ast.Name() | ast.Attribute() as held]):
            return _KEPT.search(last_name(held)) is not None
        case ast.Call(ast.Attribute(ast.Name() | ast.Attribute() as held, "update")):
            return _KEPT.search(last_name(held)) is not None
    return False


def _reads_one(code: ast.expr) -> bool:
    return isinstance(code, ast.Call) and not code.args and last_name(code.func) == "item"
