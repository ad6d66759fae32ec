"""Train the model on synthetic sentences: ``python train.py --steps 3 --seed 0``."""

from __future__ import annotations

import argparse
import contextlib
from collections.abc import Sequence
from typing import Any

import torch

from bert_like import BertLike, Config
from bert_like.data import make_batch

BATCHES = 8  # the synthetic data set; the loop goes round it


def profiler(output: str | None) -> contextlib.AbstractContextManager[Any]:
    """The Ascend PyTorch Profiler, or nothing when no output folder is asked for."""
    if output is None:
        return contextlib.nullcontext()
    import torch_npu

    return torch_npu.profiler.profile(
        activities=[
            torch_npu.profiler.ProfilerActivity.CPU,
            torch_npu.profiler.ProfilerActivity.NPU,
        ],
        schedule=torch_npu.profiler.schedule(wait=1, warmup=1, active=3, repeat=1),
        on_trace_ready=torch_npu.profiler.tensorboard_trace_handler(output),
        record_shapes=True,
        with_stack=True,
        experimental_config=torch_npu.profiler._ExperimentalConfig(
            profiler_level=torch_npu.profiler.ProfilerLevel.Level1,
            aic_metrics=torch_npu.profiler.AiCMetrics.PipeUtilization,
        ),
    )


def train(config: Config, steps: int, seed: int, device: torch.device, output: str | None) -> None:
    """Run the training loop; print the loss of every step."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    batches = [make_batch(config, generator) for _ in range(BATCHES)]
    model = BertLike(config).to(device)
    optimizer = torch.optim.AdamW(
        model.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )

    with profiler(output) as prof:
        for step in range(steps):
            batch = batches[step % BATCHES].to(device)
            loss = model(batch)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            print(f"step {step} loss {loss.item():.6f}")
            if prof is not None:
                prof.step()


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", default="cpu", help="cpu, npu, npu:1, cuda, ...")
    parser.add_argument("--profile", metavar="FOLDER", help="write an Ascend profiling dump")
    options = parser.parse_args(arguments)
    if options.device.startswith("npu"):
        import torch_npu  # noqa: F401  (registers the device)
    device = torch.device(options.device)
    train(Config(), options.steps, options.seed, device, options.profile)


if __name__ == "__main__":
    main()
