"""What classes are made with: tensors, sizes in pairs; and what their methods are called after."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from changed_programs import verdict

from npufix.rewriters.verification.verdict import Status

SCHEDULE = """
class Schedule(torch.nn.Module):
    def __init__(self, sigmas):
        super().__init__()
        self.register_buffer("log_sigmas", sigmas.log())

    def to_time(self, sigma):
        dists = sigma.log() - self.log_sigmas[:, None]
        low = dists.ge(0).cumsum(0).argmax(0).clamp(max=len(self.log_sigmas) - 2)
        return low + 1
"""
GAUSSIAN = """
class Gaussian:
    def __init__(self, parameters):
        self.mean, self.logvar = torch.chunk(parameters, 2, dim=1)
        self.std = torch.exp(0.5 * self.logvar)

    def nll(self, sample):
        return (self.logvar + (sample - self.mean) ** 2 / self.std ** 2).sum(1)
"""
MERGING = '''
class Merging(torch.nn.Module):
    """Merges patches; dim (int): channels."""

    def __init__(self, input_resolution, dim):
        super().__init__()
        self.input_resolution = input_resolution
        self.reduction = torch.nn.Linear(4 * dim, 2 * dim, bias=False)

    def forward(self, x):
        """x: B, H*W, C"""
        H, W = self.input_resolution
        B, L, C = x.shape
        assert L == H * W
        assert H % 2 == 0 and W % 2 == 0
        x = x.view(B, H, W, C)
        x = torch.cat([x[:, 0::2, 0::2], x[:, 1::2, 0::2], x[:, 0::2, 1::2], x[:, 1::2, 1::2]], -1)
        return self.reduction(x.view(B, -1, 4 * C))
'''
CAT = MERGING[MERGING.index("        x = torch.cat") : MERGING.index("        return")]
VIEW = "        x = x.view(B, H // 2, 2, W // 2, 2, C).permute(0, 1, 3, {}, {}, 5).contiguous()\n"
MODES = """
class Averaging(torch.optim.Optimizer):
    def __init__(self, params, lr=0.125):
        super().__init__(params, dict(lr=lr, train_mode=False))

    def train(self):
        for group in self.param_groups:
            group["train_mode"] = True

    @torch.no_grad()
    def step(self):
        for group in self.param_groups:
            if not group["train_mode"]:
                raise RuntimeError("call train() first")
            for p in group["params"]:
                if p.grad is not None:
                    p.sub_(p.grad * group["lr"])
"""
SAMPLER = """
from tqdm.auto import trange


@torch.no_grad()
def sample(model, x, sigmas, disable=None):
    ones = x.new_ones([x.shape[0]])
    for i in trange(len(sigmas) - 1, disable=disable):
        d = (x - model(x, sigmas[i] * ones)) / sigmas[i]
        if sigmas[i + 1] == 0:
            x = x + d * (sigmas[i + 1] - sigmas[i])
        else:
            y = x + d * (sigmas[i + 1] - sigmas[i])
            other = (y - model(y, sigmas[i + 1] * ones)) / sigmas[i + 1]
            x = x + (d + other) / 2 * (sigmas[i + 1] - sigmas[i])
    return x
"""
BRANCH = SAMPLER[SAMPLER.index("        if sigmas") : SAMPLER.index("            y = x")]
INVERSE = """
class Inverse(torch.nn.Module):
    def __init__(self, n_fft: int, hop_length: int, win_length: int):
        super().__init__()
        self.n_fft, self.hop_length, self.win_length = n_fft, hop_length, win_length
        self.register_buffer("window", torch.hann_window(win_length))

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        pad = (self.win_length - self.hop_length) // 2
        weighted = frames[..., :1] * self.window.square()
        return weighted.flatten()[pad:-pad]
"""


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (SCHEDULE, ".clamp(max=len(self.log_sigmas) - 2)", ""),
        (GAUSSIAN, "self.std ** 2", "self.std"),
        (MERGING, CAT, VIEW.format(2, 4)),
        (MODES, 'p.grad * group["lr"]', "p.grad.sign()"),
        (SAMPLER, BRANCH, "        if True:\n"),
        (INVERSE, "self.window.square()", "self.window"),
    ],
)
def test_wrong_changes_are_refuted(text: str, old: str, new: str) -> None:
    found = verdict(text, (old, new))
    assert found.status is Status.REFUTED, found


@pytest.mark.parametrize(
    ("text", "old", "new"),
    [
        (SCHEDULE, "return low + 1", "return 1 + low"),
        (
            GAUSSIAN,
            "(sample - self.mean) ** 2 / self.std ** 2",
            "((sample - self.mean) / self.std).square()",
        ),
        (MERGING, CAT, VIEW.format(4, 2)),
        (MODES, 'p.sub_(p.grad * group["lr"])', 'p.add_(p.grad, alpha=-group["lr"])'),
        (SAMPLER, "(d + other) / 2 *", "0.5 * (d + other) *"),
    ],
)
def test_right_changes_are_equivalent(text: str, old: str, new: str) -> None:
    found = verdict(text, (old, new))
    assert found.status is Status.EQUIVALENT, found


MASKED = """
def moments(x, mask=None):
    \"\"\"x and mask (B, T).\"\"\"
    masked = x if mask is None else mask * x
    mean = masked.mean()
    squares = (x - mean).square()
    masked_squares = (
        squares if mask is None else mask * squares
    )
    return mean, masked_squares.mean()
"""


def test_what_a_statement_asks_on_its_second_line_is_asked() -> None:
    own = MASKED[MASKED.index("    masked_squares = (") : MASKED.index("    return")]
    found = verdict(MASKED, (own, ""), ("masked_squares.mean()", "squares.mean()"))
    assert found.status is Status.REFUTED, found


EMPTY = """
def ends(x, n: int):
    \"\"\"x (B, T).\"\"\"
    assert n == 0
    return x[:, n:n] * 2.0
"""


def test_results_that_are_always_empty_prove_nothing() -> None:
    found = verdict(EMPTY, ("* 2.0", "* 3.0"))
    assert found.status is Status.NOT_VERIFIED, found


DIFFUSION = '''
class Diffusion:
    def __init__(self, steps: int = 10):
        self.bars = torch.cumprod(1.0 - torch.linspace(1e-4, 0.02, steps), dim=0)

    def predict(self, x, noise, t: int):
        """x, noise (B, C, H, W), t below steps."""
        bar = self.bars[t].item()
        return (x - (1 - bar) ** 0.5 * noise) / bar**0.5
'''


def test_tables_of_plain_classes_stay_in_single_precision() -> None:
    read = "bar = self.bars[t].item()", "bar = self.bars[t]"
    found = verdict(DIFFUSION, read)
    assert found.status is Status.EQUIVALENT, found
    wrong = verdict(DIFFUSION, ("self.bars[t].item()", "self.bars[t - 1].item()"))
    assert wrong.status is Status.REFUTED, wrong
