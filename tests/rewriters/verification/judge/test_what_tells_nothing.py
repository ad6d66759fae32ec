"""Differences that no caller can see: of what has no elements, or of integers nobody asks for."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace

import pytest

pytest.importorskip("torch")

import torch

from npufix.advisor.verify.changed_functions import find_touched
from npufix.rewriters.verification import Job
from npufix.rewriters.verification.calls.observe import CallRecord
from npufix.rewriters.verification.calls.values import Tensor
from npufix.rewriters.verification.inputs.target import Assignment, CallCase
from npufix.rewriters.verification.judge.checks.requirements import _require_numbers
from npufix.rewriters.verification.judge.compare_versions import _cannot_run
from npufix.rewriters.verification.judge.difference import Difference, Seen
from npufix.rewriters.verification.judge.evidence import Proof
from npufix.rewriters.verification.judge.observe_case import CaseRun, drop_far_gradients
from npufix.rewriters.verification.judge.plausibility import set_aside
from npufix.rewriters.verification.judge.verify_function import verify_function
from npufix.rewriters.verification.verdict import NotVerifiedError, Status, Verdict

PICKED = '''
import torch
import torch.nn.functional as F

def picked(logp, target):
    """logp (N, C), target (N,)."""
    return (logp * F.one_hot(target, logp.shape[1]).to(logp.dtype)).sum(1)
'''
GATHERED = "logp.gather(1, target[:, None]).squeeze(1)"
ATTENTION = '''
import torch
import torch.nn.functional as F

def attend(q, k, v, bias=None):
    """q (B, H, T, D), k and v (B, H, S, D), bias (B, 1, T, S) to be added."""
    w = q @ k.transpose(-1, -2) / q.shape[-1] ** 0.5
    if bias is not None:
        w = w + bias
    return w.softmax(-1) @ v
'''
ROWS = '''
import torch

def totals(rows, keep):
    """rows (B, T, C), keep (B, T) of bool."""
    return torch.stack([row[on].sum(0) for row, on in zip(rows, keep)])
'''
SCORES = '''
import torch

def scores(query, key, bias, factor: float):
    """query (B, T, D), key (B, S, D), bias (B, 1, S)."""
    return torch.bmm(query, key.transpose(1, 2)) * factor + bias.to(query.dtype)
'''
GUARDED = '''
import torch
from torch import Tensor

def gated(x: Tensor, w: Tensor) -> Tensor:
    """x (batch, seq, dim), w (2 * hidden, dim)."""
    b, s, d = x.shape
    a, g = (x @ w.t()).chunk(2, -1)
    return a * torch.sigmoid(g)
'''

AVERAGED = """
import torch

@torch.no_grad()
def average(student: torch.nn.Module, teacher: torch.nn.Module, keep: float):
    for ours, theirs in zip(student.parameters(), teacher.parameters()):
        theirs.data.mul_(keep).add_(ours.data, alpha=1 - keep)
"""
TOGETHER = """    theirs = [p.data for p in teacher.parameters()]
    torch._foreach_mul_(theirs, keep)
    torch._foreach_add_(theirs, [p.data for p in student.parameters()], alpha=1 - keep)
"""
LENGTHS = """
import torch

@torch.no_grad()
def lengths(x: torch.Tensor) -> torch.Tensor:
    return x.norm(dim=-1) * 2
"""
POOLED = """
import torch

def pool(x: torch.Tensor, lengths: torch.Tensor) -> torch.Tensor:
    "x (B, C, T), lengths (B,) frames of each."
    return torch.stack([x[b, :, : int(lengths[b])].sum(-1) for b in range(x.shape[0])])
"""
TIMES = """
import torch

def embed(steps: torch.Tensor, dim: int):
    rates = torch.exp(-torch.arange(dim // 2) / 4.0)
    return (steps[:, None] * rates[None]).cos()
"""
MASKED = "((torch.arange(x.shape[-1]) < lengths[:, None])[:, None] * x).sum(-1)"


def verified(old: str, before: str, after: str) -> Verdict:
    new = old.replace(before, after)
    assert new != old
    (one,) = find_touched(old, new)
    lines = one.lines_original, one.lines_changed
    return verify_function(
        Job("/user/m.py", "/user", old, new, one.qualname, *lines, by_hand=True)
    ).verdict


def test_dimensions_that_one_size_alone_lets_through_are_said() -> None:
    found = verified(TIMES, "steps[:, None] * rates[None]", "torch.outer(steps, rates)")
    assert found.status is Status.EQUIVALENT, found
    assert "which the changed code refuses" in found.ground


def test_the_same_integers_in_another_type_are_said() -> None:
    product = "(logp * F.one_hot(target, logp.shape[1]).to(logp.dtype)).sum(1)"
    verdict = verified(PICKED, product, GATHERED)
    assert verdict.status is Status.EQUIVALENT
    assert "its integers are of another type for logp=int" in verdict.ground
    wrong = verified(PICKED, product, f"{GATHERED}.abs()")
    assert wrong.status is Status.REFUTED


def test_a_gradient_without_elements_is_as_good_as_none() -> None:
    fused = "return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)"
    body = ATTENTION[ATTENTION.index("    w = ") :].strip()
    assert verified(ATTENTION, body, fused).status is Status.EQUIVALENT
    detached = fused.replace("=bias", "=None if bias is None else bias.detach()")
    assert verified(ATTENTION, body, detached).status is Status.REFUTED


def test_what_a_docstring_gives_a_shape_is_no_list() -> None:
    loop = "torch.stack([row[on].sum(0) for row, on in zip(rows, keep)])"
    verdict = verified(ROWS, loop, "(rows * keep[..., None]).sum(1)")
    assert verdict.status is Status.EQUIVALENT


def test_whole_numbers_where_nothing_asks_for_them_refute_nothing() -> None:
    before = "torch.bmm(query, key.transpose(1, 2)) * factor + bias.to(query.dtype)"
    fused = "torch.baddbmm(bias.to(query.dtype), query, key.transpose(1, 2), alpha=factor)"
    assert verified(SCORES, before, fused).status is Status.EQUIVALENT


@pytest.mark.parametrize(("text", "status"), [
    (GUARDED, Status.EQUIVALENT),
    (GUARDED.replace("b, s, d = x.shape", "b = len(x)"), Status.EQUIVALENT),  # the docstring
    (GUARDED.replace("b, s, d = x.shape", "b = len(x)").replace("x (batch, seq, dim)", "x"),
     Status.NOT_VERIFIED),
])  # fmt: skip
def test_a_way_that_no_call_takes_is_not_asked_for(text: str, status: Status) -> None:
    guarded = (
        "if isinstance(x, Tensor) and x.dim() == 3:\n"
        "        a, g = torch.matmul(x, w.t()).chunk(2, -1)\n"
        "    else:\n        a, g = torch.flip(x, (0,)).chunk(2, -1)"
    )
    found = verified(text, "a, g = (x @ w.t()).chunk(2, -1)", guarded)
    assert found.status is status or (
        status is Status.NOT_VERIFIED and found.status is Status.REFUTED
    )


NEGATIVES = '''
import torch
import torch.nn.functional as F

def contrast(query, others):
    """query (B, D), others (B, K, D)"""
    logits = torch.stack([(query * others[:, k]).sum(-1) for k in range(others.shape[1])], dim=1)
    labels = torch.zeros(len(logits), dtype=torch.long).to(query.device)
    return F.cross_entropy(logits, labels)
'''


def test_labels_in_int64_do_not_ask_for_floats_of_several_dtypes() -> None:
    begin = NEGATIVES.index("torch.stack")
    loop = NEGATIVES[begin : NEGATIVES.index("\n", begin)]
    product = "torch.bmm(others, query[..., None]).squeeze(-1)"
    assert verified(NEGATIVES, loop, product).status == "equivalent"
    converted = NEGATIVES.replace("= torch.stack", "= query.new_zeros(()) + torch.stack").replace(
        "(query * ", "(query.to(torch.float32) * "
    )
    begin = converted.index("torch.stack")
    loop = converted[begin : converted.index("\n", begin)]
    assert verified(converted, loop, product).status == "refuted"


FILTERED = '''
import torch

def filtered(logits, below: float = 0.5):
    """logits (B, V)"""
    for i in range(logits.size(0)):
        logits[i, logits[i] < below] = -float("inf")
    return logits
'''


def test_what_a_loop_over_no_rows_writes_into_is_not_written() -> None:
    begin = FILTERED.index("    for i")
    loop = FILTERED[begin : FILTERED.index("    return")]
    mask = 'logits.masked_fill_(logits {} below, -float("inf"))'
    same, other = (f"    {mask.format(sign)}\n" for sign in ("<", ">"))
    assert verified(FILTERED, loop, same).status == "equivalent"
    assert verified(FILTERED, loop, other).status == "refuted"


def test_a_model_without_weights_refutes_nothing() -> None:
    body = AVERAGED[AVERAGED.index("    for ours") :]
    assert verified(AVERAGED, body, TOGETHER).status is Status.EQUIVALENT
    wrong = TOGETHER.replace("alpha=1 - keep", "alpha=keep")
    assert verified(AVERAGED, body, wrong).status is Status.REFUTED


def test_no_half_of_a_frame_is_counted() -> None:
    loop = POOLED[POOLED.index("torch.stack(") :].rstrip()
    assert verified(POOLED, loop, MASKED).status is Status.EQUIVALENT
    assert verified(POOLED, loop, MASKED.replace("<", "<=")).status is Status.REFUTED


def test_squares_below_float16_are_said_and_refute_nothing() -> None:
    verdict = verified(LENGTHS, "x.norm(dim=-1)", "x.square().sum(-1).sqrt()")
    assert verdict.status is Status.EQUIVALENT, verdict
    assert any("tiny rows in float16" in note for note in verdict.notes)


ENTROPY = """
import torch
import torch.nn.functional as F

def entropy(logits):
    logp = F.log_softmax(logits, dim=-1)
    return -(logp.exp() * logp).sum(-1).mean()
"""
EXPERTS = """
import torch

class Experts(torch.nn.Module):
    def __init__(self, dim=8, experts=4):
        super().__init__()
        self.gate = torch.nn.Linear(dim, experts)
        self.experts = torch.nn.ModuleList([torch.nn.Linear(dim, dim) for _ in range(experts)])

    def forward(self, x):
        weights, ids = self.gate(x).softmax(-1).topk(2, -1)
        out = torch.zeros_like(x)
        for n, expert in enumerate(self.experts):
            rows, slot = torch.where(ids == n)
            if rows.numel():
                out.index_add_(0, rows, expert(x[rows]) * weights[rows, slot, None])
        return out
"""
WRITTEN = '''
import torch

def write(cache, key, slots):
    """cache (blocks, size, D) contiguous, key (T, D), slots (T,) long, distinct."""
    size = cache.shape[1]
    cache[torch.div(slots, size, rounding_mode="floor"), slots % size] = key
    return cache
'''


QUEUE = """
import torch

class Queue(torch.nn.Module):
    def __init__(self, dim: int = 8, size: int = 12):
        super().__init__()
        self.size = size
        self.register_buffer("queue", torch.randn(dim, size))
        self.register_buffer("at", torch.zeros(1, dtype=torch.long))

    @torch.no_grad()
    def f(self, keys: torch.Tensor):
        places = (torch.arange(keys.shape[0]) + self.at) % self.size
        self.queue[:, places] = keys.T
        self.at.add_(keys.shape[0]).remainder_(self.size)
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong"),
    [
        (
            ENTROPY,
            "F.log_softmax(logits, dim=-1)",
            "logits - logits.logsumexp(-1, keepdim=True)",
            "logits.bfloat16().log_softmax(-1).to(logits.dtype)",
        ),
        (
            EXPERTS,
            "            if rows.numel():\n    ",
            "",
            "            if rows.numel() > 1:\n    ",
        ),
        (
            WRITTEN,
            'cache[torch.div(slots, size, rounding_mode="floor"), slots % size]',
            "cache.view(-1, cache.shape[-1])[slots]",
            "cache.view(-1, cache.shape[-1])[slots // size]",
        ),
        (  # keys of one number each would fill all eight of a column
            QUEUE,
            "self.queue[:, places] = keys.T",
            "self.queue.index_copy_(1, places, keys.T)",
            "self.queue.index_add_(1, places, keys.T)",
        ),
    ],
)
def test_what_is_lost_or_nothing_is_no_difference(
    text: str, old: str, right: str, wrong: str
) -> None:
    assert verified(text, old, right).status is Status.EQUIVALENT
    assert verified(text, old, wrong).status is Status.REFUTED


DROPPED = """
import torch

def drop(NAMED: torch.Tensor, mask: torch.Tensor):
    NAMED = NAMED.clone()
    NAMED[mask.bool()] = 0.0
    return NAMED
"""


@pytest.mark.parametrize(
    ("name", "status"),
    # of hidden states, a mask may be one of rows, and without a word nobody knows
    [("scores", Status.EQUIVALENT), ("hidden", Status.NOT_VERIFIED)],
)
def test_a_mask_of_rows_is_none_of_scores(name: str, status: Status) -> None:
    text = DROPPED.replace("NAMED", name)
    found = verified(
        text,
        f"    {name}[mask.bool()] = 0.0\n    return {name}\n",
        f"    return {name}.masked_fill(mask.bool(), 0.0)\n",
    )
    assert found.status is status, found


@pytest.mark.parametrize(("rows", "skipped"), [(4096, True), (4, False)])
def test_large_calls_that_take_too_long_say_nothing(rows: int, *, skipped: bool) -> None:
    import torch

    job = Job("/user/m.py", "/user", "", "", "f", (), (), by_hand=True)
    case = CallCase(Assignment(None, {"x": Tensor((rows,))}))
    late = CallRecord(error="ExpiredError", kind="ExpiredError")
    one = CaseRun(case, torch.float32, "none", CallRecord())
    assert _cannot_run(Proof(job), one, late) is skipped


SMALLEST = """
import torch

def smallest(areas, inside):
    "areas (N, M) float, inside (N, M) bool"
    area = areas.clone()
    area[~inside] = 1e8
    return area.argmin(dim=1)
"""
SHIFTED = """
import torch
import torch.nn.functional as F

def shift(x, fold: int = 2):
    "x: (N, T, C, H, W)"
    out = torch.zeros_like(x)
    out[:, :-1, :fold] = x[:, 1:, :fold]
    out[:, :, fold:] = x[:, :, fold:]
    return out
"""
FILLED = "    area = areas.clone()\n    area[~inside] = 1e8\n"


@pytest.mark.parametrize(
    ("text", "status"),
    [
        (SMALLEST, Status.EQUIVALENT),
        (SMALLEST.replace("= 1e8", "= 6e4"), Status.REFUTED),  # the number is new
        (SMALLEST.replace("float,", "float16 or float32,"), Status.REFUTED),
    ],
)
def test_a_number_too_large_for_halves_is_said(text: str, status: Status) -> None:
    found = verified(
        text,
        FILLED if FILLED in text else FILLED.replace("1e8", "6e4"),
        "    area = areas.masked_fill(~inside, 1e8)\n",
    )
    assert found.status is status, found
    assert found.ground.startswith("not in float16") is (status is Status.EQUIVALENT)


def test_a_video_without_frames_is_nobodys() -> None:
    moved = "F.pad(x[:, 1:, :fold], (0, 0, 0, 0, 0, 0, 0, 1))"
    before = SHIFTED[SHIFTED.index("    out = ") :]
    after = f"    return torch.cat([{moved}, x[:, :, fold:]], dim=2)\n"
    assert verified(SHIFTED, before, after).status is Status.EQUIVALENT
    rows = SHIFTED.replace("(N, T, C, H, W)", "(N, T, C, A, B)")
    assert verified(rows, before, after).status is Status.REFUTED


def test_of_gradients_by_far_numbers_only_lost_ones_tell() -> None:
    one, nan = torch.ones(2), torch.tensor([1.0, float("nan")])
    named = {"result": one, "gradient of x": one, "gradient of y": one, "gradient of z": nan}
    before = CallRecord(tensors=named)
    after = CallRecord(tensors={**named, "gradient of x": nan, "gradient of y": 2 * one})
    near, far = (CallCase(Assignment(None, {}), flavour) for flavour in ("zeros", "far below"))
    assert drop_far_gradients(near, before, after) == (before, after)
    kept = [set(seen.tensors) for seen in drop_far_gradients(far, before, after)]
    assert kept == [{"result", "gradient of x"}] * 2


@pytest.mark.parametrize(
    ("size", "says", "aside"),
    [
        (2, "Input type (torch.FloatTensor) and weight type (CPUBFloat16Type) should be the", True),
        (0, "non-positive groups is not supported", True),
        (2, "non-positive groups is not supported", False),
    ],
)
def test_what_convolutions_refuse_aloud_is_no_mistake(size: int, says: str, *, aside: bool) -> None:
    x = Tensor((1, size, 3), dtype=torch.float32)
    case = CallCase(Assignment(None, {"x": x, "w": Tensor((size, 2))}))
    one = CaseRun(case, torch.bfloat16, "leaf", CallRecord())
    job = Job("m.py", "", "def f(x, w):\n    return x\n", "", "f", (2,), (2,), by_hand=True)
    text = f"the original runs, the patched code raises RuntimeError: {says} same"
    found = Difference(text, one.label, case.size, seen=Seen.ERROR)
    ordinary = CaseRun(CallCase(Assignment(None, {})), torch.float32, "leaf", CallRecord())
    kept, _ = set_aside(job, [found], [one, ordinary])
    assert (not kept) is aside


@pytest.mark.parametrize(
    ("values", "plain", "told"),
    [
        ({"result": [float("nan")]}, {}, False),
        ({"result": [float("nan")], "self.n after the call": [1.0]}, {}, True),
        ({"result": [float("nan"), 1.0]}, {}, True),
        ({"result[0]": [float("nan")]}, {"result[1]": 3}, True),
        ({"result": []}, {}, True),  # what is empty tells nothing, which is said elsewhere
    ],
)
def test_what_makes_nothing_but_nan_is_not_verified(
    values: dict[str, list[float]],
    plain: dict[str, object],
    told: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    tensors: dict[str, torch.Tensor | None] = {n: torch.tensor(v) for n, v in values.items()}
    seen = CallRecord(tensors=tensors, plain=plain, changed={"self.n"})
    calls = [SimpleNamespace(original=seen)]
    with nullcontext() if told else pytest.raises(NotVerifiedError):
        _require_numbers(calls)  # type: ignore[arg-type] # all that is asked of a call
