"""The host waits for all that the device does, where one stream, or none, would be enough.

What: ``torch.npu.synchronize()`` or ``torch.cuda.synchronize()`` in code that runs in every step and
takes no times, or reads a loss before it looks at the clock; ``empty_cache()`` there.

Why it is slow on the NPU: the host waits until every stream is empty, those of the communication
and of copies included, and launches nothing in the meantime.

Safety: what the default stream computes is in order without any wait, and reading a value waits for
it anyway; so the line goes where the function names no other stream, no copy that nobody waits for
and no queue (``in-order``). Elsewhere, where the host needs what the current stream has done (a pinned
tensor that is filled again), waiting for that stream is enough (``one-stream``). No run of the code shows for
what a host has waited, so the values are compared and the change is still called unverified.

References: torch.npu.synchronize and torch.npu.Stream.synchronize of Ascend Extension for PyTorch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Condition, Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    from torch import Tensor


def all_streams(x: Tensor) -> Tensor:
    """Compute, then wait for the device."""
    return x * 2 + 1


def one_stream(x: Tensor) -> Tensor:
    """Compute, then wait for the stream: the same values."""
    return x * 2 + 1


def in_order(x: Tensor) -> Tensor:
    """Compute, then wait for the device: what comes behind is in order anyway."""
    return x * 2 + 1


def no_wait(x: Tensor) -> Tensor:
    """Compute: the same values."""
    return x * 2 + 1


def inputs(draw: Draw) -> dict[str, Any]:
    """Return a tensor."""
    import torch

    return {"x": draw.floats(draw.integer(1, 4), dtype=torch.float32)}


ONE_STREAM = Condition(
    "one-stream",
    "what the host waits for is done by the current stream",
    lambda _site: None,
)
IN_ORDER = Condition(
    "in-order",
    "nobody needs the wait: no copy to the host that is not waited for, no other process or stream",
    lambda _site: None,
)

RULE = Substitution(
    id="NPU320",
    name="device-synchronised",
    summary="the host waits for the whole device without need",
    table="affinity",
    forms=(
        Form(all_streams, one_stream, inputs, (ONE_STREAM,)),
        Form(in_order, no_wait, inputs, (IN_ORDER,)),
    ),
    search="device-waits",
    unseen="a run shows values, not what the host has waited for",
    replaces=(),
    becomes=(),
    passes=(0, 0),
    requires="torch_npu>=2.1",
    valid=(
        # somebody is told that it is done
        """
def step(self, optimizers):
    self.begin_to_update()
    for optimizer in optimizers:
        optimizer.step()
    torch.cuda.synchronize()
    self.end_to_update()
""",
        # a switch has it timed
        """
def train(args, model, optimizer, loader, times):
    for i, data in enumerate(loader):
        optimizer.zero_grad()
        if args.time_exp:
            torch.cuda.synchronize()
            begin = time.time()
        loss = model(data).sum()
        loss.backward()
        optimizer.step()
        if args.time_exp:
            torch.cuda.synchronize()
            times.append(time.time() - begin)
""",
        # between the stages of a training
        """
def train(net, optimizer, stages):
    for stage in stages:
        loader = stage.make()
        while stage.goes_on():
            for data in loader:
                net(data).sum().backward()
                optimizer.step()
        torch.cuda.empty_cache()
        stage.save(net.state_dict())
""",
        # times are taken
        """
def train_step(model, x: torch.Tensor):
    torch.cuda.synchronize()
    begin = time.perf_counter()
    y = model(x)
    torch.cuda.synchronize()
    return y, time.perf_counter() - begin
""",
        # a clock, or a branch, comes before what is read
        """
def train_epoch(model, batches, optimizer, adapt, timer):
    for step, batch in enumerate(batches):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        timer.update(time.time())
        adapt(loss.item())
""",
        """
def train_epoch(model, batches, optimizer, adapt, timer):
    for step, batch in enumerate(batches):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        if step % 50 == 0:
            adapt(loss.item())
        timer.update(time.time())
""",
        """
def train_epoch(model, batches, optimizer, adapt, timer):
    for step, batch in enumerate(batches):
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        adapt(loss.item() if step % 50 == 0 else 0.0)
        timer.update(time.time())
""",
        # now and then, and before a graph is recorded
        """
def train_step(model, x: torch.Tensor, step: int):
    if step % 100 == 0:
        torch.cuda.synchronize()
    if model.captures:
        torch.cuda.synchronize()
        with torch.cuda.graph(model.graph):
            model(x)
    return model(x)
""",
        # somebody asks for it
        """
def train_step(model, x: torch.Tensor, config):
    y = model(x)
    if config.batch_p2p_sync:
        torch.cuda.synchronize()
    return y
""",
        """
def train_step(model, batches, args):
    for batch in batches:
        model(batch).backward()
        if args.empty_unused_memory_level > 0:
            torch.cuda.empty_cache()
""",
        # another part of the program needs the memory
        """
def train_step(manager, model, batch):
    loss = model(batch)
    loss.backward()
    manager.exit_train_mode()
    torch.cuda.empty_cache()
    return loss
""",
        # one stream
        """
def train_step(model, x: torch.Tensor):
    y = model(x)
    torch.cuda.current_stream().synchronize()
    return y
""",
        # runs once
        """
def main(model, x: torch.Tensor):
    y = model(x)
    torch.cuda.synchronize()
    return y
""",
    ),
    rewritten=(
        Rewritten(
            """
def train_step(model, x: torch.Tensor, optimizer):
    loss = model(x).mean()
    loss.backward()

    torch.cuda.synchronize()

    optimizer.step()
    return loss
""",
            """
def train_step(model, x: torch.Tensor, optimizer):
    loss = model(x).mean()
    loss.backward()

    optimizer.step()
    return loss
""",
        ),
        # the loss is read before the clock
        Rewritten(
            """
def train_epoch(model, batches, optimizer, adapt, timer):
    for batch in batches:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        torch.cuda.synchronize()
        adapt(loss.item())
        timer.update(time.time())
""",
            """
def train_epoch(model, batches, optimizer, adapt, timer):
    for batch in batches:
        loss = model(batch)
        loss.backward()
        optimizer.step()
        adapt(loss.item())
        timer.update(time.time())
""",
        ),
        # a setting asks for it
        Rewritten(
            """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor):
        if self.config.waits_for_device:
            torch.npu.synchronize()
        return self.net(x)
""",
            """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor):
        if self.config.waits_for_device:
            torch.npu.current_stream().synchronize()
        return self.net(x)
""",
        ),
        # a copy that nobody waits for
        Rewritten(
            """
def train_step(model, x: torch.Tensor, held: torch.Tensor):
    held.copy_(model(x), non_blocking=True)
    torch.cuda.synchronize()
    return held.sum()
""",
            """
def train_step(model, x: torch.Tensor, held: torch.Tensor):
    held.copy_(model(x), non_blocking=True)
    torch.cuda.current_stream().synchronize()
    return held.sum()
""",
        ),
    ),
)
