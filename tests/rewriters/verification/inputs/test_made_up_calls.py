"""Calls that are made up from how the code uses its arguments: the right change is proven."""

from __future__ import annotations

import time

import pytest

pytest.importorskip("torch")

from npufix.rewriters.verification.inputs.search_result import (
    SearchResult,
)

CASES = {
    "a shape that is kept, and a count whose default is none": (
        """
def f(x, n=-1):
    size = x.shape
    x = x.reshape(size[1], size[0], size[2], size[3])[1:]
    return x.reshape(size[0], size[1] - 1, size[2], size[3])[:, torch.arange(n)]
""",
        "[:, torch.arange(n)]",
        ".index_select(1, torch.arange(n))",
    ),
    "matrices that views end in, wider ones that columns are read of": (
        """
def f(pose, rots, grid):
    b, n, _, _ = pose.shape
    points = grid - pose[:, :, :3, 3].view(b, n, 1, 1, 1, 3)
    return rots.view(b, n, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1))
""",
        "rots.view(b, n, 1, 1, 1, 3, 3).matmul(points.unsqueeze(-1))",
        "(rots.view(b, n, 1, 1, 1, 3, 3) @ points.unsqueeze(-1))",
    ),
    "masks of vectors beside other tensors": (
        "def f(rows, shown):\n    return rows[shown > 0, :4] * 2.0\n",
        "rows[shown > 0, :4] * 2.0",
        "2.0 * rows[shown > 0, :4]",
    ),
    "weights, and numbers that an optimizer takes": (
        """
def f(held, speed):
    optimizer = torch.optim.AdamW(held, lr=speed)
    rates = torch.optim.lr_scheduler.StepLR(optimizer, 3)
    return [optimizer], {"rates": rates}
""",
        "lr=speed",
        "lr=speed, fused=True",
    ),
    "an optimizer in a wrapper": (
        """
class Warmup:
    def __init__(self, width, optimizer):
        self.width, self.optimizer = width, optimizer

def f(held, width):
    return Warmup(width, torch.optim.AdamW(held, lr=0.1))
""",
        "lr=0.1",
        "lr=0.1, fused=True",
    ),
    "a layer that __init__ makes of constants": (
        """
from missing import Base, build

class Block(Base):
    def __init__(self, width):
        super().__init__()
        self.layer = build(width)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.act(self.layer(x) + x)
""",
        "self.act(self.layer(x) + x)",
        "F.relu(self.layer(x) + x)",
    ),
    "keys and values of two layers, as tuples": (
        """
from typing import Optional, Tuple

def f(ids: torch.Tensor, past_key_values: Optional[Tuple[Tuple[torch.Tensor]]] = None):
    length = 0 if past_key_values is None else past_key_values[0][0].size(-2)
    return torch.arange(length, length + ids.shape[-1])
""",
        "past_key_values[0][0].size(-2)",
        "past_key_values[0][0].shape[2]",
    ),
    "keys and values of a layer": (
        """
class Block(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x, layer_past=None):
        b, t, c = x.shape
        q, k, v = (p.view(b, t, self.heads, -1).transpose(1, 2) for p in self.qkv(x).chunk(3, -1))
        if layer_past is not None:
            key, value = layer_past
            k, v = torch.cat((key, k), dim=2), torch.cat((value, v), dim=2)
        return q @ (k.transpose(-1, -2) @ v)
""",
        "k, v = torch.cat((key, k), dim=2), torch.cat((value, v), dim=2)",
        "k, v = torch.cat((key, k), dim=-2), torch.cat((value, v), dim=-2)",
    ),
    "a signal longer than a window": (
        """
def f(wave, n_fft=64):
    return torch.stft(wave, n_fft, 16, window=torch.hann_window(n_fft), return_complex=True).abs()
""",
        "torch.stft(wave, n_fft, 16,",
        "torch.stft(wave, n_fft, hop_length=16,",
    ),
    "tensors in a dictionary, as its annotation says": (
        """
from typing import Dict

def f(batch: Dict[str, torch.Tensor]):
    '''batch: dict with "features" (batch, time, dim) and "lengths" (batch,)'''
    features, lengths = batch["features"], batch["lengths"]
    kept = torch.arange(features.shape[1]) < lengths[:, None]
    return features * kept.unsqueeze(-1)
""",
        "features * kept.unsqueeze(-1)",
        "torch.einsum('btd,bt->btd', features, kept.to(features))",
    ),
    "a device by its annotation": (
        "def f(n: int, place: torch.device):\n    return torch.full((n, n), 2.0, device=place)\n",
        "torch.full((n, n), 2.0, device=place)",
        "torch.zeros((n, n), device=place) + 2.0",
    ),
    "a model without weights": (
        """
def f(ema_model, model):
    with torch.no_grad():
        new = model.state_dict()
        for name, value in ema_model.state_dict().items():
            value.copy_(new[name])
""",
        """        for name, value in ema_model.state_dict().items():
            value.copy_(new[name])
""",
        """        held = ema_model.state_dict()
        if held:
            torch._foreach_copy_([*held.values()], [new[name] for name in held])
""",
    ),
    "a part of a head": (
        """
class Block(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.width = config.hidden_size // config.num_attention_heads
        self.part = int(self.width * getattr(config, "partial_rotary_factor", 1.0))

    def forward(self, q):
        first, second = q[..., : self.part].chunk(2, dim=-1)
        return torch.cat((-second, first, q[..., self.part :]), dim=-1)
""",
        "q[..., : self.part].chunk(2, dim=-1)",
        "q[..., : self.part].tensor_split(2, dim=-1)",
    ),
}
HEAD = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\n"


def verdict(text: str, old: str, new: str, name: str = "f", **given: tuple[str, ...]) -> str:
    from npufix.rewriters.edit.job import Job
    from npufix.rewriters.verification.judge.verify_function import verify_function

    original = HEAD + text
    assert old in original
    line = original[: original.index(old)].count("\n") + 1
    patched = original.replace(old, new)
    asked = Job("/user/m.py", "/user", original, patched, name, (line,), (line,), **given)
    found = verify_function(asked).verdict
    return f"{found.status.value} {found.reason}".strip()


@pytest.mark.parametrize("case", CASES)
def test_calls_are_found_that_fit(case: str) -> None:
    text, old, new = CASES[case]
    name = "Block.forward" if "class Block" in text else "f"
    assert verdict(text, old, new, name) == "equivalent"


@pytest.mark.parametrize(
    ("case", "wrong"),
    [
        ("keys and values of two layers, as tuples", "past_key_values[0][0].size(1)"),
        (
            "keys and values of a layer",
            "k, v = torch.cat((key, k), dim=2), torch.cat((v, value), 2)",
        ),
        ("a signal longer than a window", "torch.stft(wave, n_fft, 32,"),
    ],
)
def test_another_use_of_them_is_refuted(case: str, wrong: str) -> None:
    text, old, _ = CASES[case]
    name = "Block.forward" if "class Block" in text else "f"
    assert verdict(text, old, wrong, name).startswith("refuted")


INHERITED = """
class Block(nn.Module):
    def __init__(self, size: int = 8):
        super().__init__()
        self.size = size

    def scale(self):
        return self.size ** -0.5

    def forward(self, x):
        return x * self.scale()

class Other(Block):
    def scale(self):
        return 1.0 / self.size
"""
FOLLOWED = """
import copy

class Block(nn.Module):
    def __init__(self, model):
        super().__init__()
        self.module = copy.deepcopy(model)

    @torch.no_grad()
    def forward(self, model: nn.Module):
        for own, new in zip(self.module.state_dict().values(), model.state_dict().values()):
            own.copy_(own * 0.5 + new * 0.5)
"""
DRAWN = """
class Block:
    def __init__(self, moments: torch.Tensor):
        self.mean, self.std = torch.chunk(moments, 2, dim=1)

    def forward(self, generator: "torch.Generator | None" = None):
        return self.mean + self.std * torch.randn(self.mean.shape, generator=generator)
"""
KEPT = """
class Block(nn.Module):
    def __init__(self, dim: int = 8):
        super().__init__()
        self.register_buffer("last", torch.zeros(1, dim))

    def forward(self, x):
        change = x - self.last
        self.last = x.detach().clone()[-1:]
        return change
"""
SCALED = """
class Block:
    def forward(self, params, rate: float):
        for p in params:
            if p.grad is not None:
                p.grad.mul_(rate)
"""

TURNED = """
def f(stft, advance):
    angles = torch.angle(stft) - advance
    return torch.polar(stft.abs(), angles - torch.round(angles))
"""
MULTIPLIED = """
def f(a, b):
    return torch.complex(a.real * b.real - a.imag * b.imag, a.real * b.imag + a.imag * b.real)
"""
SPECTRAL = """
import torch.nn as nn

class Block(nn.Module):
    def __init__(self, in_channels, out_channels, modes):
        super().__init__()
        self.in_channels, self.out_channels, self.modes = in_channels, out_channels, modes
        drawn = torch.rand(in_channels, out_channels, modes, dtype=torch.cfloat)
        self.weights = nn.Parameter(drawn)

    def forward(self, x):
        known = torch.fft.rfft(x)[:, :, : self.modes]
        made = torch.einsum("bix,iox->box", known, self.weights)
        return torch.fft.irfft(made, n=x.size(-1))
"""
REAL_OR_COMPLEX = """
def f(x):
    if torch.is_complex(x):
        x = torch.view_as_real(x)
    return x.square().sum(-1)
"""
CROPPED = """
from typing import List

def f(img: torch.Tensor, box: List[int]):
    return img[..., box[0] : box[0] + box[2], box[1] : box[1] + box[3]]
"""
WEIGHED = """
def f(logits, labels, weight=None):
    return F.cross_entropy(logits, labels, weight=weight)
"""
KEEPS_WEIGHTS = """
class Block(nn.Module):
    def __init__(self, class_weights=None):
        super().__init__()
        self.class_weights = class_weights

    def forward(self, score, target):
        return F.nll_loss(F.log_softmax(score, dim=1), target, weight=self.class_weights)
"""
LOSSES = "import torch.nn as nn\nimport torch.nn.functional as F\n"


@pytest.mark.parametrize(
    ("text", "old", "wrong", "right"),
    [
        # of the magnitude one, as what rotates, the absolute value is one anyhow
        (TURNED, "stft.abs()", "stft.sgn().abs()", "torch.abs(stft)"),
        (MULTIPLIED, "- a.imag", "+ a.imag", "- 1.0 * a.imag"),
    ],
)
def test_what_has_an_imaginary_part_is_complex(text: str, old: str, wrong: str, right: str) -> None:
    assert verdict(text, old, wrong).startswith("refuted")
    assert verdict(text, old, right) == "equivalent"


def test_what_asks_whether_it_is_complex_may_be_real() -> None:
    assert verdict(REAL_OR_COMPLEX, "x.square().sum(-1)", "(x * x).sum(-1)") == "equivalent"
    assert verdict(REAL_OR_COMPLEX, "x.square().sum(-1)", "x.sum(-1)").startswith("refuted")


def test_a_layer_with_weights_of_frequencies_takes_signals() -> None:
    assert verdict(SPECTRAL, "made, n=x.size(-1)", "made", "Block.forward").startswith("refuted")
    assert verdict(SPECTRAL, "rfft(x)", "rfft(x, dim=-1)", "Block.forward") == "equivalent"


def test_a_list_is_as_long_as_it_is_indexed() -> None:
    assert verdict(CROPPED, "box[1] + box[3]", "box[1] + box[2]").startswith("refuted")
    assert verdict(CROPPED, "box[1] + box[3]", "box[3] + box[1]") == "equivalent"


def test_classes_have_weights_beside_a_default_of_none() -> None:
    text = LOSSES + WEIGHED
    assert verdict(text, ", weight=weight)", ")").startswith("refuted")
    new = "torch.nn.functional.cross_entropy(target=labels, input=logits"
    assert verdict(text, "F.cross_entropy(logits, labels", new) == "equivalent"


def test_an_object_is_made_with_weights_of_classes() -> None:
    text, old = LOSSES + KEEPS_WEIGHTS, "F.log_softmax(score, dim=1), target"
    found = verdict(text, ", weight=self.class_weights", "", "Block.forward")
    assert found.startswith("refuted")
    new = "torch.log_softmax(score, 1), target"
    assert verdict(text, old, new, "Block.forward") == "equivalent"


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (INHERITED, "x * self.scale()", "x * self.size ** -0.5"),  # not that of ``Other``
        (FOLLOWED, "zip(self.module.state_dict().values(), model.state_dict().values())",
         "zip(self.module.parameters(), model.parameters())"),  # without the buffers
        (DRAWN, "generator=generator)", "generator=None)"),
        (KEPT, "x.detach().clone()[-1:]", "x.detach()[-1:]"),  # the caller may write into x
        (SCALED, "p.grad.mul_(rate)", "p.grad = p.grad * rate"),  # others may hold the gradient
    ],
)  # fmt: skip
def test_what_the_class_is_made_of_shows_the_difference(text: str, old: str, new: str) -> None:
    assert verdict(text, old, new, "Block.forward").startswith("refuted")


def test_another_setting_of_an_optimizer_is_seen_beside_its_schedule() -> None:
    text, old, _ = CASES["weights, and numbers that an optimizer takes"]
    assert verdict(text, old, "lr=speed, betas=(0.8, 0.999)").startswith("refuted")
    assert verdict(text, "StepLR(optimizer, 3)", "StepLR(optimizer, 2)").startswith("refuted")


def test_a_layer_of_another_kind_is_no_relu() -> None:
    text, old, new = CASES["a layer that __init__ makes of constants"]
    assert verdict(text.replace("nn.ReLU(", "nn.SiLU("), old, new, "Block.forward")[:7] == "refuted"


@pytest.mark.parametrize("vouched", [(), ("single-precision",)])
def test_halves_that_are_ruled_out_are_not_tried(vouched: tuple[str, ...]) -> None:
    text = "from torch import autocast\n\ndef f(a, b):\n    return torch.bmm(a, b)\n"
    new = "(a.unsqueeze(-1) * b.unsqueeze(1)).sum(2)"
    found = verdict(text, "torch.bmm(a, b)", new, vouched=vouched)
    assert found == "equivalent" if vouched else "bfloat16" in found


FROZEN = """
class Block(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.register_buffer("mean", torch.zeros(n))
        self.register_buffer("var", torch.ones(n))

    def forward(self, x):
        '''x: (B, C, H, W)'''
        return (x - self.mean[:, None, None]) * (self.var + 1e-5).rsqrt()[:, None, None]
"""


def test_what_the_user_vouches_for_holds_for_earlier_calls_too() -> None:
    old = FROZEN[FROZEN.rindex("(x - ") : -1]
    new, one = "F.batch_norm(x, self.mean, self.var)", "same-dtype"
    probe = "npufix_operands_(x=x, mean=self.mean, var=self.var)"
    probes = ((HEAD + FROZEN).replace(old, probe),)
    given = {"vouched": (one,), "probes": probes}
    assert verdict(FROZEN, old, new, "Block.forward", **given) == "equivalent"


SIZED = """
from typing import List, Tuple

class Block(nn.Module):
    def __init__(self, dim: int, window_size: Tuple[int, int]):
        super().__init__()
        rows, columns = window_size
        self.window_size = window_size
        self.bias = nn.Parameter(torch.zeros(rows * columns, dim))

    def forward(self, x):
        h, w = self.window_size
        return x.reshape(-1, h * w, x.shape[-1]) + self.bias * 2

def crop(x, shapes: List[Tuple[int, int]]):
    return [x[:, :h, :w] * 2 for h, w in shapes]

def turn(x, permute_mask: List[int]):
    b, h, w, d = x.shape
    return x.reshape(b, h, 1, w, d).expand(-1, -1, h, -1, -1).permute(permute_mask) * 2
"""


@pytest.mark.parametrize(
    ("name", "old", "right", "wrong"),
    [
        ("Block.forward", "self.bias * 2", "self.bias + self.bias", "self.bias"),
        ("crop", "x[:, :h, :w] * 2", "2 * x[:, :h, :w]", "2 * x[:, :w, :h]"),
        ("turn", "(permute_mask) * 2", "(*permute_mask) * 2", "(permute_mask[::-1]) * 2"),
    ],
)
def test_several_sizes_and_axes_are_made_up(name: str, old: str, right: str, wrong: str) -> None:
    text = SIZED.replace("nn.", "torch.nn.")
    assert verdict(text, old, right, name) == "equivalent"
    assert verdict(text, old, wrong, name).startswith("refuted")


HALVED = """
def turned(x):
    half = x.shape[-1] // 2
    a, b = x[..., :half], x[..., half:]
    return torch.cat((-b, a), dim=-1)
"""


def test_a_width_that_is_halved_is_not_odd() -> None:
    old, new = "x[..., :half], x[..., half:]", "x.chunk(2, dim=-1)"
    assert verdict(HALVED, old, new, "turned") == "equivalent"
    assert verdict(HALVED, old, "x.flip(-1).chunk(2, dim=-1)", "turned").startswith("refuted")
    # what is cut once has no halves: an odd width is as good as another
    once = HALVED.replace("x[..., :half], x[..., half:]", "x[..., :half], x[..., half * 2 :]")
    new = "x[..., :half], x[..., x.shape[-1] :]"
    assert verdict(once, old.replace("half:", "half * 2 :"), new, "turned").startswith("refuted")


def test_one_tensor_may_be_half_beside_two_that_are_not() -> None:
    text = "def f(x, gain, shift):\n    return x * gain + shift\n"
    old = "x * gain + shift"
    assert verdict(text, old, "gain * x + shift", "f") == "equivalent"
    found = verdict(text, old, "((x * gain).to(gain.dtype) + shift).to(shift.dtype)", "f")
    assert found.startswith("refuted")


def test_a_search_says_what_ended_it_and_what_the_user_can_say() -> None:
    found = SearchResult()
    assert not found.ends(time.process_time() + 60)
    assert found.reason.endswith("--assume says what callers pass: 'x: float[b, t, d]'")
    assert "when the time was up" not in found.reason
    assert found.ends(time.process_time() - 1)
    assert not found.ends(time.process_time() + 60)  # of a later, shorter search
    assert "there was more to try when the time was up" in found.reason
