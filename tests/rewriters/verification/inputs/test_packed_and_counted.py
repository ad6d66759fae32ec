"""Ends of packed sequences, numbers in bounds, columns an object is made for, rows far below."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict  # noqa: E402 - torch first

from npufix.rewriters.verification.calls.values import Tensor, Value, materialise  # noqa: E402
from npufix.rewriters.verification.inputs.source.declarations import (  # noqa: E402
    read_declarations,
)
from npufix.rewriters.verification.inputs.source.parameters import tie_ends  # noqa: E402
from npufix.rewriters.verification.inputs.source.shapes import (  # noqa: E402
    read_multiples,
    read_text,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402

PACKED = '''
def position_ids(cu_seqlens):
    """cu_seqlens (N + 1): positions inside each packed sequence."""
    parts = zip(cu_seqlens[:-1].tolist(), cu_seqlens[1:].tolist())
    return torch.cat([torch.arange(b - a) for a, b in parts])
'''
PACKED_LOOP = PACKED[PACKED.index("    parts") :].strip()
COUNTED = """
def tokens_per_expert(chosen, num_experts):
    return torch.bincount(chosen.flatten(), minlength=num_experts)
"""
IN_BYTES = "F.one_hot(chosen.flatten(), num_experts).to(torch.uint8).sum(0, dtype=torch.{}).long()"
CHOSEN = '''
def mixed(x, chosen, weights):
    """x (E, T, D), chosen (T, K) in 0..E-1, weights (T, K)."""
    out = torch.zeros_like(x[0])
    for e in range(len(x)):
        token, slot = torch.where(chosen == e)
        out = out.index_add(0, token, x[e][token] * weights[token, slot, None])
    return out
'''
CONDITIONED = '''
class FiLM(torch.nn.Module):
    def __init__(self, channels, cond_dim):
        super().__init__()
        self.scale = torch.nn.Linear(cond_dim, channels)

    def forward(self, x, cond):
        """x (B, C, H, W), cond (B, K)."""
        return x * self.scale(cond)[:, :, None, None]
'''
STEPS = """
def rate(step, warmup=100, total=1000, floor=1e-5):
    if step > total:
        return floor
    return 1.0 - (step - warmup) / total
"""
SEGMENTS = '''
def softmax(scores, index, n: int):
    """scores (E), index (E) below n: softmax over the entries of each segment."""
    peak = torch.full((n,), -1e4, dtype=scores.dtype).scatter_reduce(0, index, scores, "amax")
    e = (scores - peak[index]).exp()
    return e / torch.zeros(n, dtype=scores.dtype).index_add(0, index, e)[index]
'''
WINDOWS = '''
def windows(x, size: int):
    """x (B, H, W, C), H and W divisible by size."""
    found = []
    for one in x:
        for i in range(0, x.shape[1], size):
            for j in range(0, x.shape[2], size):
                found.append(one[i : i + size, j : j + size])
    return torch.stack(found)
'''
IN_ONE = """b, h, w, c = x.shape
    x = x.view(b, h // size, size, w // size, size, c)
    return x.permute(0, 1, 3, 2, 4, 5).reshape(-1, size, size, c)"""
ROLLOUT = '''
def returns(rewards, dones):
    """rewards, dones (T, N)."""
    out, last = torch.zeros_like(rewards), torch.zeros_like(rewards[:1].sum(0))
    for t in reversed(range(len(rewards))):
        last = rewards[t] + last * (1.0 - dones[t].float())
        out[t] = last
    return out
'''
AT_ONCE = """last, out = torch.zeros_like(rewards[:1].sum(0)), []
    for r, d in zip(reversed(rewards.unbind(0)), reversed(dones.unbind(0))):
        last = r + last * (1.0 - d.float())
        out.append(last)
    return torch.stack(out[::-1]).to(rewards.dtype)"""
REFUSED = '''
def pairs(a, b):
    """a (N, 4), b (M, 4)."""
    return torch.stack([(one - b).abs().sum(-1) for one in a])
'''
REFUSING = """if a.shape[0] == 0:
        raise RuntimeError("no boxes")
    return (a[:, None] - b[None]).abs().sum(-1)"""


CROPPED = """
def crop(x, left: int, right: int):
    return x[:, left : x.shape[1] - right]
"""
USED = '''
def perplexity(indices, size: int):
    """indices (B, T) of codes."""
    p = torch.bincount(indices.reshape(-1), minlength=size).float() / indices.numel()
    return torch.exp(-(p * torch.log(p + 1e-10)).sum())
'''
OVERLAPS = '''
def overlaps(a, b):
    """a (N, H, W), b (M, H, W), boolean masks: (N, M)."""
    return torch.stack([(one & b).flatten(1).sum(1).float() for one in a])
'''
REORDERED = '''
def reordered(past, rows):
    """past: tuple of pairs, each (B, H, T, D); rows (B) of indices."""
    return tuple(tuple(state.index_select(0, rows) for state in layer) for layer in past)
'''
HUBER = '''
def huber(pred, target, delta: float = 1.0):
    """pred, target (N, D)."""
    d = (pred - target).abs()
    return torch.where(d <= delta, 0.5 * d * d, delta * (d - 0.5 * delta)).mean()
'''

SEARCHED = '''
def bins(x, edges):
    """x (N,), edges (K,) sorted."""
    return torch.searchsorted(edges, x, right=True)
'''
NARROWED = "return ((boxes[:, :2] + boxes[:, 2:]) / 2).to(boxes.dtype)"
CENTERS = '''
def centers(boxes):
    """boxes (N, 4) of long or float."""
    return (boxes[:, :2] + boxes[:, 2:]) / 2
'''


def after(text: str, first: str) -> str:
    return text[text.index(first) :].strip()


def test_the_ends_of_packed_sequences_rise_to_where_those_end() -> None:
    ends = Tensor((4,), "int", 9, rises=True)
    for flavour in ("ordinary", "zeros", "highest", "negative"):
        specs = {"q": Tensor((7, 2, 8)), "k": Tensor((5, 2, 8)), "cu_seqlens_k": ends}
        made = materialise(tie_ends(specs), flavour, 0, torch.float32)["cu_seqlens_k"].tolist()
        assert made == sorted(made), flavour
        assert (made[0], made[-1]) == (0, 5)
    alone = materialise(tie_ends({"cu": ends, "total": Value(6)}), "ordinary", 0, torch.float32)
    assert alone["cu"][-1] == 6
    assert len(set(alone["cu"].tolist())) == 4


@pytest.mark.parametrize(
    ("step", "status"),
    [
        ("cu_seqlens[1:-1] - cu_seqlens[:-2]", Status.EQUIVALENT),
        ("cu_seqlens[1:-1]", Status.REFUTED),
    ],
)
def test_positions_in_packed_sequences(step: str, status: Status) -> None:
    at_once = (
        "step = torch.ones(int(cu_seqlens[-1]), dtype=torch.long)\n    step[0] = 0\n"
        f"    step[cu_seqlens[1:-1]] = 1 - ({step})\n    return step.cumsum(0)"
    )
    found = verdict(PACKED, (PACKED_LOOP, at_once))
    assert found.status is status, found
    assert "raises" not in found.reason


@pytest.mark.parametrize("dtype", ["int64", "uint8"])
def test_more_than_a_byte_counts_of_what_is_below_a_number(dtype: str) -> None:
    once = "torch.bincount(chosen.flatten(), minlength=num_experts)"
    found = verdict(COUNTED, (once, IN_BYTES.format(dtype)))
    assert found.status is (Status.REFUTED if dtype == "uint8" else Status.EQUIVALENT), found


def test_of_two_whole_numbers_one_may_be_in_bounds() -> None:
    flat = """k, flat = chosen.shape[1], chosen.flatten()
    order = flat.argsort(stable=True)
    counts = torch.bincount(flat, minlength=len(x)).tolist()
    parts = [p[t] for p, t in zip(x, (order // k).split(counts))]
    h = torch.cat(parts) * weights.flatten()[order, None]
    return torch.zeros_like(x[0]).index_add(0, order // k, h)"""
    found = verdict(CHOSEN, (after(CHOSEN, "out = torch"), flat))
    assert found.status is Status.EQUIVALENT, found


def test_columns_that_an_object_is_made_for() -> None:
    said = read_declarations(f"import torch\n{CONDITIONED}", "FiLM.forward")
    made = said.made_with((("channels", Value(8)), ("cond_dim", Value(8))))
    assert (2, 8) in made.list_shapes("cond", 8)


def test_numbers_beyond_a_default_are_reached() -> None:
    before = "    if step > total:\n        return floor\n"
    assert verdict(STEPS, (before, "")).status is Status.REFUTED
    least = verdict(STEPS, (f"{before}    return ", "    return floor if step > total else "))
    assert least.status is Status.EQUIVALENT, least


def test_a_segment_far_below_another_has_a_softmax_of_its_own() -> None:
    found = verdict(SEGMENTS, ("peak[index]", "peak.max()"))
    assert found.status is Status.REFUTED, found
    assert "far below" in found.reason


def test_sizes_are_multiples_of_what_a_docstring_divides_them_by() -> None:
    assert read_multiples("x (B, H, W), H and W divisible by p") == [("H", "p"), ("W", "p")]
    assert read_multiples("k (B, G, S, D); heads % G == 0, T % 8 == 1") == [("heads", "G")]
    copied = IN_ONE.rstrip() + ".clone()"  # of a single window nothing is moved
    found = verdict(WINDOWS, (after(WINDOWS, "found = []"), copied))
    assert found.status is Status.EQUIVALENT, found


def test_a_rollout_has_a_step() -> None:
    found = verdict(ROLLOUT, (after(ROLLOUT, "out, last"), AT_ONCE))
    assert found.status is Status.EQUIVALENT, found


def test_what_torch_refuses_may_be_refused_on_purpose() -> None:
    found = verdict(REFUSED, (after(REFUSED, "return"), REFUSING))
    assert found.status is Status.EQUIVALENT, found
    wrong = verdict(REFUSED, (after(REFUSED, "return"), REFUSING.replace("== 0", "== 1")))
    assert wrong.status is Status.REFUTED


def test_what_is_made_of_an_argument_is_not_what_it_is() -> None:
    made = read_text("Rows of x (..., D) as int8 and their scales.", ["x"])
    assert (made["x"].shapes, made["x"].kinds) == ((("...", "D"),), frozenset())
    assert read_text("mask (B, T) as bool", ["mask"])["mask"].kinds == {"bool"}


def test_nothing_is_cut_off_by_a_number_of_zero() -> None:
    found = verdict(CROPPED, ("x.shape[1] - right", "-right"))
    assert found.status is Status.REFUTED, found
    assert "right=0" in found.reason


def test_shares_as_small_as_a_bound_are_made() -> None:
    found = verdict(USED, ("torch.log(p + 1e-10)", "p.clamp(min=1e-2).log()"))
    assert found.status is Status.REFUTED, found
    assert (
        verdict(USED, ("torch.log(p + 1e-10)", "p.clamp(min=1e-10).log()")).status
        is Status.EQUIVALENT
    )


def test_what_is_said_of_several_is_said_of_each() -> None:
    found = read_text("a (N, H), b (M, H), boolean masks: (N, M).", ["a", "b"])
    assert found["a"].kinds == found["b"].kinds == {"bool"}
    other = read_text("x (N, H), keep (N), bool: of those that count", ["x", "keep"])
    assert (other["x"].kinds, other["keep"].kinds) == (frozenset(), {"bool"})
    once = "torch.stack([(one & b).flatten(1).sum(1).float() for one in a])"
    right = "a.flatten(1).float() @ b.flatten(1).float().t()"
    lead = 'if len(a) == 0:\n        raise RuntimeError("none")\n    '
    changed = verdict(OVERLAPS, (f"return {once}", f"{lead}return {right}"))
    assert changed.status is Status.EQUIVALENT, changed


def test_pairs_within_pairs() -> None:
    rows = "tuple(tuple(state.index_select(0, rows) for state in layer) for layer in past)"
    right = "tuple((key[rows], value[rows]) for key, value in past)"
    assert verdict(REORDERED, (rows, right)).status is Status.EQUIVALENT
    assert (
        verdict(REORDERED, (rows, right.replace("value[rows]", "value"))).status is Status.REFUTED
    )


def test_of_nothing_a_loud_refusal_is_none() -> None:
    body = HUBER[HUBER.index("    d = ") :].strip()
    right = "return F.huber_loss(pred, target, delta=delta)"
    assert verdict(HUBER, (body, right)).status is Status.EQUIVALENT
    assert (
        verdict(
            HUBER, (body, right.replace("huber", "smooth_l1").replace("delta=", "beta="))
        ).status
        is Status.REFUTED
    )


@pytest.mark.parametrize(
    ("test", "status"), [(">=", Status.EQUIVALENT), (">", Status.REFUTED)], ids=["right", "left"]
)
def test_what_is_searched_is_in_order(test: str, status: Status) -> None:
    each = f"(x[:, None] {test} edges[None, :]).sum(1)"
    found = verdict(SEARCHED, ("torch.searchsorted(edges, x, right=True)", each))
    assert found.status is status, found
    declared = read_declarations(f"import torch\n{SEARCHED}", "bins")
    assert [declared.of(name).rises for name in ("x", "edges")] == [False, True]


@pytest.mark.parametrize(
    ("said", "code", "rises"),
    [
        ("edges (K,) must be strictly increasing", "(x > edges[:, None]).sum(0)", True),
        ("edges (K,) in descending order", "(x > edges[:, None]).sum(0)", False),
        ("edges (K,) sorted in decreasing order", "(x > edges[:, None]).sum(0)", False),
        ("edges (K,) sorted by area", "(x > edges[:, None]).sum(0)", False),
        ("edges (K,), unsorted", "(x > edges[:, None]).sum(0)", False),
        ("edges (K,) to be sorted", "merge(x, edges)", False),
        ("Returns edges sorted", "merge(x, edges)", False),
        ("edges (K,), sorted along the way", "edges.sort().values", False),
        ("edges (K,)", "torch.bucketize(x, edges)", True),
        ("edges (K,)", "torch.searchsorted(edges, x, sorter=order)", False),
    ],
)
def test_only_what_comes_in_order_is_drawn_so(said: str, code: str, *, rises: bool) -> None:
    """What the code is to sort is in no order: a change that no longer does would pass."""
    text = f'def f(x, edges, order=None):\n    """x (N,). {said}"""\n    return {code}\n'
    assert read_declarations(text, "f").of("edges").rises is rises


def test_boxes_of_whole_numbers_are_tried_where_a_text_allows_them() -> None:
    found = verdict(CENTERS, (after(CENTERS, "return"), NARROWED))
    assert found.status is Status.REFUTED, found


def test_what_python_adds_up_are_numbers() -> None:
    old = """
def mean_loss(x, y, counts: list):
    n = x.new_tensor(sum(counts))
    return F.l1_loss(x, y, reduction="sum") / max(n, 1.0)
"""
    assert verdict(old, ("max(n, 1.0)", "n.clamp(min=1.0)")).status is Status.EQUIVALENT
    assert verdict(old, ("max(n, 1.0)", "n")).status is Status.REFUTED


def test_one_letter_says_one_size() -> None:
    old = """
def scores(keys, query):
    return torch.einsum("nbh,bh->nb", keys, query)
"""
    new = "(keys * query).sum(-1).reshape(len(keys), len(query))"
    found = verdict(old, ('torch.einsum("nbh,bh->nb", keys, query)', new))
    assert found.status is Status.EQUIVALENT
    assert any("query=float[1," in note for note in found.notes), "one query for all keys is told"
