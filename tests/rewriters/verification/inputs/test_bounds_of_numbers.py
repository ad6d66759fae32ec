"""Numbers that are at most as large as others: by a text, by tests, by what is taken apart."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.values import Tensor, Value  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.bounds import (  # noqa: E402 - same
    Bound,
    choose_within,
    list_bounds,
)
from npufix.rewriters.verification.inputs.source.declarations import (  # noqa: E402 - same
    read_declarations,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

ROTARY = '''
def apply_rotary(q, cos, sin, rotary_dim: int):
    """q (B, H, T, D); cos, sin (T, rotary_dim); rotary_dim is even and at most D."""
    first, second = q[..., :rotary_dim].chunk(2, dim=-1)
    rot, rest = q[..., :rotary_dim], q[..., rotary_dim:]
    turned = torch.cat((-second, first), dim=-1)
    return torch.cat([rot * cos + turned * sin, rest], dim=-1)
'''
PARTED = "rot, rest = q[..., :rotary_dim], q[..., rotary_dim:]"


def _bounds(code: str, *shapes: tuple[str, ...]) -> list[Bound]:
    (function,) = ast.parse(code).body
    assert isinstance(function, ast.FunctionDef)
    return list_bounds(function, shapes)


@pytest.mark.parametrize("code", [ROTARY, ROTARY.replace("rotary_dim is even and at most D", "")])
def test_a_number_is_less_than_the_axis_it_takes_apart(code: str) -> None:
    last = "rot, rest = q[..., -rotary_dim:], q[..., :-rotary_dim]"
    found = verdict(code, (PARTED, last))
    assert found.status is Status.REFUTED, found
    split = "rot, rest = q.split([rotary_dim, q.size(-1) - rotary_dim], dim=-1)"
    found = verdict(code, (PARTED, split))
    assert found.status is Status.EQUIVALENT, found


def test_a_number_without_a_text_goes_with_the_columns_of_tables() -> None:
    code = ROTARY.replace('    """q (B, H, T, D); cos, sin (T, rotary_dim);', '    """Rotate.')
    code = code.replace(" rotary_dim is even and at most D.", "")
    found = verdict(code, (PARTED, "rot, rest = q[..., -rotary_dim:], q[..., :-rotary_dim]"))
    assert found.status is Status.REFUTED, found


@pytest.mark.parametrize(
    ("said", "bound"),
    [
        ("n is even and at most D", ("n", "D")),
        ("x (B, T, D) with n <= D.", ("n", "D")),
        ("x (B, T, D), where `D` is at least `n`", ("n", "D")),
        ("n: how many are kept,\n    no more than k", ("n", "k")),
        ("lengths (B,) of rows, at most T", ("lengths", "T")),
        ("n counts (up to D, say); k at most many", None),
    ],
)
def test_texts_say_what_numbers_are_at_most(said: str, bound: tuple[str, str] | None) -> None:
    code = f'def f(x, lengths, n: int, k: int):\n    """{said}"""\n    return x'
    assert _bounds(code, ("B", "T", "D")) == ([Bound(*bound)] if bound else [])


def test_names_say_which_number_is_the_lower_one() -> None:
    code = "def f(x, low_share: float = 0.3, high_share: float = 0.5):\n    return x{}"
    assert _bounds(code.format("")) == [Bound("low_share", "high_share")]
    assert not _bounds(code.format(" if low_share < high_share else 2 * x"))


def test_code_demands_and_takes_apart() -> None:
    code = """
def f(x, n, k, cut):
    b, t, d = x.shape
    assert 0 < n <= d
    if k > t or cut > x.size(-1):
        raise ValueError(k)
    return x[:, :k], x[:, k:], x[..., :n]
"""
    of_t, of_d = Bound("k", "x", 1), Bound("n", "x", 2)
    assert _bounds(code) == [of_d, of_t, Bound("cut", "x", -1)]


def test_sizes_are_chosen_within_bounds() -> None:
    declared = read_declarations(ROTARY, "apply_rotary")
    rows = [declared.list_shapes(name, 8)[0][-1] for name in ("q", "cos")]
    assert rows[0] > rows[1] == declared.find_size("rotary_dim", 8)


FRAMES = """
def frames(x, size: int, hop: int):
    \"\"\"x: (B, T).\"\"\"
    t = x.shape[1]
    n = 1 if t <= size else 1 + (t - size) // hop
    x = F.pad(x, (0, max(size - t, 0)))
    return torch.stack([x[:, i * hop : i * hop + size] for i in range(n)], 1)
"""
RATE = """
import bisect
def rate(step: int, milestones: list[int], base: float = 0.5):
    \"\"\"Rate of a step: half as much from each milestone on, which are in rising order.\"\"\"
    return base * 0.5 ** sum(step >= m for m in milestones)
"""


SUM = "sum(step >= m for m in milestones)"
WINDOWS = "torch.stack([x[:, i * hop : i * hop + size] for i in range(n)], 1)"


@pytest.mark.parametrize(
    ("code", "change", "status"),
    [
        # a hop of 0, which one window does without, is a call that nobody makes
        (FRAMES, (WINDOWS, "x.unfold(1, size, hop)[:, :n]"), Status.EQUIVALENT),
        (FRAMES, ("1 + (t - size) // hop", "1 + (t - size - 1) // hop"), Status.REFUTED),
        (RATE, (SUM, "bisect.bisect_right(milestones, step)"), Status.EQUIVALENT),
        (RATE, (SUM, "bisect.bisect_left(milestones, step)"), Status.REFUTED),
    ],
)
def test_numbers_are_such_that_callers_give(
    code: str, change: tuple[str, str], status: Status
) -> None:
    found = verdict(code, change)
    assert found.status is status, found


def test_a_step_that_may_be_zero_is_passed_as_zero() -> None:
    tested = FRAMES.replace("    t = ", "    if not hop:\n        return x\n    t = ")
    assert Bound("1", "hop") in _bounds(FRAMES)
    assert Bound("1", "hop") not in _bounds(tested)
    for test in ("hop == -1", "0 < hop", "hop", "max(hop, 1)"):
        asked = FRAMES.replace("    t = ", f"    hop = t if {test} else 2\n    t = ")
        assert Bound("1", "hop") not in _bounds(asked)


def test_steps_leave_the_sizes_that_are_chosen() -> None:
    sizes = {"hop": 4, "stride": 9}
    limits = [("1", "hop"), ("1", "stride"), ("hop", "hop")]
    assert choose_within(limits, sizes, {}) == sizes


SHARD = """
def shard(order: list[int], least: int):
    least = min(max(least, 0), 3 * len(order))
    while len(order) < least:
        order = order + order[: least - len(order)]
    return order[:least]
"""
FILLED = SHARD[SHARD.index("    while") : SHARD.index("    return")]
MERGE = """
def merge(base: dict, other: dict):
    out = dict(base)
    for key, value in other.items():
        deeper = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merge(out[key], value) if deeper else value
    return out
"""
PENALTY = """
def penalty(critic: torch.nn.Module, x):
    \"\"\"x: (B, C, H, W).\"\"\"
    x = x.detach().requires_grad_()
    grad = torch.autograd.grad(critic(x).sum(), x, create_graph=True)[0]
    return grad.flatten(1).norm(2, dim=1).mean()
"""


@pytest.mark.parametrize(
    ("code", "change", "status"),
    [
        (MERGE, ("merge(out[key], value) if", "{**out[key], **value} if"), Status.REFUTED),
        (MERGE, ("out = dict(base)", "out = {**base}"), Status.EQUIVALENT),
        (PENALTY, ("grad.flatten(1).norm(2, dim=1)", "grad.norm(2, dim=1)"), Status.REFUTED),
        (
            PENALTY,
            ("grad.flatten(1).norm(2, dim=1)", "torch.linalg.vector_norm(grad, dim=(1, 2, 3))"),
            Status.EQUIVALENT,
        ),
    ],
)
def test_dictionaries_in_dictionaries_and_layers_of_images(
    code: str, change: tuple[str, str], status: Status
) -> None:
    found = verdict(code, change)
    assert found.status is status, found


def test_a_list_that_a_new_test_asks_about_is_empty_too() -> None:
    found = verdict(SHARD, (FILLED, "    if order:\n        order = (order * 3)[:least]\n"))
    assert found.status is Status.EQUIVALENT, found


ENDS = '''
def at_ends(x, lengths):
    """x: (B, T, D), lengths: (B,) long in [1, T]: the last token of each row."""
    return x[torch.arange(len(x)), lengths - 1]
'''
LAST = "x[torch.arange(len(x)), lengths - 1]"
GATHERED = "x.gather(1, (lengths - 1).view(-1, 1, 1).expand(-1, 1, x.shape[2]))[:, 0]"
STRIP = """
def strip(state: dict, prefix: str = "module."):
    return {k[len(prefix):] if k.startswith(prefix) else k: v for k, v in state.items()}
"""
PREFIXED = "k[len(prefix):] if k.startswith(prefix) else k: v"
PIECES = """
def split(text: str, vocab: dict[str, int], unknown: int = 0):
    ids, at = [], 0
    while at < len(text):
        fits = [end for end in range(at + 1, len(text) + 1) if text[at:end] in vocab]
        ids.append(vocab[text[at : fits[-1]]] if fits else unknown)
        at = fits[-1] if fits else at + 1
    return ids
"""
DECAYS = """
def groups(model: torch.nn.Module):
    named = [(n, p) for n, p in model.named_parameters() if p.requires_grad]
    return [p for n, p in named if p.ndim < 2 or n.endswith(".bias")]
"""


@pytest.mark.parametrize(
    ("code", "change", "status"),
    [
        (ENDS, (LAST, GATHERED), Status.EQUIVALENT),  # refuses a length of 0
        (ENDS, (LAST, "x[:, lengths.max() - 1]"), Status.REFUTED),
        (STRIP, (PREFIXED, "k.removeprefix(prefix): v"), Status.EQUIVALENT),
        (STRIP, (PREFIXED, 'k.replace(prefix, ""): v'), Status.REFUTED),
        (PIECES, ("at = fits[-1] if", "at = fits[0] if"), Status.REFUTED),
        (PIECES, ("fits[-1]]]", "max(fits)]]"), Status.EQUIVALENT),
        (DECAYS, ('p.ndim < 2 or n.endswith(".bias")', 'n.endswith("bias")'), Status.REFUTED),
    ],
)
def test_lengths_are_from_one_and_texts_begin_and_end_as_code_asks(
    code: str, change: tuple[str, str], status: Status
) -> None:
    found = verdict(code, change)
    assert found.status is status, found


STAGE = """
import bisect
def stage(epoch: int, milestones: list[int]):
    milestones = sorted(milestones)
    return bisect.bisect_right(milestones, epoch)
"""
FOREGROUND = '''
def pool(x, segments):
    """x (B, D), segments (B,) int64, of which those >= 1 are tokens and 0 is padding."""
    return (x * (segments >= 1)[:, None]).sum(0)
'''
IN_PLACE = """
def merge(base: dict, over: dict):
    for key, value in over.items():
        deeper = isinstance(value, dict) and isinstance(base.get(key), dict)
        base[key] = merge(base[key], value) if deeper else value
    return base
"""


@pytest.mark.parametrize(
    ("code", "change"),
    [
        (STAGE, ("sorted(milestones)", "list(milestones)")),  # they come in any order
        (FOREGROUND, ("(x * (segments >= 1)[:, None])", "x")),  # "those >= 1" are some of them
        (IN_PLACE, ("merge(base[key], value) if deeper else value", "value")),
    ],
)
def test_what_code_itself_sorts_tells_apart_or_writes_into_is_met(
    code: str, change: tuple[str, str]
) -> None:
    found = verdict(code, change)
    assert found.status is Status.REFUTED, found


@pytest.mark.parametrize(
    ("said", "fits"),
    [
        ("x: (B, T), T > 1; n >= 2", [True, False, False]),
        ("x: (B, T); more than others if n > 1", [True, True, True]),
        ("x: (B, T); n > 0, the rest is nothing", [True, True, True]),
    ],
)
def test_numbers_are_as_large_as_a_text_says(said: str, fits: list[bool]) -> None:
    found = read_declarations(f"def f(n: int, x):\n    '''{said}'''\n", "f", ())
    given = ((2, (2, 3)), (1, (2, 3)), (2, (2, 1)))
    assert [found.fits({"n": Value(n), "x": Tensor(shape)}) for n, shape in given] == fits
    assert found.list_shapes("x", 8)[0] == (2, 3)
