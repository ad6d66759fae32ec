"""Examples in docstrings, enumerations, literals, settings: what no name and no type tells."""

from __future__ import annotations

import enum
import types

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.calls.values import MadeArgument, Tensor, Value
from npufix.rewriters.verification.inputs.load import find_beside
from npufix.rewriters.verification.inputs.objects.examples import with_rows
from npufix.rewriters.verification.inputs.objects.offers import offer_members
from npufix.rewriters.verification.inputs.source.declarations import Declared

MADE = '''
class Mixer(torch.nn.Module):
    """Mix rows.

    Example
    -------
    >>> mixer = Mixer(plan=[["mean", 64], ["max", 128]])
    >>> mixed = mixer(torch.rand(3, 64, 128))
    """

    def __init__(self, plan):
        super().__init__()
        (first, rows), (second, self.columns) = plan
        self.first, self.second = getattr(torch, first), getattr(torch, second)
        self.weight = torch.nn.Parameter(torch.ones(rows, 1))

    def forward(self, x):
        if x.shape[-1] != self.columns:
            raise ValueError("columns")
        x = x * self.weight
        return self.first(x, dim=1) + self.second(x, dim=2).values.sum()
'''
CALLED = '''
def place(image, corners):
    """Place.

    >>> image = torch.rand(2, 400, 3)
    >>> place(image, {"left": torch.tensor([7, 300]), "way": "up"})
    """
    if corners["way"] != "up" or image.shape[-1] != 3:
        raise ValueError("way")
    return image[:, corners["left"]] * 2
'''
MEMBERS = """
import enum


class Way(enum.Enum):
    half = "half"
    twice = "twice"


class Sampling:
    def __init__(self, way: Way | str, amount: int = 1):
        self.way, self.amount = Way(way), amount


def scale(x: torch.Tensor, sampling: Sampling, end: Literal["left", "right"]) -> torch.Tensor:
    if end not in ("left", "right"):
        raise ValueError(end)
    return x * sampling.amount * 2
"""
BESIDE = """
import dataclasses


@dataclasses.dataclass
class SparseConfig:
    sparsity: float = 0.999
    from_top: bool = True


class Sparse(torch.nn.Module):
    def __init__(self, base: torch.nn.Module, adapter_name: str, config: SparseConfig):
        super().__init__()
        scores = base.weight.detach().abs().flatten()
        count = int(len(scores) * (1 - config.sparsity))
        if count < 1:
            raise ValueError("nothing is left")
        self.rank = config.unheard_of
        self.rows = scores.topk(count, largest=config.from_top).indices
        self.values = torch.nn.ParameterDict({adapter_name: torch.zeros(count)})

    def delta(self, name: str) -> torch.Tensor:
        return torch.zeros(64).scatter_add(0, self.rows, self.values["first"]) * 2
"""
CHOSEN = """
import enum

BINARY = "binary-of-two"


class Way(enum.StrEnum):
    ALL = "all"
    MEAN = "the mean"


class Score(torch.nn.Module):
    def __init__(self, way: Way | str = Way.ALL, mode: str = "other"):
        super().__init__()
        self.way, self.mode = Way(way), mode

    def forward(self, x):
        if self.way == Way.MEAN and self.mode == BINARY:
            return x.mean(-1) * 2
        return x
"""
SHARES = '''
def mix(tracks, gains):
    """Mix tracks.

    >>> torch.set_default_dtype(torch.float64)
    >>> tracks = {"low": torch.rand(2, 100), "high": torch.rand(2, 100)}
    >>> mix(tracks, {"low": 0.5, "high": 1.0})
    """
    total = torch.zeros_like(tracks["low"])
    for name in ("low", "high"):
        total = total + gains[name] * tracks[name].clamp(-1, 1)
    return total
'''
LARGE = """
class Block(torch.nn.Module):
    def __init__(self, scale=1.0):
        super().__init__()
        self.scale = scale
        self.inner = torch.nn.Linear(320, 320)

    def forward(self, x):
        return self.inner(x) * self.scale + x
"""
ENDLESS = """
class Wrapped(torch.nn.Module):
    def __init__(self, base, config):
        super().__init__()
        if config.unheard_of is not None:
            raise ValueError("nothing is known of it")
        self.base = base

    @property
    def weight(self):
        return self.weight

    def forward(self, x):
        return x * 2
"""


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong"),
    [
        (MADE, "x * self.weight", "self.weight * x", "x"),
        (CALLED, "* 2", "* 2.0", "* 3"),
        ("from typing import Literal\n" + MEMBERS, "* 2", "* 2.0", "* 3"),
        (BESIDE, "* 2", "* 2.0", "* 3"),
        (CHOSEN, "* 2", "* 2.0", "* 3"),
        (ENDLESS, "* 2", "* 2.0", "* 3"),
        (SHARES, ".clamp(-1, 1)", ".clamp(max=1).clamp(min=-1)", ".clamp(0, 1)"),
        (LARGE, "* self.scale + x", "* self.scale + 1 * x", "+ self.scale * x"),
    ],
)
def test_a_call_is_found(text: str, old: str, right: str, wrong: str) -> None:
    kept = verdict(text, (old, right))
    assert kept.status.value == "equivalent", kept.reason
    refuted = verdict(text, (old, wrong))
    assert refuted.status.value == "refuted", refuted.reason


class Side(enum.Enum):
    left = "left"


class Beside:
    def __init__(self, side: Side) -> None:
        self.side = side


def test_a_member_of_another_file_is_spelt_for_a_program() -> None:
    (member,) = offer_members(Side, "Beside/Side")
    assert isinstance(member, MadeArgument)
    assert eval(member.code, {"module": types.SimpleNamespace(Beside=Beside)}) is Side.left  # noqa: S307 - our own text
    assert find_beside(Beside, "Side") is Side


def test_what_examples_show_may_have_rows() -> None:
    """Of ``x (*, D)`` without rows, nobody sees along which axis it is split."""
    declared = {"x": Declared((("...", "D"),)), "y": Declared((("D",),))}
    shown = {"x": Tensor((26,)), "y": Tensor((26,)), "n": Value(3)}
    assert [list(map(str, one.values())) for one in with_rows([shown], declared)] == [
        ["float[26]", "float[26]", "3"],
        ["float[2, 26]", "float[26]", "3"],
    ]
