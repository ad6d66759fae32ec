"""Objects that are made with layers, models and optimizers, or keep the last of many values."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

from tests.rewriters.verification.changed_programs import verdict

from npufix.rewriters.verification.inputs.objects.kept import is_layer


class _Pair:
    def __init__(self, first: object, second: object) -> None:
        self.first, self.last = first, second

    def __call__(self, x: object) -> object:
        return self.last(x)  # type: ignore[operator]


def test_layers_are_kept_by_tuples_too() -> None:
    assert is_layer(_Pair, "second")
    assert not is_layer(_Pair, "first")


PRE_NORM = """
class PreNorm(torch.nn.Module):
    def __init__(self, dim, fn):
        super().__init__()
        self.norm = torch.nn.LayerNorm(dim)
        self.fn = fn

    def forward(self, x, mask=None):
        return self.fn(self.norm(x), mask=mask) + x
"""
TRAINER = """
class Trainer:
    def __init__(self, model: torch.nn.Module, optimizer: torch.optim.Optimizer, accum: int = 2):
        self.model, self.optimizer, self.accum, self.count = model, optimizer, accum, 0

    def step(self, x: torch.Tensor, y: torch.Tensor) -> float:
        loss = F.mse_loss(self.model(x), y) / self.accum
        loss.backward()
        self.count += 1
        if self.count % self.accum == 0:
            self.optimizer.step()
            self.optimizer.zero_grad()
        return loss.item() * self.accum
"""
FOLLOWED = """
@torch.no_grad()
def follow(target: torch.nn.BatchNorm1d, source: torch.nn.BatchNorm1d, tau: float = 0.05):
    for t, s in zip(target.parameters(), source.parameters()):
        t.mul_(1 - tau).add_(s, alpha=tau)
    for t, s in zip(target.buffers(), source.buffers()):
        t.copy_(s)
"""
BUFFERS = """    for t, s in zip(target.buffers(), source.buffers()):
        t.copy_(s)
"""
ALL_BUFFERS = "    [t.copy_(s) for t, s in zip(target.buffers(), source.buffers())]\n"
FLOATS = """    target.running_mean.copy_(source.running_mean)
    target.running_var.copy_(source.running_var)
"""
METER = """
class Meter:
    def __init__(self, window: int = 20):
        self.window, self.values, self.total = window, [], 0.0

    def update(self, value: torch.Tensor, n: int = 1) -> None:
        self.values.append(value.detach().item())
        if len(self.values) > self.window:
            self.values.pop(0)
        self.total += self.values[-1] * n
"""
EMA = """
class EMA:
    def __init__(self, model: torch.nn.Module, decay: float = 0.999):
        self.decay = decay
        self.shadow = {n: p.detach().clone() for n, p in model.named_parameters()}

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        for name, param in model.named_parameters():
            self.shadow[name].mul_(self.decay).add_(param, alpha=1 - self.decay)
"""
WEIGHTS = """
class Averager:
    def __init__(self, params, decay=0.99):
        self.shadow = [p.detach().clone() for p in params]
        self.decay = decay
        self.updates = 0

    @torch.no_grad()
    def update(self, params):
        self.updates += 1
        decay = min(self.decay, (1 + self.updates) / (10 + self.updates))
        for own, param in zip(self.shadow, params):
            own.mul_(decay).add_(param, alpha=1 - decay)
"""
COPIED = """
import copy


class Copied(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, decay: float = 0.9):
        super().__init__()
        self.module, self.decay = copy.deepcopy(model), decay

    @torch.no_grad()
    def update(self, model: torch.nn.Module) -> None:
        for own, other in zip(self.module.parameters(), model.parameters()):
            own.mul_(self.decay).add_(other, alpha=1 - self.decay)
        for own, other in zip(self.module.buffers(), model.buffers()):
            own.copy_(other)
"""
FEATURES = """
class Features(torch.nn.Module):
    def __init__(self, model: torch.nn.Module, layers):
        super().__init__()
        self.model, self.seen = model, {}
        for name, module in model.named_modules():
            if name in layers:
                module.register_forward_hook(self._keep(name))

    def _keep(self, name):
        def hook(module, inputs, output):
            self.seen[name] = output.detach()

        return hook

    def forward(self, x):
        self.seen.clear()
        self.model(x)
        return dict(self.seen)
"""
LOOKAHEAD = """
class Lookahead:
    def __init__(self, optimizer: torch.optim.Optimizer, k: int = 5, alpha: float = 0.5):
        self.optimizer, self.k, self.alpha, self.count = optimizer, k, alpha, 0
        self.slow = [p.detach().clone() for g in optimizer.param_groups for p in g["params"]]

    @torch.no_grad()
    def step(self):
        self.optimizer.step()
        self.count += 1
        if self.count % self.k == 0:
            for p, s in zip(self.optimizer.param_groups[0]["params"], self.slow):
                s.add_(p - s, alpha=self.alpha)
                p.copy_(s)
"""
BUCKETS = """
class Buckets:
    def __init__(self, lengths, size: int = 2):
        self.lengths, self.size = list(lengths), size

    def __iter__(self):
        order = sorted(range(len(self.lengths)), key=lambda i: self.lengths[i])
        for start in range(0, len(order), self.size):
            yield order[start : start + self.size]
"""
DIVERGENCE = """
class Bayes(torch.nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.mu = torch.nn.Parameter(torch.zeros(dim))

    def forward(self, x):
        return x + self.mu


def divergence(model):
    total = 0.0
    for part in model.modules():
        if isinstance(part, Bayes):
            total += part.mu.square().sum()
    return total
"""
AFTER_STEP = TRAINER[TRAINER.index("            self.optimizer.zero_grad()") :]
LOOP = EMA[EMA.index("        for name") :]
JOINED = """\
        own = [self.shadow[name] for name, _ in model.named_parameters()]
        torch._foreach_mul_(own, self.decay)
        torch._foreach_add_(own, list(model.parameters()), alpha=1 - self.decay)
"""
POP = "        if len(self.values) > self.window:\n            self.values.pop(0)\n"
LAST = "        self.values = self.values[-self.window :]\n"

FOLD = """
@torch.no_grad()
def fold(conv: torch.nn.Conv2d, bn):
    scale = bn.weight / torch.sqrt(bn.running_var + bn.eps)
    own = conv.stride, conv.padding, conv.dilation, conv.groups
    made = torch.nn.Conv2d(conv.in_channels, conv.out_channels, conv.kernel_size, *own)
    made.weight.copy_(conv.weight * scale.view(-1, 1, 1, 1))
    made.bias.copy_((conv.bias - bn.running_mean) * scale + bn.bias)
    return made
"""
OWN = "conv.padding, conv.dilation, conv.groups"


@pytest.mark.parametrize(
    ("text", "old", "right", "wrong"),
    [
        (
            PRE_NORM,
            "self.norm(x), mask=mask)",
            "self.norm(x), mask=mask if mask is not None else None).clone()",
            ("x, mask=mask)", "self.norm(x), mask=None)"),
        ),
        (
            TRAINER,
            AFTER_STEP,
            AFTER_STEP.replace("grad()", "grad(set_to_none=True)").replace(
                "loss.item() * self.accum", "self.accum * loss.item()"
            ),
            (AFTER_STEP.partition("\n")[2], AFTER_STEP.replace(" * self.accum", "")),
        ),
        (METER, POP, LAST, ("", LAST.replace("-self.window", "1 - self.window"))),
        (
            WEIGHTS,
            "mul_(decay).add_(param, alpha=1 - decay)",
            "lerp_(param, 1 - decay)",
            ("copy_(param)",),
        ),
        (WEIGHTS, "(1 + self.updates) /", "(self.updates + 1) /", ("self.updates /",)),
        (DIVERGENCE, "total +=", "total = total +", ("total =",)),
        (LOOKAHEAD, "p.copy_(s)", "p.data.copy_(s)", ("pass",)),
        (BUCKETS, "self.lengths[i]", "self.lengths.__getitem__(i)", ("-self.lengths[i]",)),
        (COPIED, "own.copy_(other)", "own.data.copy_(other)", ("pass",)),
        (FEATURES, "dict(self.seen)", "{**self.seen}", ("self.seen",)),
        (FOLLOWED, BUFFERS, ALL_BUFFERS, (FLOATS,)),  # how many batches were seen, too
        (
            FOLD,
            OWN,
            OWN.replace("conv.groups", "*[conv.groups]"),
            (OWN.replace("dilation", "padding"),),
        ),
        (EMA, LOOP, JOINED, (JOINED.replace("1 - self.decay", "self.decay"),)),
    ],
)
def test_objects_are_made_with_what_shows_the_difference(
    text: str, old: str, right: str, wrong: tuple[str, ...]
) -> None:
    assert verdict(text, (old, right)).status == "equivalent"
    assert [verdict(text, (old, each)).status for each in wrong] == ["refuted"] * len(wrong)
