"""Values of the device that the host reads, and who needs them there."""

from __future__ import annotations

import ast
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.choices import CHOOSE, LEAVES
from npufix.rewriters.edit.statements.handed_in import is_handed_in
from npufix.rewriters.edit.statements.host.accumulated import join_sums, keeps_memory
from npufix.rewriters.edit.statements.host.element_reads import (
    IN_LOOP,
    is_covered,
    is_made_in,
    read_before,
    read_by_others,
    waits_anyhow,
)
from npufix.rewriters.edit.statements.host.iterated_values import (
    furthest,
    read_by_implication,
    read_together,
    reduced_by_python,
)
from npufix.rewriters.edit.statements.host.logged_values import (
    find_logged,
    is_copied_for_log,
)
from npufix.rewriters.edit.statements.host.of_host import (
    ARITHMETIC,
    ON_HOST,
    brings_to_host,
    first_read,
    is_count,
    is_left_there,
    is_list,
    is_number,
    is_of_dictionary,
    is_of_host,
    is_of_round,
    is_tensor,
    iterated,
)
from npufix.rewriters.edit.statements.host.repeats import find_repeats
from npufix.rewriters.edit.statements.host.round_trips import (
    comes_back,
    computed_by_numpy,
    pick_there,
)
from npufix.rewriters.edit.statements.host.row_reads import padded_rows, read_of_rows, rows_read
from npufix.rewriters.edit.statements.host.seldom import (
    decides,
    is_default,
    is_for_files,
    is_rare,
    is_result,
    is_seldom,
)
from npufix.rewriters.edit.statements.host.sentences import FORM_LOGGED, ONLY_LOGGED
from npufix.rewriters.edit.statements.host.waits.either import limit_either
from npufix.rewriters.edit.statements.host.waits.finite import find_finite_tests
from npufix.rewriters.edit.statements.host.waits.limits import (
    LIMITING,
    LIMITS,
    RUNNING,
    TO_TENSORS,
    clamp,
    clamp_one,
    find_running,
    is_limit,
    keep_on_device,
    limit_of,
    may_be_float,
    tell_copied,
    tell_met,
)
from npufix.rewriters.edit.statements.host.waits.losses import (
    OF_ALL_LAYERS,
    divides_each,
    is_assigned,
    is_for_loss_of_round,
    is_met,
    only_divides,
    takes_tensor,
)
from npufix.rewriters.edit.statements.host.waits.positions import find_positions
from npufix.rewriters.edit.statements.host.waits.read_again import FORM_ROWS, copy_before, read_same
from npufix.rewriters.edit.statements.host.waits.reads import Read, continues, read_of
from npufix.rewriters.edit.statements.host.waits.returned import find_returned
from npufix.rewriters.edit.statements.host.waits.sizes import (
    FOR_SIZE,
    FROM_CALLER,
    counts_rounds,
    find_sizes,
    is_batch_size,
    is_of_caller,
    is_returned,
    makes_shapes,
    tell_size,
)
from npufix.rewriters.edit.statements.host.waits.tests import (
    is_asked_before,
    is_check,
    is_tested,
    is_told_by_others,
    leaves,
    tests_of,
)
from npufix.rewriters.edit.statements.host.waits.together import read_at_once, read_in_turn
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.edit.statements.surroundings import LOOPS
from npufix.rewriters.facts.kinds.arrays import is_of_numpy
from npufix.rewriters.facts.steps.functions import samples
from npufix.rewriters.graph import operators
from npufix.rewriters.graph.modules.syntax import walk
from npufix.rewriters.graph.special import Op

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from npufix.rewriters.edit.statements.surroundings import Surroundings
    from npufix.rewriters.graph.nodes import Node

_DECIDING = frozenset({Op.COMPARE, Op.BOOLOP, Op.NOT, "eq", "ne", "lt", "le", "gt", "ge"})
_RETURNED = (
    "the host waits for a number that is returned beside tensors: return the tensor, and let the "
    "caller compute with it"
)
_FORM_ITEM, _FORM_LIMIT, _FORM_LIMIT_OF_ITEM = "item", "limit", "limit_of_item"
_COPIED_IN_LOOP = (
    "the host waits in every round: copy all of it once before the loop (x = x.cpu(); of a list of "
    "tensors torch.stack(x).cpu()), or compute what follows on the device"
)
_OF_ROUND = (
    "the host waits in every round for what depends on the round alone: compute it for all rounds "
    "before the loop, read it there once (values = x.tolist()), and take values[i] here"
)
_OF_LIST = (
    "the host waits for each of them: read all at once (torch.stack(x).tolist()), or compute what "
    "follows on the device"
)
_ROUND_TRIP = (
    "the host waits for the tensor, computes with it, and what comes out is copied back: compute "
    "it on the device"
)
_FOR_CHECK = (
    "the host waits in every step for a number that is only checked: check it where the host has "
    "what it is counted from (the processor, the collator), or behind a switch for debugging"
)
_TO_CLAMP = "the device can find out itself: x.clamp(min=number) instead of max(x, number)"


def find_host_values(here: Surroundings) -> Iterator[Proposal]:
    """Yield what is read on the host in code that runs in every step."""
    return join_sums(_find_values(here))


def _find_values(  # noqa: C901, PLR0912 - one case a kind of read
    here: Surroundings,
) -> Iterator[Proposal]:
    loops: list[ast.expr | ast.stmt] = []
    for loop, base, proposal in rows_read(here):
        if loop not in loops and not is_of_host(here, base) and not is_seldom(here, loop):
            loops.append(loop)
            yield proposal
    yield from padded_rows(here)
    yield from find_repeats(here)
    yield from find_sizes(here)
    yield from find_finite_tests(here)
    yield from find_positions(here)
    done = {id(n) for loop in loops for n in walk(loop)}
    told = set[tuple[int, str]]()
    written, alone, joined = list[ast.stmt](), list[ast.stmt](), list[ast.stmt]()
    for node in here.nodes:
        if id(node) in done:
            continue  # what is left there is read again when the loop is written
        if isinstance(node, ast.Subscript):
            yield from read_by_implication(here, node, told)
        if not isinstance(node, ast.Call):
            continue
        once = reduced_by_python(here, node) or furthest(here, node) or limit_either(here, node)
        if once is not None:
            yield once
        read = read_of(here, node)
        if read is None or continues(here, read.code) or is_of_host(here, read.tensor):
            continue
        if (value := here.value(read.code)) is not None and is_handed_in(here, value):
            continue  # which is worth more: once for all layers
        covered = here.loop_of(read.code) is not None and is_covered(here, read.code)
        if covered or is_asked_before(here, read.code, read.tensor):
            continue
        if here.statement_of(node) in joined:
            continue
        found = _what_to_do(here, read)
        of_array = (value := here.value(read.tensor)) is not None and is_of_numpy(value)
        if found is not None and found.form == FORM_ROWS:
            if here.loop_of(node) in loops:
                continue
            loops += [loop for loop in [here.loop_of(node)] if isinstance(loop, ast.stmt)]
        if found is not None and found.changes:
            alone.append(here.statement_of(node))
        elif read.how == "item" and not of_array and read.code is node:
            found = read_in_turn(here, node, joined, alone) or found
        if found is not None and not (found.changes and of_array):  # which has no detach()
            logged = found.advice in ONLY_LOGGED or found.form == FORM_LOGGED
            yield from read_at_once(here, node, found, written) if logged else (found,)


def is_kept_there(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether a value that is read can stay on the device, as it is written then."""
    found = _on_device(here, read) if (read := read_of(here, code)) else None
    return found is not None and bool(found.changes)


def _what_to_do(here: Surroundings, read: Read) -> Proposal | None:
    if read.how in ON_HOST and comes_back(here, read.code):
        return None if is_seldom(here, read.code) else Proposal(read.code, _ROUND_TRIP)
    kept = read.how in {"cpu", "tolist"}
    if kept and (there := pick_there(here, read.code, read.tensor)) is not None:
        return there
    if read.how == "cpu" and is_assigned(here, read.code):
        return Proposal(read.code, OF_ALL_LAYERS)
    if read.how == "cpu" and is_result(here, read.code) and not is_copied_for_log(here, read.code):
        return None
    return _on_device(here, read) or _by_hand(here, read)


def _on_device(here: Surroundings, read: Read) -> Proposal | None:
    """Return how the value stays on the device, if nobody but tensors needs it."""
    if read.how not in {"item", "float", "max", "min"}:
        return None
    limit = _limit_of(here, read)
    outer = limit or read.code  # ``max(x.item(), 1)``
    value = here.value(outer)
    at = here.evaluations.get(id(read.tensor))
    at_once = read.how == "item" and (
        is_met(here, read.code, read.tensor) or is_for_loss_of_round(here, read.code)
    )
    if value is None or at is None or (here.loop_of(read.code) is not None and not at_once):
        return None
    later = None if limit is not None else _find_limit(here, value)
    value = value if later is None else here.users(value)[0]  # ``n = x.item()``, ``n = max(n, 1)``
    users = here.users(value)
    counts = is_count(at.node)
    call = limit or later
    mixed = counts and may_be_float(here, call, users)
    divides = limit is None and divides_each(here, read.code)
    if not users or mixed or makes_shapes(here, users):  # ``x[start : start + n.item()]``
        return None
    if not divides and any(_needs_number(here, u, value, counts=counts) for u in users):
        return keep_on_device(here, read.code, read.tensor, counts=counts)
    facts = here.facts(at, x=at.node)
    proven = {"is-tensor"} if facts.is_tensor("x") else set[str]()
    if not any(user.op == Op.CALL for user in users):
        proven.add("takes-tensors")
    elif "jit.script" in "".join(here.lines):  # ``dice_loss_jit(x, num: float)``
        return None
    proven |= _proven_of_count(at.node)
    text = here.text_of_owner(read.tensor)
    detached = text if counts else here.text_detached(read.tensor)
    form = _FORM_LIMIT
    if read.how not in LIMITS:
        form = _FORM_ITEM if (limit or later) is None else _FORM_LIMIT_OF_ITEM
        text = detached + ("" if facts.ndim("x") == 0 else ".reshape(())")
        text += ".clone()" if keeps_memory(here, read.code, read.tensor) else ""
    text += "" if limit is None else clamp(here, limit, counts=counts)
    changes = [] if later is None else clamp_one(here, later, counts=counts)
    if call is not None and not is_limit(here, call.args[0]):
        proven.add("never-nan")  # ``max(x, 1.0)`` is NaN as well where x is
    asked_at, met = _met(here, users, value)
    return Proposal(
        outer,
        form=form,
        changes=(Change(here.span(outer), text), *changes),
        shown=text,
        asked=(("x", here.text(read.tensor)), *((f"y{n}", code) for n, code in enumerate(met))),
        asked_at=asked_at,
        proven=frozenset(proven),
    )


def _proven_of_count(node: Node) -> set[str]:
    """Return what holds of counts; ``(x > 0).float().sum()`` is one of floats."""
    if is_count(node):
        return {"same-dtype", "without-gradient", "never-nan"}
    return {"without-gradient", "never-nan"} if is_count(node, cast=True) else set()


def _met(
    here: Surroundings, users: Sequence[Node], value: Node
) -> tuple[ast.stmt | None, list[str]]:
    """Return the first statement that computes with a value, and what the value meets there."""
    found = [
        (here.statement_of(e.code), other)
        for e in here.flow.evaluations
        if e.node in users and isinstance(e.code, ast.BinOp)
        for other in (e.code.left, e.code.right)
        if here.value(other) is not value
    ]
    first = min((s.lineno for s, _ in found), default=0)
    met = [here.text(code) for s, code in found if s.lineno == first]
    return next((s for s, _ in found if s.lineno == first), None), met


def _limit_of(here: Surroundings, read: Read) -> ast.Call | None:
    """Return the ``max`` or ``min`` with a number that is all that a value is used for."""
    if read.how in LIMITS:
        return read.code
    match here.parents.get(id(read.code)):
        case ast.Call(ast.Name("max" | "min"), [first, second], []) as outer:
            other = second if first is read.code else first
            return outer if is_limit(here, other) else None
    return None


def _find_limit(here: Surroundings, value: Node) -> ast.Call | None:
    """Return ``max(n, 1)``, if nothing else is done with ``n``."""
    users = here.users(value)
    if len(users) != 1 or users[0].op not in LIMITING:
        return None
    return limit_of(here, users[0], value)


def _needs_number(here: Surroundings, user: Node, value: Node, *, counts: bool = False) -> bool:
    """Tell whether a number is needed, and not a tensor without dimensions as well.

    What ``counts`` may be multiplied by numbers first: ``loss / (3 * num_pos)``.
    """
    if user.op in ARITHMETIC:
        others = [arg for arg in user.args if arg is not value]
        if counts and others and all(map(is_number, others)):
            return _is_number_needed(here, user)
        if others and all(is_tensor(here, arg) for arg in others):
            return any(is_left_there(here, arg) for arg in others)
        return not others or not only_divides(here, user)
    if user.op == Op.PHI:
        return _is_number_needed(here, user) if counts else not only_divides(here, value)
    if user.op == Op.CALL:
        return not takes_tensor(user, value)
    return True  # in a list, too: what is printed would be ``tensor(2.)``


def _is_number_needed(here: Surroundings, value: Node) -> bool:
    """Tell whether somebody who gets what is made of a count needs a number."""
    later = here.users(value)
    is_seen = any(o.node is value for o in here.flow.observables)
    return is_seen or not later or any(_needs_number(here, u, value, counts=True) for u in later)


def _by_hand(  # noqa: C901, PLR0911, PLR0912 - one case a kind of use
    here: Surroundings, read: Read
) -> Proposal | None:
    """Return what to do where the tool does not know how to write it."""
    if is_seldom(here, read.code) or (read.how in ON_HOST and is_for_files(here, read.code)):
        return None
    loop = here.loop_of(read.code)
    value = here.value(read.code)
    users = [] if value is None else here.users(value)
    if read.how in LIMITS:
        return None if makes_shapes(here, users) else Proposal(read.code, _TO_CLAMP)
    if loop is not None and (once := read_before(here, read.code)) is not None:
        return once
    once = None if loop is None else read_same(here, read)
    if once is not None:
        return once
    if read.how == "item" and loop is not None:
        rows = read_of_rows(here, read.code, read.tensor)
        if rows is not None:
            return rows
    once = None if loop is None else read_together(here, read.code, read.tensor, read.how)
    if once is not None:
        return once
    counted = here.value(read.tensor)
    counts = counted is not None and is_count(counted)
    logged = find_logged(here, read.code, read.tensor, read.how, counts=counts)
    if logged is not None:
        return logged
    if loop is None and is_of_caller(here, read.code, read.tensor, read.how):
        if brings_to_host(here):
            return None
        return _hand_over(here, read, users) or Proposal(read.code, FROM_CALLER)
    if loop is None and (found := read_by_others(here, read.code)) is not None:
        return found
    if loop is not None and not (isinstance(loop, LOOPS) and is_made_in(loop, read.tensor)):
        if waits_anyhow(here, loop):
            return None
        once = copy_before(here, read.code) if read.how == "cpu" else None
        return once or Proposal(read.code, _say_in_loop(here, read))
    if value is not None and read.how == "item" and tell_copied(here, value):
        listed = isinstance(here.parents.get(id(read.code)), ast.List)  # NPU219 tells of the list
        return None if listed else Proposal(read.code, _ROUND_TRIP)
    of_round = loop is not None and value is not None and is_of_round(value)
    if of_round and samples(here.flow.function, read.code.lineno):
        return Proposal(read.code, _OF_ROUND)
    ops = {user.op.removesuffix("(*)") for user in users}
    needed = makes_shapes(here, users) or counts_rounds(here, read.code)
    needed = needed or is_default(here, read.code)
    if needed or _decide(here, users) or is_tested(here, read.code):
        return _say_what_waits(here, read, users)
    if loop is None and is_batch_size(here, read.code):
        return Proposal(read.code, FOR_SIZE)
    if ops & {*ARITHMETIC, "py:max", "py:min"}:
        if value is None or read.how not in {"item", "float"}:
            return None
        advice = RUNNING if find_running(here, read.code) else tell_met(here, value)
        return Proposal(read.code, advice) if advice else None
    if loop is None and is_returned(here, read.code, read.tensor):
        return Proposal(read.code, _RETURNED)
    if read.how == "item" and loop is None and (returned := find_returned(here, read.code)):
        return returned
    if read.how == "item" and value is not None and only_divides(here, value):
        return Proposal(read.code, TO_TENSORS)
    if read.how == "numpy" and (found := computed_by_numpy(here, read.code)):
        return found
    if Op.CALL in ops or isinstance(here.parents.get(id(read.code)), (ast.Call, ast.keyword)):
        return _hand_over(here, read, users)
    return None


def _say_what_waits(here: Surroundings, read: Read, users: Sequence[Node]) -> Proposal | None:
    """Return what to do where the host needs a number for what comes next."""
    if read.how in ON_HOST or brings_to_host(here):
        return None
    if is_rare(here, read.code) and not is_default(here, read.code):
        return None
    value = here.value(read.tensor)
    drawn = operators.RANDOM & operators.FACTORIES
    by_size = makes_shapes(here, users) or counts_rounds(here, read.code)
    if value is not None and (
        (not by_size and is_told_by_others(value)) or any(part.op in drawn for part in value.walk())
    ):
        return None  # ``torch.randint(9, (1,), device=d).item()`` draws for the host
    if by_size or is_default(here, read.code):
        return tell_size(here, read.code, value)
    tests = tests_of(here, read.code, users)
    checks = [is_check(test) for test in tests]
    if any(checks):
        # else it is needed: ``assert rate == x[1]``, and ``if rate != own: x = resample(x, rate)``
        alone = all(checks) and here.loop_of(read.code) is None
        kept = _is_kept(here, {here.value(read.code), *users} - {None})
        return Proposal(read.code, _FOR_CHECK) if alone and not kept else None
    in_loop = here.loop_of(read.code) is not None
    advice = LEAVES if in_loop and any(map(leaves, tests)) else CHOOSE
    decided = advice == LEAVES or any(decides(here, t) for t in tests)
    return Proposal(read.code, advice) if decided else None


def _is_kept(here: Surroundings, numbers: set[Node | None]) -> bool:
    """Tell whether an attribute holds a number: ``self.size = len(x) - n``."""
    return any(
        isinstance(n, ast.Assign)
        and any(isinstance(target, ast.Attribute) for target in n.targets)
        and here.value(n.value) in numbers
        for n in here.nodes
    )


def _say_in_loop(here: Surroundings, read: Read) -> str:
    """Return how one read takes the place of one in each round."""
    if read.how in ON_HOST:
        return _COPIED_IN_LOOP
    tests = (n for n in here.around(read.code) if isinstance(n, ast.If))
    if any(isinstance(inner, ast.Break) for test in tests for inner in test.body):
        return LEAVES
    whole = iterated(here, first_read(read.tensor))
    of_list = is_of_dictionary(whole) or (whole is not None and is_list(here, whole))
    return _OF_LIST if of_list and read.how in {"item", "int", "float"} else IN_LOOP


def _decide(here: Surroundings, users: Sequence[Node]) -> bool:
    """Tell whether a number is compared, or what it makes: ``assert end - start > step``."""
    made = [u for user in users if user.op in ARITHMETIC for u in here.users(user)]
    return any(user.op.removesuffix("(*)") in _DECIDING for user in (*users, *made))


_FOR_TEXT = re.compile(r"(?i)token|processor|vocab|decode")
"""What wants words, or their numbers, in lists."""


def _hand_over(here: Surroundings, read: Read, users: Sequence[Node]) -> Proposal | None:
    """Return a call that gets the tensor and not what the host has read of it.

    Only a method of the object itself may take it as well: what comes out of another package says
    what it wants. Who asks for the CPU, ``self.error_rate(y.cpu())``, computes there.
    """
    outer = here.parents.get(id(read.code))
    is_argument = isinstance(outer, (ast.Call, ast.keyword)) and len(users) == 1
    if read.how != "tolist" or not is_argument or users[0].op != Op.CALL:
        return None
    called = users[0].args[0]
    if called.op != Op.ATTR or called.args[0].value != "self":
        return None
    tensor = here.text(first_read(read.tensor))
    if _FOR_TEXT.search(str(called.value)):
        return None
    if re.search("seq|len", tensor):  # fused attention wants those of sequences as a list
        return None
    proven = {"is-tensor"} if here.is_tensor(first_read(read.tensor)) else set[str]()
    return put(here, read.code, tensor, form="handed_list", proven=proven)
