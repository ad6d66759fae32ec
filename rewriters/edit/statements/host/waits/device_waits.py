"""Waits for the whole device."""

from __future__ import annotations

import ast
import itertools
import re
from typing import TYPE_CHECKING

from npufix.rewriters.edit.statements.host.seldom import is_seldom
from npufix.rewriters.edit.statements.proposal import Change, Proposal, put
from npufix.rewriters.edit.statements.surroundings import COMPREHENSIONS, LOOPS
from npufix.rewriters.facts.steps.functions import takes_step, trains
from npufix.rewriters.graph.modules.syntax import last_name, walk

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rewriters.edit.edit import Span
    from npufix.rewriters.edit.statements.surroundings import Surroundings

_TIMED = re.compile(
    r"\b(time|perf_counter|monotonic|elapsed_time|elapsed|Event|timer|timeit)\b"
    r"|max_memory_|memory_(allocated|reserved|stats)"
)
"""What takes times or looks at memory: it waits for all on purpose."""
_BACKENDS = frozenset({"torch.npu", "torch.cuda", "torch_npu.npu"})
_RECORDS = re.compile(r"graph\(|empty_cache")
"""What does so beside it: before a graph is recorded, nothing may run."""
_NOW_AND_THEN = re.compile(
    r"(?i)%|step|iter|epoch|first|last|log|prof|debug|rank|warm|init|none|sync|bench|time_|_tim(e|ing)\b"
)
"""Tests of what is done now and then, or asked for: ``batch_p2p_sync``; others ask a setting."""
_IN_ITS_OWN_TIME = re.compile(
    r"(copy_|cpu).*non_blocking|[Ss]tream|\bpin|async_op|share_memory|Queue|\.put\("
)
"""What is not done in the order of one stream: the host may have to wait for it."""
_REASONED = re.compile(
    r"(?i)\b(races?|racing|stale|streams|otherwise|must|necessary|ensures?|make sure|deadlocks?)\b"
    r"|\b(other|different|another|separate|second) (\w+ )?stream"
)
"""What a comment says of a wait that is there on purpose: "written on a different GPU stream"."""
_OF_REQUEST = re.compile(
    r"(?i)(^|_)((de)?parallelize|decode|generate|infer(ence)?|predict|recogni[sz]e|search|synthesi[sz]e"
    r"|transcribe|translate|tts|\w+2(mel|wav))(_|$)"
)
"""What runs once for a text, an image or a model: beside its loops memory is given back once."""
_TRAINS_WHOLE = re.compile(
    r"(?i)(^|_)(fit|train)(?!.*(_|^)(batch|forward|iter\w*|loss|micro\w*|step)(_|$))(_|$)"
)
"""What takes all steps, or begins to: ``train_kmeans``, the ``train`` around that of a base."""
_CHANGES_PHASE = re.compile(
    r"(?i)(^|_)(clean_?up|exit|free|load|offload|onload|release|reload|reshard|resume|sleep|switch"
    r"|unload|wake)(_|$)"
)
"""What stands beside it where another part of the program needs the memory next."""
_FREES = re.compile(r"(free|release|destroy|unmap|munmap|unregister|deallocate|dispose)_")
"""What gives memory back that kernels may still read: ``library.free_matrix(self.handle)``."""
_MANY_STEPS = re.compile(r"_*(\w+_)?(fit|train|learn)(_(one_)?epochs?)?")
_TELLS_END = re.compile(r"_*(end|finish|done|stop|notify|commit|complete)(ed|d)?(_|$)")
_HOOK = re.compile(r"(?i)hook|callback|(^|\.)(on|before|after)_\w+$")


_FOR_CLOCK = (
    "each step waits only to be timed: let events note the time (torch.npu.Event(enable_timing="
    "True).record()), and ask elapsed_time() for it where it is logged, every N steps"
)
_GIVES_BACK = (
    "empty_cache() waits for the device and gives back memory that the next step asks for again: "
    "leave it out; PYTORCH_NPU_ALLOC_CONF=expandable_segments:True keeps memory in one piece"
)


def _gives_back(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether each step gives memory back: not where it has run out, or an epoch ends."""
    if any(isinstance(outer, ast.ExceptHandler) for outer in here.around(code)):
        return False
    block = here.block_of(statement := here.statement_of(code))
    at = block.index(statement)
    beside = (n for near in block[max(at - 2, 0) : at + 2] for n in walk(near))
    calls = (last_name(n.func) or "" for n in beside if isinstance(n, ast.Call))
    if any(_CHANGES_PHASE.search(name) for name in calls):
        return False
    loop = here.loop_of(code)
    if isinstance(loop, ast.For) and "epoch" in ast.unparse(loop.target).lower():
        return False
    if any(
        isinstance(n, ast.For) and "loader" in ast.unparse(n.iter) for s in block for n in walk(s)
    ):
        return False  # between the stages of a training
    tests = "".join(map(here.text, here.tests_around(code)))
    seldom = re.search(
        r"(?i)epoch|val|eval|\d{3}|not self\.training|none|empty|(iter\w*|step) ==", tests
    )  # ``if args.empty_unused_memory_level > 1``: who sets it wants that
    function = here.flow.function
    # beside the loop over the batches, or at the end of what is yielded part by part
    once = loop is None and (
        trains(function)
        or (_TRAINS_WHOLE.search(function.name) is not None and not takes_step(function))
        or _OF_REQUEST.search(function.name) is not None
        or any(isinstance(n, ast.Yield) or _trains_long(n) for n in here.nodes)
    )
    return seldom is None and not once


def _trains_long(code: ast.AST) -> bool:
    """Tell whether code has many steps taken: ``self.trainer.fit(n)``, not ``net.train()``."""
    match code:
        case ast.Call(called, given):
            return _MANY_STEPS.fullmatch(last_name(called)) is not None and (
                bool(given) or last_name(called) != "train"
            )
    return False


def find_device_waits(  # noqa: C901 - one case a wait
    here: Surroundings,
) -> Iterator[Proposal]:
    """Yield ``torch.npu.synchronize()`` where nothing is timed, or a read waits before that."""
    function = here.flow.function
    own = function.body[ast.get_docstring(function, clean=False) is not None :]
    alone = len(own) == 1 and not isinstance(own[0], LOOPS)
    if alone or _HOOK.search(here.flow.qualname):
        return  # ``def synchronize(self): torch.npu.synchronize()`` is asked to, a hook looks on
    is_timed = _TIMED.search(here.text(function)) is not None
    for node in here.nodes:
        match node:
            case ast.Call(ast.Attribute(owner, "empty_cache"), [], []):
                if here.flow.names.dotted(owner) in _BACKENDS and _gives_back(here, node):
                    yield Proposal(node, _GIVES_BACK)
            case ast.Call(ast.Attribute(owner, "synchronize"), [], []):
                if is_timed and not _is_read_next(here, here.statement_of(node)):
                    if _is_timed_in_steps(here, node):
                        yield Proposal(node, _FOR_CLOCK)
                    continue
                backend = here.flow.names.dotted(owner)
                tests = "".join(map(here.text, here.tests_around(node)))
                block = "".join(map(here.text, here.block_of(here.statement_of(node))))
                if _NOW_AND_THEN.search(tests) or _RECORDS.search(block):
                    continue
                told = _is_told_next(here, node) or _REASONED.search(here.comments_of(node))
                if told or _frees_memory(here):
                    continue
                if backend in _BACKENDS:
                    text = f"{here.text(owner)}.current_stream().synchronize()"
                    gone = None if tests else _line_of_its_own(here, node)
                    if gone is None or _IN_ITS_OWN_TIME.search(here.text(function)):
                        yield put(here, node, text)
                    else:
                        text = f"# {here.text(node)}"
                        yield Proposal(
                            node, form="in_order", changes=(Change(gone, ""),), shown=text
                        )


def _frees_memory(here: Surroundings) -> bool:
    """Tell whether a function gives memory back: it waits for the kernels that read that."""
    names = (last_name(n.func) for n in here.nodes if isinstance(n, ast.Call))
    return any(_FREES.match(name) for name in names if name)


def _is_told_next(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether somebody is told next that all is done: ``self.end_to_update()``."""
    match here.list_behind(here.statement_of(code)):
        case [ast.Expr(ast.Call(called)), *_]:
            return _TELLS_END.match(last_name(called)) is not None
    return False


def _is_timed_in_steps(here: Surroundings, code: ast.Call) -> bool:
    """Tell whether each step of a training loop waits, only to look at a clock."""
    tests = "".join(map(here.text, here.tests_around(code)))
    if here.flow.names.dotted(code.func) is None or _NOW_AND_THEN.search(tests):
        return False
    return trains(here.flow.function, code.lineno) and not is_seldom(here, code)


def _is_read_next(here: Surroundings, code: ast.stmt) -> bool:
    """Tell whether a value is read before the next look at a clock: that waits as well.

    ``torch.cuda.synchronize()``, ``meter.update(loss.item())``, ``end = time.time()``
    """
    for later in here.list_behind(code):
        if not isinstance(later, (ast.Assign, ast.AugAssign, ast.AnnAssign, ast.Expr)):
            return False  # a read there may be skipped
        if _TIMED.search(here.text(later)):
            return False
        if any(_is_read(n) and not _may_be_skipped(here, n) for n in walk(later)):
            return here.loop_of(code) is not None
    return False


def _is_read(code: ast.AST) -> bool:
    match code:
        case ast.Call(ast.Attribute(ast.Name(name), "item"), [], []):
            return "loss" in name  # no number of the host, as ``array.item()`` is
    return False


def _may_be_skipped(here: Surroundings, code: ast.AST) -> bool:
    """Tell whether a part of a statement may not run: ``loss.item() if log else 0``."""
    outer = itertools.takewhile(lambda n: not isinstance(n, ast.stmt), here.around(code))
    return any(isinstance(n, (ast.IfExp, ast.BoolOp, ast.Lambda, *COMPREHENSIONS)) for n in outer)


def _line_of_its_own(here: Surroundings, code: ast.Call) -> Span | None:
    """Return the line of a statement that may go: one among others, without a comment."""
    statement = here.statement_of(code)
    several = len(here.block_of(statement)) > 1
    whole = here.whole_lines(statement)
    alone = whole is not None and "#" not in here.lines[whole[2] - 1]
    if not several or whole is None or not alone:
        return None
    first, start, last, end = whole
    above, below = here.lines[first - 2 : first - 1], here.lines[last : last + 1]
    if above and below and not (above[0].strip() or below[0].strip()):
        return first, start, last + 1, len(below[0])  # one blank line of two
    return first, start, last, end
