"""Training loops: batches in the form that they take apart, models that return what they read."""

from __future__ import annotations

import ast
import itertools
import subprocess
import sys
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.values import Value  # noqa: E402 - same
from npufix.rewriters.verification.inputs.search import _Search  # noqa: E402 - same
from npufix.rewriters.verification.inputs.source.training.loops import (  # noqa: E402 - same
    Batch,
    Item,
    Result,
    find_batch,
    find_batches,
    find_result,
)
from npufix.rewriters.verification.inputs.target import Assignment  # noqa: E402 - same
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

EPOCH = """
def fit(net, loss_fn, train_loader, optimizer, scheduler=None, scaler=None, accumulate_steps=3):
    net.train()
    seen, total = 0, 0.0
    for step, (pixels, labels) in enumerate(train_loader, start=1):
        loss = loss_fn(net(pixels), labels)
        total += loss.item() * len(labels)
        seen += len(labels)
        if scaler is not None:
            scaler.scale(loss / accumulate_steps).backward()
        else:
            (loss / accumulate_steps).backward()
        if step % accumulate_steps == 0 or step == len(train_loader):
            if scaler is not None:
                scaler.step(optimizer)
                scaler.update()
            else:
                optimizer.step()
            optimizer.zero_grad()
    if scheduler is not None:
        scheduler.step()
    return total / seen
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (" or step == len(train_loader)", ""),
        ("loss.item() * len(labels)", "loss.item() / accumulate_steps * len(labels)"),
        ("                scaler.update()\n", ""),
        ("        scheduler.step()\n    return", "        pass\n    return"),
        ("    net.train()\n", ""),
    ],
)
def test_what_changes_a_pass_is_refuted(old: str, new: str) -> None:
    found = verdict(EPOCH, (old, new))
    assert found.status is not Status.EQUIVALENT, found
    if "net.train" not in old and "scaler" not in old:
        assert found.status is Status.REFUTED, found


def test_a_sum_that_is_kept_on_the_device_is_equivalent() -> None:
    found = verdict(
        EPOCH,
        ("total += loss.item() * len(labels)", "total = total + loss.detach() * len(labels)"),
        ("return total / seen", "return float(total / seen)"),
    )
    assert found.status is Status.EQUIVALENT, found


STEP = """
class Finetuner:
    def __init__(self, model, optimizer, device="cpu"):
        self.model, self.optimizer, self.device = model, optimizer, device
        self.losses = 0.0
        self.steps = 0

    def training_step(self, batch):
        batch = {k: v.to(self.device) for k, v in batch.items()}
        outputs = self.model(**batch)
        outputs.loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        self.losses += outputs.loss.item()
        self.steps += 1
        return outputs.logits.argmax(-1)
"""


def test_a_trainer_gets_a_model_that_returns_an_object() -> None:
    found = verdict(STEP, ("self.losses += outputs", "self.losses = outputs"))
    assert found.status is Status.REFUTED, found
    swapped = "        self.optimizer.step()\n        self.optimizer.zero_grad()\n"
    found = verdict(STEP, (swapped, "".join(reversed(swapped.splitlines(keepends=True)))))
    assert found.status is Status.REFUTED, found
    found = verdict(STEP, ("zero_grad()", "zero_grad(set_to_none=True)"))
    assert found.status is Status.EQUIVALENT, found


DETECTOR = """
def train_detector(model, optimizer, data_loader, device):
    history = []
    for images, targets in data_loader:
        images = list(image.to(device) for image in images)
        targets = [{k: v.to(device) for k, v in t.items()} for t in targets]
        loss_dict = model(images, targets)
        losses = sum(loss for loss in loss_dict.values())
        optimizer.zero_grad()
        losses.backward()
        optimizer.step()
        history.append(losses.item())
    return history
"""


def test_a_detector_gets_lists_and_returns_losses() -> None:
    found = verdict(DETECTOR, ("history.append(losses.item())", "history = [losses.item()]"))
    assert found.status is Status.REFUTED, found
    found = verdict(
        DETECTOR, ("sum(loss for loss in loss_dict.values())", "sum(loss_dict.values())")
    )
    assert found.status is Status.EQUIVALENT, found


LOGGED = """
def validate(model, loader, logger):
    model.eval()
    total = 0.0
    for x, y in loader:
        with torch.no_grad():
            total += F.cross_entropy(model(x), y).item()
    logger.log({"loss": total / len(loader)})
"""


def test_numbers_that_are_logged_are_compared() -> None:
    found = verdict(LOGGED, ("total / len(loader)", "total / len(loader.dataset)"))
    assert found.status is Status.REFUTED, found
    found = verdict(LOGGED, ("total / len(loader)", "total * (1 / len(loader))"))
    assert found.status is Status.EQUIVALENT, found


COLLATE = """
def collate(batch):
    images, labels = zip(*batch)
    return torch.stack(images), torch.tensor(labels)
"""


def test_samples_of_a_data_set_are_collated() -> None:
    assert verdict(COLLATE, ("stack(images)", "stack(images[::-1])")).status is Status.REFUTED
    found = verdict(COLLATE, ("torch.tensor(labels)", "torch.as_tensor(list(labels))"))
    assert found.status is Status.EQUIVALENT, found


def test_the_program_makes_the_batches_again(tmp_path: Path) -> None:
    found = verdict(LOGGED.replace("logger.log({", "return ({"), ("total / len(", "total * len("))
    assert found.status is Status.REFUTED, found
    program = tmp_path / "shows.py"
    program.write_text(found.script)
    ran = subprocess.run(
        [sys.executable, str(program)], capture_output=True, text=True, check=False
    )
    assert "they differ" in ran.stdout, ran.stdout + ran.stderr


APPLY = """
def apply(optimizer, loss, scaler=None):
    optimizer.zero_grad()
    if scaler is None:
        (loss / 2).backward()
        optimizer.step()
    else:
        scaler.scale(loss).backward()
        scaler.step(optimizer)
        scaler.update()
    return loss.item()
"""
FIT = """
def fit_once(model, optimizer, x):
    model.train()
    optimizer.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    optimizer.step()
    return loss.detach()
"""
CLIP = """
def clipped(optimizer, loss, most: float = 1.0):
    optimizer.zero_grad()
    loss.backward()
    weights = [p for g in optimizer.param_groups for p in g["params"] if p.grad is not None]
    total = torch.stack([p.grad.norm() for p in weights]).norm()
    for p in weights:
        p.grad.mul_((most / total).clamp(max=1.0))
    optimizer.step()
"""
GAN = """
def generate(generator, critic, optimizer, noise):
    loss = F.softplus(-critic(generator(noise))).mean()
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    return loss.item()
"""
BY_HAND = """
def descend(model, x, rate: float = 0.125):
    model.zero_grad()
    loss = model(x).square().mean()
    loss.backward()
    with torch.no_grad():
        for p in model.parameters():
            p -= rate * p.grad
    return loss.detach()
"""
FINITE = """
class Scaler:
    def __init__(self, scale: float = 8.0):
        self.scale, self.good = scale, 0

    def step(self, optimizer):
        weights = [p for group in optimizer.param_groups for p in group["params"]]
        if not all(bool(p.grad.isfinite().all()) for p in weights if p.grad is not None):
            self.scale /= 2
            self.good = 0
            return False
        optimizer.step()
        self.good += 1
        return True
"""


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (APPLY, "    optimizer.zero_grad()\n", "", Status.REFUTED),
        (APPLY, "(loss / 2)", "(loss * 0.5)", Status.EQUIVALENT),
        (FIT, "    optimizer.zero_grad()\n", "", Status.REFUTED),
        (
            FIT,
            "    optimizer.zero_grad()\n    loss = model(x).square().mean()\n",
            "    loss = model(x).square().mean()\n    optimizer.zero_grad()\n",
            Status.EQUIVALENT,
        ),
        (CLIP, ".clamp(max=1.0)", "", Status.REFUTED),
        (GAN, "    optimizer.zero_grad()\n", "", Status.REFUTED),
        (BY_HAND, "    model.zero_grad()\n", "", Status.REFUTED),
        (BY_HAND, "p -= rate * p.grad", "p.sub_(p.grad, alpha=rate)", Status.EQUIVALENT),
        (FINITE, "            self.good = 0\n", "", Status.REFUTED),
    ],
)
def test_weights_have_gradients_before_a_step(
    text: str, old: str, new: str, status: Status
) -> None:
    found = verdict(text, (old, new))
    assert found.status is status, found
    if text in {APPLY, FIT, BY_HAND, FINITE}:
        assert (status is Status.REFUTED) == bool(found.script), found


def _function(text: str) -> ast.AST:
    return ast.parse(text).body[0]


@pytest.mark.parametrize(
    ("text", "batch"),
    [
        ("def f(l):\n  for x, y in l: pass", Batch("tuple", (Item("x"), Item("y")))),
        ("def f(l):\n  for n, b in enumerate(tqdm(l)): b['a']", Batch("dict", (Item("a"),))),
        ("def f(l):\n  bar = tqdm(l)\n  for d in bar: d.pos", Batch("object", (Item("pos"),))),
        (
            "def f(l):\n  x = next(iter(l))\n  a = x[0].cuda()\n  b = x[1]",
            Batch("tuple", (Item("a"), Item("b"))),
        ),
        ("def f(l):\n  for x in l: x.sum()", Batch("alone", (Item("x"),))),
        ("def f(l):\n  for x in other(l): x.sum()", None),
    ],
)
def test_forms_of_batches(text: str, batch: Batch | None) -> None:
    assert find_batches([_function(text)], "l") == batch


def test_a_batch_that_is_no_batch_has_no_form() -> None:
    assert find_batch(_function("def f(x):\n  return x.sum() + x.size(0)"), "x") is None


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("m(x).loss.backward()", Result("object", ("loss",))),
        ("o = m(x)\n  o['logits'].sum()", Result("dict", ("logits",))),
        ("loss, out = m(x)", Result("tuple", ("loss", "out"))),
        ("o = m(x)\n  loss = o[0]\n  y = o[1]", Result("tuple", ("loss", "y"))),
        ("loss = m(x)\n  loss.backward()", Result("scalar", ("backward",))),
        ("y = m(x)\n  y.argmax(1)", Result("tensor")),
        ("n(x)", None),
    ],
)
def test_what_is_read_of_a_result(text: str, result: Result | None) -> None:
    assert find_result([_function(f"def f(m, n, x):\n  {text}")], "m") == result


FROZEN = """
def freeze(log_probs, done, eos_id):
    b, k, v = log_probs.shape
    frozen = torch.full_like(log_probs, float("-inf"))
    frozen[:, :, eos_id] = 0.0
    return torch.where(done.view(b, k, 1), frozen, log_probs)
"""


def test_the_end_of_a_text_is_one_number() -> None:
    places = 'torch.full_like(log_probs, float("-inf"))\n    frozen[:, :, eos_id] = 0.0'
    at = "torch.arange(v) == eos_id"
    told = f"torch.where({at}, 0.0, float('-inf')).to(log_probs).expand(b, k, v)"
    found = verdict(FROZEN, (places, told))
    assert found.status is Status.EQUIVALENT, found


PERPLEXITY = """
def mean_loss(model, loader):
    model.eval()
    total, count = 0.0, 0
    for batch in loader:
        mask = batch["attention_mask"].float()
        out = model(batch["input_ids"]).logits.float().square().mean(-1)
        total += (out * mask).sum().item()
        count += int(mask.sum())
    return total / count
"""


def test_a_mean_of_means_is_no_rounding() -> None:
    # ``int(n.sum())`` is one less as soon as the sum is, which no other order of adding makes
    each = (
        "total += (out * mask).sum().item()",
        "total += ((out * mask).sum() / mask.sum()).item()",
    )
    found = verdict(PERPLEXITY, each, ("count += int(mask.sum())", "count += 1"))
    assert found.status is Status.REFUTED, found


SCHEDULED = """
class Decay:
    def __init__(self, optimizer, steps=1000):
        self.optimizer, self.steps = optimizer, steps
        self.at = 0

    def step(self):
        self.at += 1
        for group in self.optimizer.param_groups:
            group["lr"] = 0.5 * max(0.25, 1 - self.at / self.steps)


def lower(optimizer, epoch):
    for group in optimizer.param_groups:
        group["lr"] = 0.5 * 0.1 ** (epoch // 2)
"""


def test_what_a_schedule_sets_in_an_optimizer_is_compared() -> None:
    floor = ("max(0.25, 1 - self.at / self.steps)", "(1 - self.at / self.steps)")
    assert verdict(SCHEDULED, floor).status is Status.REFUTED
    assert verdict(SCHEDULED, ("0.1 ** (epoch // 2)", "0.1 ** epoch")).status is Status.REFUTED
    turned = (
        "0.5 * max(0.25, 1 - self.at / self.steps)",
        "max(1 - self.at / self.steps, 0.25) / 2",
    )
    assert verdict(SCHEDULED, turned).status is Status.EQUIVALENT


SEGMENT = """
def fit(net, loader, optimizer):
    crit = torch.nn.CrossEntropyLoss(ignore_index=255)
    net.train()
    total = 0.0
    for image, mask in loader:
        loss = crit(net(image), mask)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        total += loss.item()
    return total / len(loader)
"""


def test_beside_images_a_mask_is_a_target() -> None:
    found = verdict(SEGMENT, ("        optimizer.zero_grad()\n", ""))
    assert found.status is Status.REFUTED, found
    found = verdict(SEGMENT, ("loss.item()", "loss.detach()"), ("total / ", "float(total) / "))
    assert found.status is Status.EQUIVALENT, found


CLIPPED = """
def fit(net, loader, optimizer, most=10.0):
    net.train()
    for pixels, labels in loader:
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(net(pixels), labels).backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), most)
        optimizer.step()
"""


def test_gradients_are_clipped_before_the_step() -> None:
    clip = "        torch.nn.utils.clip_grad_norm_(net.parameters(), most)\n"
    step = "        optimizer.step()\n"
    found = verdict(CLIPPED, (clip + step, step + clip))
    assert found.status is Status.REFUTED, found
    found = verdict(CLIPPED, ("(net.parameters(), most)", "([*net.parameters()], max_norm=most)"))
    assert found.status is Status.EQUIVALENT, found


SCORED = """
def validate(net, loader):
    net.eval()
    hits, count = 0, 0
    for image, mask in loader:
        known = mask != 255
        hits += ((net(image).argmax(1) == mask) & known).sum().item()
        count += known.sum().item()
    return hits / max(count, 1)
"""


def test_some_targets_are_what_the_code_ignores() -> None:
    found = verdict(SCORED, ("count += known.sum().item()", "count += mask.numel()"))
    assert found.status is Status.REFUTED, found
    found = verdict(SCORED, ("known.sum().item()", "int(torch.count_nonzero(known))"))
    assert found.status is Status.EQUIVALENT, found


def test_weights_are_not_sought_among_millions_of_calls() -> None:
    """So many there are of eight arguments: a line that none reaches took all of the time."""

    def combine(_recipe: object) -> Iterator[Assignment]:
        yield from itertools.repeat(Assignment(None, {"x": Value(1)}), 10_000)
        pytest.fail("it goes through all of them")

    looking: Any = SimpleNamespace(
        wanted=SimpleNamespace(unreached=lambda _reached: {1}),
        found=SimpleNamespace(reached=set()),
        options=[None],
        combine=combine,
        run=lambda tried, *_given, **_named: list(tried),
    )
    _Search.run_on_other_weights(looking)


FREEZES = """
def critic_loss(critic: torch.nn.Module, fake: torch.Tensor) -> torch.Tensor:
    before = [p.requires_grad for p in critic.parameters()]
    for p in critic.parameters():
        p.requires_grad_(False)
    loss = F.softplus(-critic(fake)).mean()
    for p, was in zip(critic.parameters(), before):
        p.requires_grad_(was)
    return loss
"""


def test_what_was_frozen_before_stays_so() -> None:
    assert verdict(FREEZES, ("p.requires_grad_(was)", "p.requires_grad_(True)")).script


UNSCALE = """
def unscale(params: list[torch.nn.Parameter], scale: float) -> bool:
    finite = True
    for p in params:
        if p.grad is None:
            continue
        p.grad.div_(scale)
        if not torch.isfinite(p.grad).all():
            finite = False
    return finite
"""
STACKED = """
def collate(batch: list[dict[str, torch.Tensor]]):
    ids = torch.nn.utils.rnn.pad_sequence([item["ids"] for item in batch], batch_first=True)
    return ids, torch.tensor([int(item["label"]) for item in batch])
"""
EACH = 'torch.tensor([int(item["label"]) for item in batch])'


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (UNSCALE, "finite = False", "return False", Status.REFUTED),
        (UNSCALE, "finite = False", "finite &= False", Status.EQUIVALENT),
        (STACKED, EACH, 'torch.stack([item["label"] for item in batch])', Status.EQUIVALENT),
    ],
)
def test_gradients_overflow_and_samples_hold_what_is_said(
    text: str, old: str, new: str, status: Status
) -> None:
    found = verdict(text, (old, new))
    assert found.status is status, found
