"""Whether a value is read in a few steps only: every N, once per epoch, where an error is told."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING, TypeGuard

from npufix.rewriters.facts.steps.functions import list_given
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.attributes import is_made_once
from npufix.rewriters.graph.modules.syntax import last_name, root_name
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.statements.surroundings import Surroundings

_SELDOM = re.compile(
    r"(^|_)(eval|log|logging|print|report|verbose|debug|summary|cpu|device)(_|$)|last_(step|batch)"
)
_TELLS = re.compile(
    r"print|warn|log|debug|info|error|breakpoint|set_trace|save|dump|(p?bar|progress)\.(advance|update)"
)
_TELLS_STEP = re.compile(r"^_*(log|print|save)_|step")
"""What a step calls as well: ``save_on_epoch_end_or_stepwise``."""
_MENDS = frozenset(
    {"clamp", "clamp_", "masked_fill", "masked_fill_", "nan_to_num", "nan_to_num_", "where"}
)
_ANSWER = re.compile(r"\.(all|any)\(\)")
_SAYS = frozenset({"debug", "error", "info", "print", "warn", "warning"})
_KINDS = frozenset({"hasattr", "isinstance", "is_tensor"})
_RARE = re.compile(
    r"\bis None|\bnot\b(?! None)|== 0(?!\.)|len\(|numel\(|size\(|isinstance|isnan|any\("
)
_BEGINS_ANEW = re.compile(r"(^|[._])(envs?|game|sim(ulator)?)\.reset(_\w+)?$")

_LISTED = frozenset({"array", "asarray", "list", "sorted", "stack", "tuple"})
"""What makes another list, or array, of the same numbers."""
_MOST_OF_ITS_OWN = 3
"""Arguments that are handed on as they came."""
_SIZED = frozenset(
    {"arange", "empty", "expand", "full", "new_empty", "new_full", "new_ones", "new_zeros", "ones",
     "pad", "range", "repeat", "reshape", "view", "zeros"}
)  # fmt: skip
"""What asks the host for sizes."""
_FOUND = re.compile(r"(^|_)(box(es)?|scores?|labels?|masks?|pred\w*|results?|attrs?)(_|$)")
"""What a detector hands to those who look at what it has found."""
_OF_STEP = re.compile(r"(?i)loss|metric|log|stat|score|acc")
"""What is kept of each step for people: one number, for which the host should not wait."""
_FOR_FILES = re.compile(r"_*(save|write|dump|imsave|imwrite|predict|fit)(_|$)")


def is_seldom(here: Surroundings, code: ast.expr | ast.stmt) -> bool:
    """Tell whether a value is read every N steps anyhow, once per epoch, or if it is an array."""
    loop = here.loop_of(code)
    if isinstance(loop, ast.For) and "epoch" in ast.unparse(loop.target).lower():
        return True
    whole = loop is not None and any(_runs_epoch(node) for node in ast.walk(loop))
    if whole or _is_behind_check(here, code):
        return True
    inner: ast.AST = code
    is_told = False
    for outer in here.around(code):
        is_told = is_told or (isinstance(outer, ast.Call) and last_name(outer.func) in _SAYS)
        of_message = isinstance(outer, ast.Assert) and inner is outer.msg
        if of_message or isinstance(outer, (ast.ExceptHandler, ast.Raise)) or _lists_text(outer):
            return True
        if isinstance(outer, (ast.If, ast.IfExp)) and inner is not outer.test:
            if _fails(outer, inner) or (_asks_seldom(outer.test) and not _asks_kind(outer, code)):
                return True
            if _asks_for(outer.test, code, is_told=is_told):
                return True  # what the message of an error says, and the like
        inner = outer
    return False


def _is_behind_check(here: Surroundings, code: ast.expr | ast.stmt) -> bool:
    """Tell whether a function only goes on to fail: ``if ok: return``, and at its end ``raise``."""
    body = here.flow.function.body
    around = {id(code), *map(id, here.around(code))}
    at = next((n for n, statement in enumerate(body) if id(statement) in around), 0)
    returns = [any(isinstance(n, ast.Return) for n in ast.walk(s)) for s in body]
    ends = any(returns[n] and isinstance(body[n], ast.If) for n in range(at))
    return ends and isinstance(body[-1], ast.Raise) and not any(returns[at:])


def _lists_text(code: ast.AST) -> bool:
    """Tell whether a line of a report is put to the others: ``lines.append(f"{x.item():.3g}")``."""
    match code:
        case ast.Call(
            ast.Attribute(_, "append"),
            [ast.JoinedStr() | ast.BinOp(ast.Constant(str()), ast.Mod())],
        ):
            return True
    return False


def _fails(outer: ast.If | ast.IfExp, inner: ast.AST) -> bool:
    """Tell whether the arm that holds a statement ends in an error."""
    arms = [outer.body, outer.orelse] if isinstance(outer, ast.If) else []
    return any(inner in arm and isinstance(arm[-1], ast.Raise) for arm in arms)


def _asks_for(test: ast.expr, code: ast.expr | ast.stmt, *, is_told: bool) -> bool:
    """Tell whether a test reads the same: ``if x.item() > 1: print(x.item())``.

    So does ``if x > 1: print(x.item())``, which says what is wrong with it.
    """
    if is_told and _ANSWER.search(ast.unparse(test)):
        return True  # ``if not known.all(): logger.debug("%d unknown", (~known).sum().item())``
    read = {ast.unparse(code)}
    match code:
        case ast.Call(ast.Name("int" | "float"), [ast.Call() as inner]) if is_told:
            read.add(ast.unparse(inner))
        case ast.Call(ast.Attribute(ast.Name(name))) if is_told:
            read.add(name)
    limits = (ast.Lt, ast.LtE, ast.Gt, ast.GtE)
    for node in ast.walk(test):
        match node:
            case ast.Call() if ast.unparse(node) in read:
                return True
            case ast.Compare(left, [operator], [_]) if isinstance(operator, limits):
                if ast.unparse(left) in read:
                    return True
    return False


def _asks_kind(outer: ast.If | ast.IfExp, code: ast.expr | ast.stmt) -> bool:
    """Tell whether a tensor is read, and all else taken: ``x.item() if is_tensor(x) else x``."""
    match outer, code:
        case ast.IfExp(ast.Call(called, [asked, *_]), body, other), ast.Call(ast.Attribute(read)):
            same = len({ast.unparse(part) for part in (asked, read, other)}) == 1 and body is code
            return same and last_name(called) in _KINDS
        case (
            ast.If(ast.Call(called, [asked, *_]), [ast.Assign([kept], value)], []),
            ast.Call(ast.Attribute(read)),
        ):
            same = len({ast.unparse(part) for part in (asked, read, kept)}) == 1 and value is code
            return same and last_name(called) in _KINDS
    return False


def _asks_seldom(test: ast.expr) -> bool:
    asked = list(ast.walk(test))
    if any(isinstance(n, ast.Mod) for n in asked):
        return True
    named = [last_name(node) for node in asked if isinstance(node, ast.expr)]
    kinds = {"isinstance", "is_tensor", "random"}
    return bool(kinds & {*named}) or any(map(_SELDOM.search, named))


def _runs_epoch(node: ast.AST) -> bool:
    """Tell whether a call makes a round last long: ``self.train_epoch()``, ``time.sleep(1)``."""
    name = last_name(node.func) if isinstance(node, ast.Call) else ""
    return name == "sleep" or ("epoch" in name.lower() and not _TELLS_STEP.search(name))


def is_rare(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether code runs where something is missing: ``if x is None:``, or behind ``else``."""
    inner: ast.AST = code
    for outer in here.around(code):
        match outer:
            case ast.If(test, body) if inner is not test:
                if _is_rare_branch(here, test, is_body=inner in body):
                    return True
            case ast.IfExp(test, body) if inner is not test:
                if _is_rare_branch(here, test, is_body=inner is body):
                    return True
            case ast.ExceptHandler():
                return True
        inner = outer
    return False


def is_default(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether code makes what few callers hand in: ``if size is None: size = x.max()``."""
    function = here.flow.function
    args = function.args
    given = [*args.posonlyargs, *args.args][::-1]
    pairs: list[tuple[ast.arg, ast.expr | None]] = []
    pairs += zip(given, args.defaults[::-1], strict=False)
    pairs += zip(args.kwonlyargs, args.kw_defaults, strict=True)
    missing = {a.arg for a, d in pairs if isinstance(d, ast.Constant) and d.value is None}
    match here.statement_of(code):
        case ast.Assign([ast.Name(name)]) as made if name in missing:
            match here.tests_around(made):
                case [ast.Compare(ast.Name(asked), [ast.Is()], [ast.Constant(None)]), *_]:
                    return asked == name
    return False


def decides(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether it is the work of a step that depends on a test, and not what is told of it.

    ``code`` is the ``if``, or something in its test. That training has diverged somebody wants to
    know: ``if torch.isnan(loss): continue``.
    """
    outer = (n for n in (code, *here.around(code)) if isinstance(n, (ast.IfExp, ast.stmt)))
    found = next(outer, None)
    if not isinstance(found, (ast.If, ast.IfExp)):
        return False
    if isinstance(found, ast.If) and _becomes_size(here, found):
        return False
    body = found.body if isinstance(found, ast.If) else []
    told = bool(body) and all(map(_only_tells, body))
    if any(map(_mends, body)):
        return True
    return not told and re.search(r"is_?(finite|nan|inf)\b", here.text(found.test)) is None


def _hands_over(here: Surroundings, code: ast.If) -> bool:
    """Tell whether another function computes all: ``if t: return slow(self, x, mask, cache)``."""
    match code.body[-1]:
        case ast.Return(ast.Call(_, names)):
            given = list_given(here.flow.function)
            own = [n for n in names if isinstance(n, ast.Name) and n.id in given]
            return len(own) >= _MOST_OF_ITS_OWN
    return False


def _becomes_size(here: Surroundings, code: ast.If) -> bool:
    """Tell whether the host needs what is compared anyway: ``if n < 8: n = 8``, then ``x[:n]``."""
    names = {n.id for n in ast.walk(code.test) if isinstance(n, ast.Name)}
    names &= {target.id for s in code.body for target in ast.walk(s) if _is_bound(target)}
    later = [n for n in here.nodes if getattr(n, "lineno", 0) > (code.end_lineno or 0)]
    sizes: list[ast.AST] = [n for n in later if isinstance(n, ast.Slice)]
    sizes += [n for n in later if isinstance(n, ast.Call) and last_name(n.func) in _SIZED]
    return any(isinstance(n, ast.Name) and n.id in names for s in sizes for n in ast.walk(s))


def _is_bound(code: ast.AST) -> TypeGuard[ast.Name]:
    return isinstance(code, ast.Name) and isinstance(code.ctx, ast.Store)


def _mends(code: ast.stmt) -> bool:
    """Tell whether a statement puts numbers in the place of others: ``x = torch.nan_to_num(x)``."""
    simple = isinstance(code, ast.Assign | ast.Expr)
    calls = (n for n in ast.walk(code) if isinstance(n, ast.Call))
    return simple and any(last_name(call.func) in _MENDS for call in calls)


def _only_tells(code: ast.stmt) -> bool:
    """Tell whether a statement says something, or ends the round: ``print(n)``, ``continue``."""
    match code:
        case ast.Expr(ast.Call(called)) | ast.Assign([ast.Name()], ast.Call(called)):
            return _TELLS.search(ast.unparse(called)) is not None  # ``logger = get_logger()``
        case ast.Raise() | ast.Pass() | ast.Assert() | ast.Expr(ast.Constant()):
            return True
    return False


def _is_rare_branch(here: Surroundings, test: ast.expr, *, is_body: bool) -> bool:
    """Tell whether a branch is the rare one: ``else`` is not, behind ``if name not in table``."""
    if is_body:
        parts = test.values if isinstance(test, ast.BoolOp) else [test]
        both = len(parts) > 1 and isinstance(getattr(test, "op", None), ast.And)
        asked = [p for p in parts if not (both and _is_setting(p) and "None" not in here.text(p))]
        return any(_RARE.search(here.text(p)) and not _is_layer(here, p) for p in asked)
    if _is_setting(test) or any(isinstance(n, ast.Mod) for n in ast.walk(test)):
        return False  # ``if step % 10 == 0: ... else:``, where nine of ten steps go
    return not isinstance(test, ast.Compare) or not isinstance(test.ops[0], ast.NotIn)


def _is_layer(here: Surroundings, test: ast.expr) -> bool:
    """Tell whether a test asks for a part of the module, which stays: ``self.head is None``.

    Not so for what is kept of the first call: ``if self.grid is None: self.grid = ...``.
    """
    match test:
        case ast.Compare(
            ast.Attribute(ast.Name("self"), name), [ast.Is()], [ast.Constant(None)]
        ) if here.flow.cls is not None:
            return is_made_once(here.flow.names, here.flow.cls, name)
    return False


def _is_setting(test: ast.expr) -> bool:
    """Tell whether a test chooses between ways to go, of which none is rare: ``mode == "fg"``.

    So does ``x is None`` for what comes behind ``else``, and ``not self.split``.
    """
    match test:
        case ast.UnaryOp(ast.Not(), ast.Attribute(_, name)):
            return name != "training"
        case ast.Compare(_, [ast.Eq() | ast.NotEq()], [ast.Constant(str())]) | ast.Compare(
            _, [ast.Is()], _
        ):
            return True
        case ast.Compare(ast.Constant(str()), [ast.In()], _):
            return True
        case ast.BoolOp(ast.And(), parts) if any(
            isinstance(part, ast.Attribute) and part.attr == "training" for part in parts
        ):
            return True  # else it is inference, all of it
        case ast.BoolOp(ast.And(), [first, *_]):  # ``"x" in batch and batch["x"] is not None``
            return _is_setting(first) and not isinstance(first, ast.UnaryOp)
    return False


def stays_anyway(here: Surroundings, code: ast.If) -> bool:
    """Tell whether the host waits, or is to choose who computes, whatever is said of a test."""
    is_left = _selects_anyway(here, code) or _hands_over(here, code) or _begins_anew(code)
    return is_left or _is_moved_later(here, code)


def _begins_anew(code: ast.If) -> bool:
    """Tell whether a branch has a simulator begin anew: ``if done.any(): env.reset(done)``."""
    calls = (n.func for n in ast.walk(code) if isinstance(n, ast.Call))
    return any(_BEGINS_ANEW.search(ast.unparse(c)) for c in calls if last_name(c))


def _is_moved_later(here: Surroundings, code: ast.If) -> bool:
    """Tell whether a test asks what only later comes to the device: ``mask = mask.to(device)``."""
    calls = [n for n in ast.walk(code.test) if isinstance(n, ast.Call)]
    asked = [c.func.value for c in calls if isinstance(c.func, ast.Attribute)]
    texts = {ast.unparse(a) for a in asked if isinstance(a, ast.Name | ast.Subscript)}
    later = (n for n in here.nodes if getattr(n, "lineno", 0) > (code.end_lineno or 0))
    return any(
        isinstance(n, ast.Call)
        and isinstance(n.func, ast.Attribute)
        and n.func.attr in operators.TO_DEVICE
        and (n.func.attr != "to" or "device" in ast.unparse(n))
        and ast.unparse(n.func.value) in texts
        for n in later
    )


def _selects_anyway(here: Surroundings, code: ast.If) -> bool:
    """Tell whether the host waits for a mask anyway: ``if not m.any(): return``, then ``x[m]``."""
    test = code.test.operand if isinstance(code.test, ast.UnaryOp) else code.test
    node = here.value(test)
    if node is None or node.op != "any" or not isinstance(code.body[-1], ast.Return):
        return False
    mask = node.args[0]
    users = [user for user in here.users(mask) if user.op in {Op.GETITEM, Op.TUPLE}]
    users += [user for pair in users if pair.op == Op.TUPLE for user in here.users(pair)]
    return any(user.op == Op.GETITEM and user.args[0] is not mask for user in users)


def is_for_files(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a tensor is brought to what works on the host: ``save(path, x.cpu())``."""
    calls = [outer for outer in here.around(code) if isinstance(outer, ast.Call)]
    return any(_FOR_FILES.match(last_name(call.func) or "") for call in calls)


def is_result(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a tensor is brought to the host as what a model has found: ``scores_3d=``.

    Or to be kept there as it is: ``saved[name] = weight.cpu()``, ``{name: weight.cpu() for ...}``.
    What nobody takes is no tensor: ``model.cpu()``.
    """
    match here.parents.get(id(code)):
        case ast.Assign([ast.Subscript()]) | ast.DictComp() | ast.Expr():
            return True
        case ast.Call(ast.Attribute(kept, "append"), [_], []):
            # ``self.bank.append(features.cpu())``
            return root_name(kept) == "self" and not _OF_STEP.search(ast.unparse(kept))
        case ast.keyword(arg=str(name)):
            return _FOUND.search(name) is not None
        case ast.Dict(keys, values):
            at = next(i for i, value in enumerate(values) if value is code)
            key = keys[at]
            return isinstance(key, ast.Constant) and _FOUND.search(str(key.value)) is not None
    return False


def is_of_one(here: Surroundings, loop: ast.AST, code: ast.expr) -> bool:
    """Tell whether a single round copies: ``for key in keys: if key == "size": ...``."""
    tests = [test for test in here.tests_around(code) if isinstance(test, ast.Compare)]
    target = getattr(loop, "target", None)
    return target is not None and any(
        isinstance(test.ops[0], ast.Eq) and ast.unparse(test.left) == ast.unparse(target)
        for test in tests
    )


def is_computed_in(loop: ast.AST, code: ast.expr) -> bool:
    """Tell whether each round computes what is copied: ``state, *_ = env.step(action)``.

    So does ``total += loss``; not so ``meta = metas[i]``, which is there before the loop begins.
    """
    if isinstance(code, ast.Call) and last_name(code.func) not in _LISTED:
        return True  # ``draw(0.5, n)`` may draw anew
    bound = [n for n in ast.walk(loop) if isinstance(n, ast.Assign)]
    names = [n.id for n in ast.walk(code) if isinstance(n, ast.Name)]
    added = {ast.unparse(n.target) for n in ast.walk(loop) if isinstance(n, ast.AugAssign)}
    if not added.isdisjoint(names):
        return True
    for name in names:  # grows
        for value in (n.value for n in bound if name in map(ast.unparse, _targets(n))):
            inner = list(ast.walk(value))
            if any(isinstance(n, ast.Call) for n in inner):
                return True
            names += {n.id for n in inner if isinstance(n, ast.Name)} - {*names}
    return False


def _targets(code: ast.Assign) -> Iterator[ast.expr]:
    return (n for target in code.targets for n in ast.walk(target) if isinstance(n, ast.Name))
