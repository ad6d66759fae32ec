"""What trainers keep of earlier passes: the best score, the patience that is left, weights."""

from __future__ import annotations

import pytest

torch = pytest.importorskip("torch")

from changed_programs import verdict  # noqa: E402 - needs torch

from npufix.rewriters.verification.inputs.objects.training_loops import (  # noqa: E402 - same
    list_batches,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

TRAINER = """
class Trainer:
    def __init__(self, model, crit, val_loader):
        self.model = model
        self.crit = crit
        self.val_loader = val_loader
        self.best_acc = 0.0
        self.lowest = float("inf")
        self.bad = 0

    @torch.no_grad()
    def validate(self):
        self.model.eval()
        hits, seen = 0, 0
        for inputs, targets in self.val_loader:
            hits += (self.model(inputs).argmax(1) == targets).sum().item()
            seen += len(targets)
        acc = hits / seen
        self.best_acc = max(acc, self.best_acc)
        return acc

    @torch.no_grad()
    def measure(self, loader):
        total, count = 0.0, 0
        for inputs, targets in loader:
            total += self.crit(self.model(inputs), targets).item() * len(targets)
            count += len(targets)
        loss = total / count
        if loss < self.lowest:
            self.lowest = loss
            self.bad = 0
        else:
            self.bad += 1
        return self.bad >= 3
"""
STOPPING = """
import copy


class Stopping:
    def __init__(self, patience=7, delta=0.0):
        self.patience, self.delta = patience, delta
        self.counter = 0
        self.best = None
        self.stop = False
        self.state = None

    def __call__(self, val_loss, model):
        score = -val_loss
        if self.best is None:
            self.best = score
            self.state = copy.deepcopy(model.state_dict())
        elif score < self.best + self.delta:
            self.counter += 1
            self.stop = self.counter >= self.patience
        else:
            self.best = score
            self.state = copy.deepcopy(model.state_dict())
            self.counter = 0
"""


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("max(acc, self.best_acc)", "acc"),
        ("self.bad += 1", "self.bad, self.lowest = self.bad + 1, loss"),
        ("self.crit(self.model(inputs), targets).item() * len(targets)", "self.bad"),
    ],
)
def test_a_score_that_falls_shows_what_is_kept_of_the_best(old: str, new: str) -> None:
    found = verdict(TRAINER, (old, new))
    assert found.status is Status.REFUTED, found


def test_a_best_score_in_other_words_is_equivalent() -> None:
    other = "acc if acc > self.best_acc else self.best_acc"
    found = verdict(TRAINER, ("max(acc, self.best_acc)", other))
    assert found.status is Status.EQUIVALENT, found


def test_patience_starts_anew_and_weights_are_copies() -> None:
    kept = (
        "            self.state = copy.deepcopy(model.state_dict())\n            self.counter = 0"
    )
    found = verdict(STOPPING, (kept, kept.rpartition("\n")[0]))
    assert found.status is Status.REFUTED, found
    found = verdict(
        STOPPING, (kept, kept.replace("copy.deepcopy(model.state_dict())", "model.state_dict()"))
    )
    assert found.status is Status.REFUTED, found


def test_batches_are_others_in_every_epoch() -> None:
    made = list_batches("tuple", "inputs:tensor labels:255", "rows", 3)
    first = [(x.clone(), y.clone()) for x, y in made]  # type: ignore[misc,attr-defined] # tensors
    seen = []
    for epoch in (1, 2, 3, 0):
        made.set_epoch(epoch)
        seen.append(torch.cat([y for _, y in made]))  # type: ignore[misc] # same
    assert all(not torch.equal(one, seen[-1]) for one in seen[:-1])
    void = [(one == 255).tolist() for one in seen]
    assert void == [void[0]] * 4
    assert any(void[0])
    assert all(
        torch.equal(x, a) and torch.equal(y, b) for (x, y), (a, b) in zip(made, first, strict=True)
    )  # type: ignore[misc] # same


PATIENT = """
class Patient:
    def __init__(self, patience: int = 4, mode: str = "max"):
        self.patience, self.mode = patience, mode
        self.best = float("-inf")
        self.wait = 0

    def step(self, epoch: int, score: float) -> bool:
        if score > self.best:
            self.best = score
            self.wait = 0
        else:
            self.wait += 1
        return self.wait >= self.patience
"""
RENEWED = "            self.best = score\n            self.wait = 0\n"


def test_plain_scores_rise_and_fall() -> None:
    found = verdict(PATIENT, (RENEWED, "            self.best = score\n"))
    assert found.status is Status.REFUTED, found
    best = ("        return self.wait", "        self.best = score\n        return self.wait")
    assert verdict(PATIENT, best).status is Status.REFUTED
    lowest = PATIENT.replace("score > self.best", "score < self.best").replace("-inf", "inf")
    found = verdict(lowest, (RENEWED, "            self.best = score\n"))
    assert found.status is Status.REFUTED, found
    same = (RENEWED, "            self.best, self.wait = score, 0\n")
    assert verdict(PATIENT, same).status is Status.EQUIVALENT
