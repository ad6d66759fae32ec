"""Accumulated gradients that are reduced over the ranks in every round.

What: ``loss.backward()`` in a loop that steps the optimizer only now and then
(``if (i + 1) % accumulation_steps == 0``), or that runs ``range(accumulation_steps)``, of a model below
DDP or FSDP, without ``no_sync`` or ``set_requires_gradient_sync``.

Why it is slow on the NPU: every backward pass sends all gradients over the links, though only their
sum is used: with four rounds four times as many bytes as are needed.

Use instead: ``with model.no_sync():`` around forward *and* backward of all rounds but the last; with
fully_shard ``model.set_requires_gradient_sync(is_last)``.

Safety: advice. The sum of the means is the mean of the sums, with another rounding. DDP needs no
memory for it; FSDP keeps the whole gradients of all parameters until the last round.

References: DistributedDataParallel.no_sync and FSDPModule.set_requires_gradient_sync of PyTorch;
train_engine.py of MindSpeed-MM.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def each_round(gradients: Tensor) -> Tensor:
    """Take the mean over the ranks in each round, and add these up: (rounds, ranks, n)."""
    return sum(round_.mean(0) for round_ in gradients)


def last_round(gradients: Tensor) -> Tensor:
    """Add the rounds up on each rank, then take the mean."""
    return gradients.sum(0).mean(0)


def inputs(draw: Draw) -> dict[str, Any]:
    """Return the gradients of some rounds on some ranks."""
    import torch

    shape = (draw.integer(1, 3), draw.integer(2, 3), 5)
    return {"gradients": draw.floats(*shape, dtype=torch.float32).abs() + 0.5}


RULE = Substitution(
    id="NPU175",
    name="early-gradient-reduction",
    summary="accumulated gradients are reduced over the ranks in every round",
    table="fusion",
    forms=(Form(each_round, last_round, inputs),),
    search="early-reductions",
    replaces=(),
    becomes=(),
    passes=(0, 1),
    requires="torch_npu>=2.1",
    valid=(
        # held back already
        """
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, optimizer, accumulation_steps):
    model = DistributedDataParallel(model)
    for i, batch in enumerate(batches):
        with model.no_sync():
            model(batch).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
""",
        # by a helper
        """
from torch.nn.parallel import DistributedDataParallel


def train(trainer, model, batches, optimizer, accumulation_steps):
    model = DistributedDataParallel(model)
    for i, batch in enumerate(batches):
        with trainer.microbatch_context(i):
            model(batch).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
""",
        # by the class that an engine comes from
        """
from torch.nn.parallel import DistributedDataParallel


class Engine:
    def context(self, model, is_last):
        return nullcontext() if is_last else model.no_sync()


class Rounds(Engine):
    def train(self, model: DistributedDataParallel, batches, micro_batches):
        for i in range(micro_batches):
            self.backward(self.context(model, i == micro_batches - 1), next(batches))
""",
        # one device
        """
def train(model, batches, optimizer, accumulation_steps):
    for i, batch in enumerate(batches):
        model(batch).backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
""",
        # a step in each round
        """
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, optimizer):
    model = DistributedDataParallel(model)
    for i, batch in enumerate(batches):
        model(batch).backward()
        optimizer.step()
        if i % 100 == 0:
            print(i)
""",
    ),
    rewritten=(
        Rewritten(
            """
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, optimizer, accumulation_steps):
    model = DistributedDataParallel(model)
    for i, batch in enumerate(batches):
        loss = model(batch) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
            """
from torch.nn.parallel import DistributedDataParallel


def train(model, batches, optimizer, accumulation_steps):
    model = DistributedDataParallel(model)
    for i, batch in enumerate(batches):
        loss = model(batch) / accumulation_steps
        loss.backward()
        if (i + 1) % accumulation_steps == 0:
            optimizer.step()
            optimizer.zero_grad()
""",
        ),
        Rewritten(
            """
from torch.distributed.fsdp import fully_shard


class Engine:
    def train_step(self, batches):
        for _ in range(self.args.gradient_accumulation_steps):
            loss = self.model(next(batches))
            loss.backward()
        return loss
""",
            """
from torch.distributed.fsdp import fully_shard


class Engine:
    def train_step(self, batches):
        for _ in range(self.args.gradient_accumulation_steps):
            loss = self.model(next(batches))
            loss.backward()
        return loss
""",
        ),
    ),
)
