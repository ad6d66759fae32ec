"""What a function that trains does between its steps, or before them, is left out."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scanned_code import places, scanned

if TYPE_CHECKING:
    from pathlib import Path

FILL = "y = torch.zeros(4, 4).to(x.device); model.keep(y)"
LOOPS = """
import torch


def train(model, loader, env, optimizer, scheduler, x: torch.Tensor):
    {before}
    for epoch in range(10):
        {in_epoch}
        for step, batch in enumerate(loader):
            {in_step}
            loss = model(batch).mean()
            {trains}
            {seldom}
        {end_of_epoch}
    {after}
"""
PLACES = ("before", "in_epoch", "in_step", "seldom", "end_of_epoch", "after", "trains")


def told(tmp_path: Path, **code: str) -> bool:
    given = dict.fromkeys(PLACES, "pass") | {"trains": "loss.backward(); optimizer.step()"} | code
    return bool(places(scanned(tmp_path, {"fit.py": LOOPS.format(**given)})))


@pytest.mark.parametrize(
    ("place", "code", "shown"),
    [
        ("in_step", FILL, True),
        ("in_step", f"for one in batch: {FILL}", True),  # a loop inside a step
        ("in_epoch", FILL, False),
        ("in_epoch", f"for part in loader.parts: {FILL}", False),
        ("end_of_epoch", f"scheduler.step(); {FILL}", False),  # no step of an optimizer
        ("in_epoch", f"for _ in range(64): {FILL}; x = env.step(y)", True),  # of an agent
        ("in_epoch", f"for _ in range(64): {FILL}; x = model.generate(y)", True),
        ("seldom", f"if step % 100 == 0: {FILL}", False),
        ("seldom", f"if (step + 1) % 4 == 0: {FILL}; optimizer.step()", True),  # accumulates
        ("seldom", f"if batch.shape[0] % 8 == 0: {FILL}", True),  # about no step
        ("seldom", f"if not step % args.every: {FILL}", False),
        ("seldom", f"if step % 100 != 0: {FILL}", True),
        ("in_step", "log(mean=x.mean().item())", True),
        ("in_step", "if eval_model is not None: log(mean=x.mean().item())", False),
        ("seldom", f"if n != len(batch): log.warning('some are lost'); {FILL}", False),
        ("seldom", f"if kernel is None: log.warning('slow'); {FILL}", True),
        ("seldom", f"if kind == 'eager': log.warning('slow'); {FILL}", True),
        ("seldom", f"if step % 2 == 0: {FILL}", True),
        ("seldom", f"if args.debug: {FILL}", False),
        ("seldom", f"if args.debug or x.training: {FILL}", True),
    ],
)
def test_a_line_between_steps_is_left_out(
    tmp_path: Path, place: str, code: str, *, shown: bool
) -> None:
    assert told(tmp_path, **{place: code}) is shown


@pytest.mark.parametrize(
    ("trains", "shown"),
    [
        ("accelerator.backward(loss)", False),
        ("self.train_step(batch)", False),
        ("self.look_at(batch)", True),  # whether this trains nothing says
    ],
)
def test_a_loop_trains_if_it_says_so(tmp_path: Path, trains: str, *, shown: bool) -> None:
    assert told(tmp_path, trains=trains, in_epoch=FILL) is shown


def test_what_calls_a_loop_over_epochs_runs_once_in_each(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef train(model, loader, x: torch.Tensor):\n    for _ in range(10):\n"
        f"        {FILL}\n        {{}}(model, loader)\n"
    )
    for name, shown in (("train_one_epoch", False), ("train", False), ("look", True)):
        assert bool(places(scanned(tmp_path, {"fit.py": text.format(name)}))) is shown


@pytest.mark.parametrize(("function", "shown"), [("train_layers", False), ("forward", True)])
def test_some_of_many_layers_are_no_steps(tmp_path: Path, function: str, *, shown: bool) -> None:
    text = (
        f"import torch\n\n\ndef {function}(layers, x: torch.Tensor):\n"
        f"    for i, layer in enumerate(layers):\n        if i % 40 == 0:\n            {FILL}\n"
    )
    assert bool(places(scanned(tmp_path, {"fit.py": text}))) is shown


@pytest.mark.parametrize("around", ["for fold in range(5)", "if True"])
def test_an_optimizer_for_all_steps_is_told(tmp_path: Path, around: str) -> None:
    text = (
        f"import torch\n\n\ndef main(make, loader):\n    {around}:\n        model = make()\n"
        "        optimizer = torch.optim.AdamW(model.parameters())\n"
        "        for batch in loader:\n            model(batch).mean().backward()\n"
        "            optimizer.step()\n"
    )
    assert places(scanned(tmp_path, {"fit.py": text})) == ["fit.py:7"]


@pytest.mark.parametrize(
    ("values", "shown"),
    [("torch.randn(2, 4).cuda()", False), ("next(loader) + torch.randn(2, 4).cuda()", True)],
)
def test_what_a_module_tries_itself_on_is_no_training(
    tmp_path: Path, values: str, *, shown: bool
) -> None:
    text = (
        'import torch\n\nif __name__ == "__main__":\n    net = torch.nn.Linear(4, 4).cuda()\n'
        f"    for step in range(9):\n        x = {values}\n        net(x).sum().backward()\n"
    )
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is shown


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("Runner.exit", False),
        ("Runner.shutdown_workers", False),
        ("Runner.step", True),
        ("EMAModel.store", False),
        ("LitEma.copy_to", False),
        ("EMAModel.step", True),
        ("RolloutBuffer.store", True),
    ],
)
def test_ends_and_averages_put_aside_are_no_steps(
    tmp_path: Path, method: str, *, shown: bool
) -> None:
    cls, _, name = method.rpartition(".")
    text = (
        f"import torch\n\n\nclass {cls}:\n    def {name}(self, model, x: torch.Tensor):\n"
        f"        {FILL}\n"
    )
    assert bool(places(scanned(tmp_path, {"run.py": text}))) is shown


@pytest.mark.parametrize(
    ("test", "kept", "told"),
    [
        ("n not in self.tables", "self.tables[n] = x", False),
        ("n > self.longest", "self.longest = n", False),
        ("n not in self.tables", "self.other[n] = x", True),
        ("self.count < n", "self.count = self.count + 1", True),  # each step counts up
    ],
)
@pytest.mark.parametrize("called", [False, True])
def test_what_is_kept_until_another_size_comes_is_no_step(
    tmp_path: Path, test: str, kept: str, *, told: bool, called: bool
) -> None:
    fill = f"x[x > 0] = 0\n{' ' * (8 + 4 * (not called))}{kept}"
    inner = "self.fill(x, n)" if called else fill
    text = f"""
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x: torch.Tensor, n: int):
        if {test}:
            {inner}
        return x

    def fill(self, x: torch.Tensor, n: int):
        {fill if called else "pass"}
"""
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is told


@pytest.mark.parametrize(
    ("name", "told"),
    [("step", True), ("save_models", False), ("merge_to_model", False)],
)
def test_a_saver_and_what_it_defines_for_itself_are_no_step(
    tmp_path: Path, name: str, *, told: bool
) -> None:
    text = f"""
import torch


def {name}(y: torch.Tensor):
    y[y < 0] = 0
    def fill(x: torch.Tensor):
        x[x > 0] = 0

    return fill(y)
"""
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is told


@pytest.mark.parametrize("name", ["get_weighted_text_embeddings", "_get_prompt_embeds"])
def test_the_prompt_is_read_once_a_call(tmp_path: Path, name: str) -> None:
    text = "def compute_loss(x: torch.Tensor):\n    n = x.max().item()\n    return x[:n]\n"
    text = f"import torch\n\n\n{text}"
    files = {"a.py": text.replace("compute_loss", name), "b.py": text}
    assert places(scanned(tmp_path, files)) == ["b.py:5"]


@pytest.mark.parametrize(
    ("learns", "told"),
    [
        ("pass", True),
        ("loss.backward()", False),
        ("loss.backward()\n\n\ndef generate(x):\n    pass", True),
    ],
)
def test_an_operator_without_gradients_is_not_told_to_who_trains(
    tmp_path: Path, learns: str, *, told: bool
) -> None:
    router = """
import torch
from torch import nn


class Router(nn.Module):
    def forward(self, x: torch.Tensor):
        scores = torch.softmax(self.gate(x), dim=-1, dtype=torch.float32)
        weights, chosen = torch.topk(scores, k=8, dim=-1)
        return weights, chosen
"""
    files = {"router.py": router, "train.py": f"def step(loss):\n    {learns}\n"}
    found = scanned(tmp_path, files).report.findings
    assert ("NPU173" in {finding.rule for finding in found}) is told


@pytest.mark.parametrize(
    ("learns", "told"),
    [
        ("pass", True),
        ("loss.backward()", False),
        ("loss.backward()\n\n\ndef decode_one(x):\n    pass", True),
    ],
)
def test_a_cache_that_grows_is_not_told_to_who_only_trains(
    tmp_path: Path, learns: str, *, told: bool
) -> None:
    attention = """
import torch
from torch import nn


class Attention(nn.Module):
    def forward(self, x: torch.Tensor, past_key_value=None):
        q, k, v = self.q(x), self.k(x), self.v(x)
        if past_key_value is not None:
            k = torch.cat([past_key_value[0], k], dim=2)
            v = torch.cat([past_key_value[1], v], dim=2)
        past_key_value = (k, v)
        return torch.softmax(q @ k.transpose(-1, -2), -1) @ v, past_key_value
"""
    files = {"attention.py": attention, "train.py": f"def step(loss):\n    {learns}\n"}
    found = scanned(tmp_path, files).report.findings
    assert ("NPU323" in {finding.rule for finding in found}) is told


MASKED = "x[x > 0] = 0"
READ = "return x.cpu().numpy()"


@pytest.mark.parametrize(
    ("head", "lines", "shown"),
    [
        # a policy that a simulator of the host asks, and a network
        ("def select_action(self, obs, x: torch.Tensor)", [MASKED, READ], False),
        ("def select_action(self, obs, x: torch.Tensor)", [MASKED, "return x"], True),
        ("def predict(self, x: torch.Tensor)", [MASKED, READ], True),
        # memory that is given to a rollout
        ("def resume_memory(self, x: torch.Tensor)", [MASKED, "return x"], False),
        ("def resume(self, x: torch.Tensor)", [MASKED, "return x"], True),
        # over the data, and for one batch
        ("def evaluate(self, x: torch.Tensor)", [f"for _ in self.data: {MASKED}"], False),
        ("def evaluate_actions(self, x: torch.Tensor)", [MASKED, "return x"], True),
        # made without a device, and handed out so
        ("def draw(self, n)", ["x = torch.rand(n, n)", MASKED, "return x"], False),
        ("def draw(self, n, d)", ["x = torch.rand(n, n, device=d)", MASKED, "return x"], True),
        ("def draw(self, y: torch.Tensor)", ["x = torch.rand_like(y)", MASKED, "return x"], True),
    ],
)
def test_what_runs_between_the_steps_or_on_the_host(
    tmp_path: Path, head: str, lines: list[str], *, shown: bool
) -> None:
    body = "\n        ".join(lines)
    text = f"import torch\n\n\nclass Agent:\n    {head}:\n        {body}\n"
    assert bool(places(scanned(tmp_path, {"agent.py": text}))) is shown


@pytest.mark.parametrize(
    ("name", "other", "shown"),
    [("forward_gpu", "npu", False), ("forward_gpu", "", True), ("move_to_gpu", "npu", True)],
)
def test_what_a_program_that_knows_npus_calls_elsewhere(
    tmp_path: Path, name: str, other: str, *, shown: bool
) -> None:
    text = (
        f"import torch\n\n\ndef {name}(x: torch.Tensor):\n    {MASKED}\n    return x  # {other}\n"
    )
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is shown


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Net.embed", True),
        ("Net.init_codes", False),  # written, but for one launch of a whole training
        ("Net.merge_embeddings", True),  # which ``forward`` calls for each batch
        ("Net.merge_lora", False),
        ("Net.weight_loader_a", False),
        ("convert_boxes", True),
        ("convert_weights", False),
        ("load_balancing", True),
        ("load_codes", False),
    ],
)
def test_what_is_built_once_is_no_step(tmp_path: Path, name: str, *, shown: bool) -> None:
    owner, _, function = name.rpartition(".")
    own = "self, " if owner else ""
    lines = [
        f"def {function}({own}x: torch.Tensor):",
        "    x = x.masked_fill(x < 0, 1).unsqueeze(0)",
        "    x[x > 0] = 0",
        "    return x",
    ]
    if owner:
        lines += ["", "def forward(self, x):", f"    return self.{function}(x)"]
        lines = [f"class {owner}(torch.nn.Module):", *(f"    {line}" for line in lines)]
    text = "\n".join(["import torch", "", "", *lines, ""])
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown
