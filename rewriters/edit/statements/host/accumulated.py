"""Values of the device that a loop adds up or collects, and that nobody reads before it has ended.

::

    total, losses = 0.0, []             total, losses = 0.0, []
    for batch in batches:               for batch in batches:
        loss = step(batch)                  loss = step(batch)
        total += loss.item()                total += loss.detach().float()
        losses.append(loss.item())          losses.append(loss.detach().clone())
    print(total / len(losses))          losses = torch.stack(losses).tolist() if losses else []
                                        total = float(total)
                                        print(total / len(losses))
"""

from __future__ import annotations

import ast
from dataclasses import replace
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.iterated_values import number_made
from npufix.rewriters.edit.statements.host.of_host import is_named_loss
from npufix.rewriters.edit.statements.host.trained import is_trained_on
from npufix.rewriters.edit.statements.proposal import Change, Proposal
from npufix.rewriters.edit.statements.surroundings import LOOPS
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import last_name, walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings

FORM_ADDED, FORM_COLLECTED = "added_up", "collected"
_NEW = frozenset({"count_nonzero", "max", "mean", "min", "norm", "prod", "std", "sum", "var"})
"""What returns a tensor that nobody else has a view of."""
_OF_FLOATS = frozenset({"mean", "norm", "std", "var"})


def keep_until_read(  # noqa: PLR0911 - one case a way
    here: Surroundings, code: ast.Call, tensor: ast.expr, *, counts: bool
) -> Proposal | None:
    """Return the sum or the list of tensors instead of that of the numbers ``code`` reads.

    The number is read, ``total = float(total)``, behind the loop; ``None`` where anybody in the
    loop looks at what has come together so far. ``counts`` are integers, also when added up.
    """
    outer = next((o for o in here.around(code) if isinstance(o, ast.stmt)), None)
    loop = here.loop_of(code)
    if outer is None or not isinstance(loop, LOOPS) or here.loop_of(outer) is not loop:
        return None
    outer, kept = _taken_by(here, outer, code), number_made(code)
    match outer:
        case ast.AugAssign(ast.Name(name), ast.Add(), value) if value is code or _reads_in(
            value
        ) == [code]:
            if kept == "bool" or (kept == "int" and not counts):
                return None  # cut off before it is added
            form, new = FORM_ADDED, here.text_detached(tensor) + ("" if counts else ".float()")
            after = f"{name} = {'int' if counts and kept != 'float' else 'float'}({name})"
        case ast.AugAssign(ast.Subscript(ast.Name(), ast.Constant(str())), ast.Add(), value) if (
            value is code
        ):
            return _keep_in_dictionary(here, code, tensor, outer, counts=counts)
        case ast.Expr(ast.Call(ast.Attribute(ast.Name(name), "append"), [given])) if (
            given is code or isinstance(given, ast.Name)
        ):
            copied = "" if is_left_as_made(here, tensor) else ".clone()"
            form, new = FORM_COLLECTED, f"{here.text_detached(tensor)}{copied}"
            flat = "" if has_no_dimensions(here, tensor) else ".flatten()"
            values = f"{here.torch}.stack({name}){flat}.tolist()"
            if kept and not (kept == "float" and _holds_floats(here, tensor)):
                parts = ("[", kept, "(n) for n in ", values, "]")
                values = "".join(parts)  # in one string it would be a message
            after = f"{name} = {values} if {name} else []"
        case _:
            return None
    collects = form == FORM_COLLECTED
    loop = _last_loop(here, name, loop)
    end = loop.end_lineno or 0
    starts = _is_started(here, name, outer, loop, empty=collects)
    if not starts or not _is_read_later(here, name, loop, outer) or end >= len(here.lines):
        return None
    if collects and not (here.torch and _is_listed_once(here, name, loop)):
        return None
    return _read_behind(here, code, tensor, (new, after), loop, form=form, counts=counts)


def _read_behind(  # noqa: PLR0913 - all that is known of it
    here: Surroundings,
    code: ast.Call,
    tensor: ast.expr,
    texts: tuple[str, str],
    loop: ast.stmt,
    *,
    form: str,
    counts: bool,
) -> Proposal:
    """Return a tensor in place of what ``code`` reads, and its number behind the loop."""
    (new, after), end = texts, loop.end_lineno or 0
    is_loss = is_trained_on(here, tensor)
    proven = {"is-tensor"} if is_loss or here.is_tensor(tensor) else set()
    proven |= {"single-precision-sum"} if is_loss or counts else set()
    return Proposal(
        code,
        form=form,
        changes=(
            Change(here.span(code), new),
            Change((end + 1, 0, end + 1, 0), f"{here.indent(loop)}{after}\n"),
        ),
        shown=f"{new}\n{after}",
        asked=(("x", here.text(tensor)),),
        proven=frozenset(proven),
    )


def _keep_in_dictionary(
    here: Surroundings, code: ast.Call, tensor: ast.expr, outer: ast.AugAssign, *, counts: bool
) -> Proposal | None:
    """Return a sum of tensors under a key: ``sums["loss"] += loss.item()``.

    ::

        sums = {"loss": 0.0}
        for batch in batches:
            sums["loss"] += step(batch).detach().float()
        sums["loss"] = float(sums["loss"])

    The dictionary is one of this function, the key has a number when the loop begins, and the
    loops do no more with it than add up.
    """
    kept = outer.target
    assert isinstance(kept, ast.Subscript)  # noqa: S101 - the caller has looked
    assert isinstance(kept.value, ast.Name)  # noqa: S101
    name, whole = kept.value.id, ast.unparse(kept)
    uses = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    made = [n for n in uses if not isinstance(n.ctx, ast.Load)]
    if len(made) != 1 or name in here.flow.captured:
        return None
    loop: ast.stmt | None = None
    around = here.loop_of(outer)
    while isinstance(around, LOOPS):
        inside = {id(n) for n in walk(around)}
        own = [n for n in uses if id(n) in inside]
        if not all(_is_sum_in(here, n) for n in own):
            break
        if sum(ast.unparse(_place_in(here, n)) == whole for n in own) != 1:
            break
        loop, around = around, here.loop_of(around)
    if loop is None or (loop.end_lineno or 0) >= len(here.lines):
        return None
    above = set(map(id, here.block_of(loop)))
    begun = [
        n
        for n in (here.statement_of(use) for use in uses)
        if n.lineno < loop.lineno and id(n) in above and _begins(n, name, whole, kept.slice)
    ]
    behind = [n for n in uses if n.lineno > (loop.end_lineno or 0)]
    if not (begun and behind):
        return None
    new = here.text_detached(tensor) + ("" if counts else ".float()")
    place = here.text(kept)
    after = f"{place} = {'int' if counts else 'float'}({place})"
    return _read_behind(here, code, tensor, (new, after), loop, form=FORM_ADDED, counts=counts)


def _place_in(here: Surroundings, name: ast.expr) -> ast.AST:
    return here.parents.get(id(name), name)


def _is_sum_in(here: Surroundings, name: ast.expr) -> bool:
    """Tell whether a dictionary is only added to: ``sums["loss"] += x``, which nobody reads."""
    place = _place_in(here, name)
    match place, here.parents.get(id(place)):
        case ast.Subscript(value, ast.Constant()), ast.AugAssign(target, ast.Add()):
            return value is name and target is place
    return False


def _begins(code: ast.stmt, name: str, whole: str, key: ast.expr) -> bool:
    """Tell whether a statement gives a key a number: ``sums = {"loss": 0.0}``."""
    match code:
        case ast.Assign([ast.Subscript() as target], value):
            return ast.unparse(target) == whole and _is_start(value, empty=False)
        case ast.Assign([ast.Name(bound)], ast.Dict(keys, values)) if bound == name:
            at = [v for k, v in zip(keys, values, strict=True) if ast.dump(k or v) == ast.dump(key)]
            return bool(at) and _is_start(at[-1], empty=False)
    return False


def join_sums(found: Iterable[Proposal]) -> Iterator[Proposal]:
    """Yield what was found, the sums of one loop as one change: they are read behind it."""
    sums: dict[Span, list[Proposal]] = {}
    for one in found:
        if one.form == FORM_ADDED:
            sums.setdefault(one.changes[-1].span, []).append(one)
        else:
            yield one
    for span, same in sums.items():
        first, *others = same
        behind = "".join(dict.fromkeys(one.changes[-1].text for one in same))
        within = [change for one in same for change in one.changes[:-1]]
        yield (
            first
            if not others
            else replace(
                first,
                changes=(*within, Change(span, behind)),
                shown="\n".join(one.shown for one in same),
                asked=tuple(
                    (f"{k}_{n}", code) for n, one in enumerate(same) for k, code in one.asked
                ),
                proven=frozenset.intersection(*(one.proven for one in same)),
            )
        )


def is_left_as_made(here: Surroundings, tensor: ast.expr) -> bool:
    """Tell whether a tensor is made anew and nobody writes into it: it may be kept as it is.

    ``loss`` of ``loss = x.mean()``, where it is only computed with: ``total += a + loss``. Not so
    where it is handed on, or has a second name.
    """
    if isinstance(tensor, ast.Call):
        return makes_anew(tensor)
    if not isinstance(tensor, ast.Name) or tensor.id in here.flow.captured:
        return False
    uses = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == tensor.id]
    made = [here.parents.get(id(n)) for n in uses if not isinstance(n.ctx, ast.Load)]
    reads = all(_only_reads(here, n) for n in uses if isinstance(n.ctx, ast.Load))
    return reads and bool(made) and all(map(_names_new, made))


_TRAINS = frozenset({"backward", "manual_backward", "scale", "step"})
"""What takes a loss and leaves it as it is: ``accelerator.backward(loss)``."""
_VIEWS = frozenset({"contiguous", "detach", "flatten", "float", "reshape", "squeeze", "to", "view"})


def keeps_memory(here: Surroundings, code: ast.Call, tensor: ast.expr) -> bool:
    """Tell whether ``x.detach()`` in place of ``v = x.item()`` sees what is written into ``x``.

    Not so in ``x.item() / 2``, which is a tensor of its own, nor where ``x`` is made anew.
    """
    inner = tensor
    while isinstance(inner, ast.Call) and last_name(inner.func) in _VIEWS:
        inner = inner.func.value if isinstance(inner.func, ast.Attribute) else tensor
    match inner:
        case ast.Name() | ast.Attribute() | ast.Subscript():
            is_held = not is_left_as_made(here, inner)
        case ast.Call(args=given) if (value := here.value(inner)) is not None:
            is_new = value.op in operators.TABLE and value.op not in operators.VIEWS
            is_held = not (is_new or (value.op == Op.CALL and given))  # ``self.get_count()``
        case _:
            is_held = False
    is_named = isinstance(here.parents.get(id(code)), ast.Assign | ast.AnnAssign | ast.IfExp)
    return is_named and is_held


def _names_new(code: ast.AST | None) -> bool:
    """Tell whether a statement gives a new tensor its only name: not ``kept = x = y.mean()``."""
    match code:
        case ast.Assign([ast.Name()], ast.BinOp() | ast.UnaryOp(ast.USub())):
            return True
        case ast.Assign([_], ast.Call(ast.Attribute(ast.Name("F"), loss))) if loss.endswith(
            "_loss"
        ):
            return True
        case ast.Assign([_], ast.Call() as value):
            return makes_anew(value)
    return False


def makes_anew(code: ast.expr) -> bool:
    """Tell whether a call returns a tensor of its own, as ``max(a, b)`` of Python does not."""
    match code:
        case ast.Call(ast.Attribute(attr=name), _, words):
            return name in _NEW and all(word.arg not in {"out", None} for word in words)
    return False


def _only_reads(here: Surroundings, code: ast.expr) -> bool:
    """Tell whether a use of a tensor neither keeps nor changes it: ``2 * x``, ``x.item()``.

    ``x.detach()`` is the same memory: what becomes of it decides.
    """
    match here.parents.get(id(code)):
        case ast.BinOp() | ast.Compare() | ast.UnaryOp() | ast.Assert() | ast.If():
            return True
        case ast.Attribute(_, "backward" | "detach" | "item" as name) as method:
            call = here.parents.get(id(method))
            return isinstance(call, ast.Call) and (name != "detach" or _only_reads(here, call))
        case ast.Call(ast.Attribute(attr=name)):
            return name in _TRAINS
    return False


def _taken_by(here: Surroundings, outer: ast.stmt, code: ast.Call) -> ast.stmt:
    """Return the statement that keeps what is read: ``x = t.item()``, then ``xs.append(x)``.

    It is the next one that reads the name, in the same block, and no other does.
    """
    match outer:
        case ast.Assign([ast.Name(name)], value) if value is code:
            named = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
            loads = [n for n in named if isinstance(n.ctx, ast.Load)]
            if len(named) == 2 and len(loads) == 1 and name not in here.flow.captured:  # noqa: PLR2004
                keeper, block = here.statement_of(loads[0]), here.block_of(outer)
                if keeper in block[block.index(outer) :] and _is_kept(keeper, loads[0]):
                    return keeper
    return outer


def _is_kept(code: ast.stmt, given: ast.Name) -> bool:
    match code:
        case ast.Expr(ast.Call(ast.Attribute(_, "append"), [arg], [])):
            return arg is given
    return False


def _last_loop(here: Surroundings, name: str, loop: ast.stmt) -> ast.stmt:
    """Return the outermost of the loops that go on adding to what has come together.

    In ``for epoch in epochs: for batch in batches: losses.append(x.item())`` that of the epochs,
    where nothing in it starts a new list.
    """
    while isinstance(around := here.loop_of(loop), LOOPS):
        inside = (n for n in walk(around) if isinstance(n, ast.Name) and n.id == name)
        if any(not isinstance(n.ctx, ast.Load) for n in inside if here.loop_of(n) is around):
            break
        loop = around
    return loop


def _reads_in(code: ast.expr) -> list[ast.AST]:
    """Return what reads values in an expression, the outermost of ``float(x.item())``."""
    return [
        n
        for n in walk(code)
        if isinstance(n, ast.Call) and isinstance(n.func, ast.Attribute) and n.func.attr == "item"
    ]


def _holds_floats(here: Surroundings, tensor: ast.expr) -> bool:
    """Tell whether ``float`` of a value is what reading it gives: of a mean, of a ``loss``."""
    found = here.evaluations.get(id(tensor))
    if found is None or is_named_loss(tensor) or found.node.op in _OF_FLOATS:
        return found is not None
    return "float" in (here.facts(found, x=found.node).dtype("x") or "")


def has_no_dimensions(here: Surroundings, tensor: ast.expr) -> bool:
    """Tell whether a tensor is known to have none: ``loss.mean()``."""
    found = here.evaluations.get(id(tensor))
    return found is not None and here.facts(found, x=found.node).ndim("x") == 0


def _is_started(
    here: Surroundings, name: str, outer: ast.stmt, loop: ast.stmt, *, empty: bool
) -> bool:
    """Tell whether a name only ever gets a number, or an empty list, besides what is added.

    What it gets behind the loop, ``losses = np.mean(losses)``, is gone before the loop begins anew.
    """
    stores = [
        n
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id == name and not isinstance(n.ctx, ast.Load)
    ]
    started = [n for n in stores if here.parents.get(id(n)) is not outer]
    around = here.loop_of(loop)
    before = [n for n in started if n.lineno < loop.lineno and here.loop_of(n) is around]
    ends = loop.end_lineno or 0
    if any(not here.tests_around(n) for n in before):
        started = [n for n in started if n.lineno <= ends]
    return (
        bool(started)
        and name not in here.flow.captured
        and not any(
            isinstance(n, ast.Global | ast.Nonlocal) and name in n.names for n in here.nodes
        )
        and all(
            any(_is_start(value, empty=empty) for value in _values(here, store))
            for store in started
        )
    )


def _values(here: Surroundings, store: ast.Name) -> Iterator[ast.expr]:
    """Yield the value of ``total`` in ``total = 0`` and ``count, total = 0, 0.0``."""
    outer = here.parents.get(id(store))
    match outer, here.parents.get(id(outer)):
        case ast.Assign(value=value), _:
            yield value
        case ast.AnnAssign(value=ast.expr() as value), _:
            yield value
        case ast.Tuple(targets), ast.Assign(value=ast.Tuple(values)):
            if len(targets) == len(values):
                yield values[next(at for at, t in enumerate(targets) if t is store)]


def _is_start(value: ast.expr, *, empty: bool) -> bool:
    match value:
        case ast.List([]):
            return empty
        case ast.Constant(number):
            return not empty and type(number) in {int, float}
    return False


def _is_listed_once(here: Surroundings, name: str, loop: ast.stmt) -> bool:
    """Tell whether a list is that of one loop alone, and nobody else holds it.

    Where a loop around that one goes on, what it would append to holds numbers: ``torch.stack``
    takes none. Who got the list before the loop would see no more of it.
    """
    around = here.loop_of(loop)
    places = [n for n in here.nodes if isinstance(n, ast.Name) and n.id == name]
    starts = [n for n in places if isinstance(n.ctx, ast.Store)]
    inside = set() if around is None else {id(n) for n in walk(around)}
    anew = around is None or any(id(n) in inside for n in starts)
    return anew and all(n.lineno >= loop.lineno for n in places if isinstance(n.ctx, ast.Load))


def _is_read_later(here: Surroundings, name: str, loop: ast.AST, outer: ast.stmt) -> bool:
    """Tell whether what has come together is read, and not in the loop."""
    loads = [
        n
        for n in here.nodes
        if isinstance(n, ast.Name) and n.id == name and isinstance(n.ctx, ast.Load)
    ]
    own = {id(n) for n in walk(outer)}
    inside = {id(n) for n in walk(loop)} - own
    return any(id(n) not in own for n in loads) and not any(id(n) in inside for n in loads)
