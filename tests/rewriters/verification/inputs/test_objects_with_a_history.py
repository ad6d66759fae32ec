"""Methods that read what other methods of their class have written."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

RING = """
class Ring:
    def __init__(self, room: int, dim: int):
        self.rows = torch.zeros(room, dim)
        self.head = 0

    def push(self, row):
        self.rows[self.head] = row
        self.head = (self.head + 1) % self.rows.shape[0]

    def latest(self, n: int):
        at = (self.head - n + torch.arange(n)) % self.rows.shape[0]
        return self.rows[at]
"""


def test_what_others_have_written_is_read() -> None:
    found = verdict(RING, ("(self.head - n + torch.arange(n))", "(torch.arange(n) - n)"))
    assert found.status is Status.REFUTED, found
    assert "calls of push(row=float[8])" in found.reason
    assert "made.push" in found.script  # the program makes the calls as well
    assert "method(**given)" in found.script


def test_another_way_to_read_it_is_equivalent() -> None:
    found = verdict(RING, ("return self.rows[at]", "return self.rows.index_select(0, at)"))
    assert found.status is Status.EQUIVALENT, found


def test_a_ring_is_filled_by_the_changed_method_itself() -> None:
    wraps = "(self.head + 1) % self.rows.shape[0]"
    found = verdict(RING, (wraps, "min(self.head + 1, self.rows.shape[0] - 1)"))
    assert found.status is Status.REFUTED, found


WINDOW = """
class Window:
    def __init__(self, size: int = 4):
        self.size = size
        self.items = []

    @property
    def full(self) -> bool:
        return len(self.items) >= self.size

    def add(self, loss: torch.Tensor):
        if self.full:
            self.items.pop(0)
        self.items.append(loss.detach())
"""


def test_a_property_is_read_when_it_is_just_full() -> None:
    test = "len(self.items) >= self.size"
    found = verdict(WINDOW, (test, "len(self.items) > self.size"))
    assert found.status is Status.REFUTED, found
    assert verdict(WINDOW, (test, "not len(self.items) < self.size")).status is Status.EQUIVALENT


MEAN = """
class Mean:
    def __init__(self, dim: int):
        self.total = torch.zeros(dim)
        self.count = 0

    def update(self, rows):
        self.total = self.total + rows.sum(0)
        self.count += rows.shape[0]

    def value(self):
        if self.count == 0:
            raise ValueError("nothing was counted")
        return self.total / self.count
"""


def test_what_is_refused_before_the_first_call_is_compared_after_it() -> None:
    found = verdict(MEAN, ("self.total / self.count", "self.total / (self.count + 1)"))
    assert found.status is Status.REFUTED, found
    assert verdict(MEAN, ("self.total / self.count", "self.total.div(self.count)")).status is (
        Status.EQUIVALENT
    )


def test_other_roundings_of_earlier_calls_refute_nothing() -> None:
    found = verdict(MEAN, ("self.total + rows.sum(0)", "rows.flip(0).sum(0) + self.total"))
    assert found.status is Status.EQUIVALENT, found


EPISODE = """
from collections import deque

class Episode:
    def __init__(self, n: int = 3):
        self.rewards = deque(maxlen=n)
        self.dones = deque(maxlen=n)

    def push(self, reward: float, done: bool):
        self.rewards.append(reward)
        self.dones.append(done)

    def total(self) -> float:
        total = 0.0
        for reward, done in zip(self.rewards, self.dones):
            total += reward
            if done:
                break
        return total
"""
COUNTS = "            total += reward\n            if done:\n                break\n"


def test_flags_of_earlier_calls_are_not_all_the_same() -> None:
    late = "            if done:\n                break\n            total += reward\n"
    found = verdict(EPISODE, (COUNTS, late))
    assert found.status is Status.REFUTED, found
    soon = "            total += reward\n            if done:\n                return total\n"
    assert verdict(EPISODE, (COUNTS, soon)).status is Status.EQUIVALENT


STEP = """
def step(sample, derivative, sigma: float, sigma_next: float):
    up = sigma_next / 2 if sigma > sigma_next else 0.0
    down = sigma_next - up
    return sample + derivative * (down - sigma)
"""


def test_of_two_floats_each_is_once_the_larger_one() -> None:
    found = verdict(STEP, ("(down - sigma)", "(sigma_next - sigma)"))
    assert found.status is Status.REFUTED, found


SIGNED = """
def shifted(x, shift: int, least: int = 1):
    return torch.roll(x, abs(shift), -1) * max(least, 0)
"""


@pytest.mark.parametrize(
    "change", [("abs(shift)", "shift"), ("max(least, 0)", "least"), ("max(least, 0)", "least or 1")]
)
def test_what_code_asks_the_sign_of_is_negative_and_zero_once(change: tuple[str, str]) -> None:
    found = verdict(SIGNED, change)
    assert found.status is Status.REFUTED, found
    same = verdict(SIGNED, ("abs(shift)", "(shift if shift > 0 else -shift)"))
    assert same.status is Status.EQUIVALENT, same


MOMENTUM = """
class Momentum(torch.optim.Optimizer):
    def __init__(self, params, lr: float = 0.1):
        super().__init__(params, dict(lr=lr))

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is None:
                    continue
                state = self.state[p]
                if "buf" not in state:
                    state["buf"] = p.grad.clone()
                else:
                    state["buf"].mul_(0.9).add_(p.grad)
                p.add_(state["buf"], alpha=-group["lr"])
"""


def test_an_optimizer_must_not_keep_the_gradient_itself() -> None:
    found = verdict(MOMENTUM, ("p.grad.clone()", "p.grad"))
    assert found.status is Status.REFUTED, found
    assert verdict(MOMENTUM, ("p.grad.clone()", "p.grad + 0")).status is Status.EQUIVALENT


COUNTS_OF_PAIRS = '''
class Pairs:
    def __init__(self, num_classes: int):
        self.n = num_classes
        self.matrix = torch.zeros(num_classes, num_classes, dtype=torch.int64)

    def update(self, pred, target):
        """pred, target (N, H, W) int64 below n."""
        flat = (target * self.n + pred).flatten()
        self.matrix += torch.bincount(flat, minlength=self.n**2).reshape(self.n, self.n)

    def score(self):
        hit = self.matrix.diagonal()
        union = self.matrix.sum(0) + self.matrix.sum(1) - hit
        return (hit.float() / union)[union > 0].mean()
'''


def test_earlier_calls_take_whole_numbers_where_a_text_says_so() -> None:
    found = verdict(COUNTS_OF_PAIRS, ("self.matrix.sum(1) - hit", "self.matrix.sum(1)"))
    assert found.status is Status.REFUTED, found


FORGOTTEN = """
class Recycled(torch.nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.linear = torch.nn.Linear(width, width)

    def reset(self, rows, optimizers: list[torch.optim.Optimizer] | None = None):
        with torch.no_grad():
            self.linear.weight[rows] = 0.0
            for optimizer in optimizers or []:
                self._forget(rows, optimizer, 0)

    def _forget(self, rows, optimizer, axis):
        for held in optimizer.state.get(self.linear.weight, {}).values():
            held.index_fill_(axis, rows, 0.0)
"""


def test_optimizers_that_may_be_passed_remember_steps_before() -> None:
    found = verdict(FORGOTTEN, ("rows, optimizer, 0", "rows, optimizer, 1"))
    assert found.status is Status.REFUTED, found
    assert "optimizers[0].state[0]['momentum_buffer']" in found.reason
    assert ".remember(arguments, made)" in found.script


UNKNOWN = """
class Kept:
    def __init__(self):
        self.scale = 1.0

    def load(self, source):
        self.scale = source.open().read_number_of_device()

    def apply(self, x):
        return x * self.scale
"""


def test_what_could_not_be_called_before_is_said() -> None:
    found = verdict(UNKNOWN, ("x * self.scale", "self.scale * x"))
    assert found.status is Status.EQUIVALENT, found
    assert "no call of load was found, which writes what this reads" in found.notes


TARGET = """
import copy

class Target:
    def __init__(self, critic: torch.nn.Module, gamma: float = 0.9):
        self.gamma = gamma
        self.target = copy.deepcopy(critic)

    def value(self, state, done: torch.Tensor):
        return self.gamma * (1 - done) * self.target(state)
"""


def test_a_copied_module_that_is_called_is_one_that_computes() -> None:
    found = verdict(TARGET, ("(1 - done) * self.target(state)", "self.target((1 - done) * state)"))
    assert found.status is Status.REFUTED, found


SCHEDULE = """
class Schedule:
    def __init__(self, warmup: int = 4, total: int = 12):
        self.warmup, self.total = warmup, total
        self.steps = 0

    def advance(self):
        self.steps += 1

    def done(self) -> float:
        return min(1.0, self.steps / self.total)
"""


def test_more_calls_are_made_than_the_largest_room_holds() -> None:
    found = verdict(SCHEDULE, ("min(1.0, self.steps / self.total)", "self.steps / self.total"))
    assert found.status is Status.REFUTED, found


SLOW_COPY = """
class Slow:
    def __init__(self, dim: int = 4):
        self.fast = torch.full((dim,), 2.0)
        self.slow = torch.zeros(dim)
        self.states = {"moves": torch.zeros(1)}

    def follow(self):
        for kept, new in zip(self.slow.unbind(), self.fast.unbind()):
            kept.lerp_(new, 0.5)
        state = self.states
        state["moves"] += 1

    def apply(self, x):
        return x * self.slow / self.states["moves"].clamp(min=1)
"""


def test_what_is_written_by_another_name_was_written_before() -> None:
    halved = verdict(SLOW_COPY, ("x * self.slow /", "x * self.slow.clamp(max=0.5) /"))
    assert halved.status is Status.REFUTED, halved
    counted = verdict(SLOW_COPY, (".clamp(min=1)", ".clamp(min=1, max=2)"))
    assert counted.status is Status.REFUTED, counted
    again = verdict(SLOW_COPY, ("x * self.slow /", "self.slow * x /"))
    assert again.status is Status.EQUIVALENT, again


ADVANCED = """
class Scheduler:
    def __init__(self):
        self.steps = 0

    def _advance(self):
        self.steps += 1

    def scale(self, x):
        return x * min(1.0, (self.steps + 1) / 3)
"""


def test_a_private_method_is_called_before_where_no_other_one_writes() -> None:
    found = verdict(ADVANCED, ("min(1.0, (self.steps + 1) / 3)", "(self.steps + 1) / 3"))
    assert found.status is Status.REFUTED, found
    found = verdict(ADVANCED, ("min(1.0, (self.steps + 1) / 3)", "min((self.steps + 1) / 3, 1.0)"))
    assert found.status is Status.EQUIVALENT, found


GROWING = """
class Kept:
    def __init__(self):
        self.total = 1.0

    def load(self, source):
        self.total = self.total + source.open().read_number_of_device()

    def apply(self, x):
        return x * self.total
"""


def test_what_is_built_up_by_calls_that_were_not_made_is_not_verified() -> None:
    found = verdict(GROWING, ("x * self.total", "self.total * x"))
    assert found.status is Status.NOT_VERIFIED, found
    assert "no call of load was found, which changes self.total" in found.reason


CHOSEN = '''
class Chosen:
    def __init__(self, vocab: int = 7):
        self.counts = torch.zeros(vocab)

    def _note(self, tokens):
        """tokens (N,) int64 below vocab."""
        counts = self.counts
        counts.index_add_(0, tokens, torch.ones_like(tokens, dtype=counts.dtype))

    def scores(self, logits):
        """logits (vocab,)."""
        return torch.where(self.counts > 0, logits / 2, logits)
'''


def test_earlier_calls_name_all_that_a_text_allows() -> None:
    found = verdict(CHOSEN, ("self.counts > 0", "self.counts > 1"))
    assert found.status is Status.REFUTED, found


AVERAGE = """
class Average:
    def __init__(self, model, decay: float = {decay}):
        self.decay = decay
        self.updates = 0
        self.slow = {{k: v.detach().clone() for k, v in model.named_parameters()}}

    @torch.no_grad()
    def update(self, model):
        self.updates += 1
        keep = min({most}, (1 + self.updates) / (10 + self.updates))
        for k, v in model.named_parameters():
            self.slow[k].mul_(keep).add_(v.detach(), alpha=1 - keep)
"""


@pytest.mark.parametrize(("decay", "most"), [("0.5", "0.9"), ("0.9999", "self.decay")])
def test_a_warm_up_is_called_until_it_ends(decay: str, most: str) -> None:
    text = AVERAGE.format(decay=decay, most=most)
    grows = "(1 + self.updates) / (10 + self.updates)"
    found = verdict(text, (f"min({most}, {grows})", grows))
    assert found.status is Status.REFUTED, found
    kept = ("mul_(keep).add_(v.detach(), alpha=1 - keep)", "lerp_(v.detach(), 1 - keep)")
    assert verdict(text, kept).status is Status.EQUIVALENT


WARM_UP = """
class WarmUp:
    def __init__(self, warm: int = 500, total: int = 10_000):
        self.warm, self.total = warm, total
        self.count = 0

    def rate(self):
        self.count += 1
        if self.count < self.warm:
            return self.count / self.warm
        return 1 - (self.count - self.warm) / (self.total - self.warm)
"""


def test_large_sizes_of_a_schedule_shrink_together() -> None:
    found = verdict(WARM_UP, ("/ (self.total - self.warm)", "/ self.total"))
    assert found.status is Status.REFUTED, found


TOTAL = """
class Total:
    def __init__(self):
        self.total = 0.0

    def add(self, x: torch.Tensor):
        self.total += float((x * 0.1).sum())
"""


def test_numbers_of_an_object_are_equal_up_to_rounding_and_as_nan() -> None:
    assert verdict(TOTAL, ("(x * 0.1).sum()", "x.sum() * 0.1")).status is Status.EQUIVALENT
    assert verdict(TOTAL, ("(x * 0.1).sum()", "x.sum() * 0.101")).status is Status.REFUTED
    found = verdict(TOTAL, ("float((x * 0.1).sum())", "(x * 0.1).sum()"))
    assert found.status is Status.REFUTED, found  # who formats it finds a tensor


SCALER = """
class Scaler:
    def __init__(self, scale=1024.0, growth=2.0, interval=100):
        self.scale, self.growth, self.interval = scale, growth, interval
        self.good = 0

    def update(self, found_inf: bool):
        if found_inf:
            self.scale *= 0.5
            self.good = 0
        else:
            self.good += 1
            if self.good == self.interval:
                self.scale *= self.growth
                self.good = 0
"""


def test_flags_of_earlier_calls_may_stay_until_a_counter_is_full() -> None:
    found = verdict(SCALER, ("self.good == self.interval", "self.good > self.interval"))
    assert found.status is Status.REFUTED, found
    found = verdict(SCALER, ("self.good == self.interval", "self.good >= self.interval"))
    assert found.status is Status.EQUIVALENT, found


CONFUSION = '''
class Confusion:
    def __init__(self, num_classes: int):
        self.num_classes = num_classes
        self.matrix = torch.zeros(num_classes, num_classes, dtype=torch.long)

    def update(self, preds: torch.Tensor, target: torch.Tensor) -> None:
        """preds (N,) and target (N,)."""
        index = target * self.num_classes + preds
        counted = torch.bincount(index, minlength=self.num_classes**2)
        self.matrix += counted.view(self.num_classes, self.num_classes)

    def iou(self) -> torch.Tensor:
        hit = self.matrix.diag().float()
        union = self.matrix.sum(0) + self.matrix.sum(1) - self.matrix.diag()
        return hit / union.clamp(min=1)
'''


def test_a_meter_is_filled_with_whole_numbers_where_no_others_do() -> None:
    found = verdict(CONFUSION, (" - self.matrix.diag()", ""))
    assert found.status is Status.REFUTED, found
    assert "calls of update(preds=int[3], target=int[3])" in found.reason


def test_what_is_only_added_to_and_cannot_be_filled_is_not_verified() -> None:
    closed = ("index = target", "assert target.is_sparse\n        index = target")
    found = verdict(CONFUSION.replace(*closed), (" - self.matrix.diag()", ""))
    assert found.status is Status.NOT_VERIFIED, found
    assert "no call of update was found, which changes self.matrix" in found.reason


STOPPING = """
class Stopping:
    def __init__(self, patience: int = 3, delta: float = 0.0):
        self.patience, self.delta, self.best, self.bad, self.stop = patience, delta, None, 0, False

    def __call__(self, value):
        if self.best is None or value > self.best + self.delta:
            self.best = value
            self.bad = 0
        else:
            self.bad += 1
            self.stop = self.bad >= self.patience
        return self.stop
"""


def test_earlier_calls_take_what_can_be_passed_twice() -> None:
    found = verdict(STOPPING, ("            self.bad = 0\n", ""))
    assert found.status is Status.REFUTED, found


PADDING = """
class Padding:
    def __init__(self, pad: int = 0, max_length=None):
        self.pad, self.max_length = pad, max_length

    def __call__(self, features):
        width = max(len(f["ids"]) for f in features)
        if self.max_length is not None:
            width = min(width, self.max_length)
        rows = [f["ids"][:width] for f in features]
        return torch.tensor([row + [self.pad] * (width - len(row)) for row in rows])
"""


def test_bounds_that_an_object_is_made_with_are_exceeded() -> None:
    found = verdict(PADDING, ("""f["ids"][:width]""", """f["ids"]"""))
    assert found.status is Status.REFUTED, found
    assert "max_length=2" in found.reason


PLATEAU = """
class Plateau:
    def __init__(self, patience: int = 2, cooldown: int = 1):
        self.patience, self.cooldown, self.bad, self.wait, self.rate = patience, cooldown, 0, 0, 1.0

    def step(self, better: bool):
        self.bad = 0 if better else self.bad + 1
        if self.wait > 0:
            self.wait -= 1
            self.bad = 0
        if self.bad > self.patience:
            self.rate *= 0.5
            self.wait = self.cooldown
            self.bad = 0
"""


def test_calls_go_on_beyond_one_bound_after_another() -> None:
    found = verdict(
        PLATEAU,
        ("            self.wait -= 1\n            self.bad = 0\n", "            self.wait -= 1\n"),
    )
    assert found.status is Status.REFUTED, found
