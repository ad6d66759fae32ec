"""What computes on the host is left out: drivers of other processes, files, arrays."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scanned_code import places, scanned

if TYPE_CHECKING:
    from pathlib import Path


DRIVER = """
import ray
import torch


class {cls}:
    def reward(self, x: torch.Tensor):
        x[x > 0] = 0
        return x

    def fit(self, refs):
        {step}
"""


@pytest.mark.parametrize(
    ("step", "shown"),
    [
        ("self.reward(ray.get(refs))", False),
        ("ray.get(refs), self.loss(refs).backward()", True),  # an actor that trains
        ("with torch.no_grad():\n            ray.get(refs), self.model(refs)", True),
        ("self.reward(refs.get())", True),
    ],
)
def test_who_has_other_processes_compute_is_on_the_host(
    tmp_path: Path, step: str, *, shown: bool
) -> None:
    text = DRIVER.format(cls="Trainer", step=step)
    assert bool(places(scanned(tmp_path, {"trainer.py": text}))) is shown
    as_module = DRIVER.format(cls="Trainer(torch.nn.Module)", step=step)
    assert places(scanned(tmp_path, {"trainer.py": as_module}))


@pytest.mark.parametrize(
    ("asked", "shown"),
    [("num_cpus=10", False), ("num_cpus=1, num_gpus=1", True), ("num_cpus=1, **asked", True)],
)
def test_an_actor_that_asks_for_cores_alone_is_on_the_host(
    tmp_path: Path, asked: str, *, shown: bool
) -> None:
    text = DRIVER.format(cls="Dock", step="self.loss(refs)")
    text = text.replace("class Dock", f"@ray.remote({asked})\nclass Dock")
    assert bool(places(scanned(tmp_path, {"dock.py": text}))) is shown


@pytest.mark.parametrize(
    ("above", "shown"),
    [
        ("@ray.remote(num_cpus=10)\nclass Dock:\n    n = 1", False),
        ("@ray.remote\ndef advantages(dock):\n    return compute_mask(dock.get())", False),
        ("@ray.remote\ndef work(x):\n    with torch.no_grad():\n        return x.mean()", False),
        ("@ray.remote\nclass Worker:\n    n = 1", True),  # which options(num_gpus=1) may start
        ("@ray.remote(num_gpus=1)\ndef work(dock):\n    return compute_mask(dock.get())", True),
        ("@ray.remote\ndef work(dock):\n    return compute_mask(dock.get().to('npu'))", True),
        (
            "@ray.remote\ndef work(n):\n    return n\n\n\nclass Net(torch.nn.Module):\n    n = 1",
            True,
        ),
        ("def advantages(dock):\n    return compute_mask(dock.get())", True),
    ],
)
def test_what_stands_beside_actors_without_a_device_is_on_the_host(
    tmp_path: Path, above: str, *, shown: bool
) -> None:
    text = f"""
import ray
import torch


{above}


def compute_mask(x: torch.Tensor) -> torch.Tensor:
    done = x.cumsum(1)
    return torch.where(done > 0, torch.tensor(0, device=done.device), done)
"""
    assert bool(places(scanned(tmp_path, {"trainer.py": text}))) is shown


@pytest.mark.parametrize(
    ("given", "shown"), [("DataProto", False), ('"DataProto"', False), ("Batch", True)]
)
def test_what_a_driver_is_sent_is_on_the_host(tmp_path: Path, given: str, *, shown: bool) -> None:
    text = f"""
import torch


def compute_mask(data: {given}) -> torch.Tensor:
    done = data.batch["done"].cumsum(1)
    return torch.where(done > 0, torch.tensor(0, device=done.device), done)
"""
    assert bool(places(scanned(tmp_path, {"trainer.py": text}))) is shown


@pytest.mark.parametrize("caller", ["data_collator", "forward"])
def test_what_only_a_collator_calls_is_on_the_host(tmp_path: Path, caller: str) -> None:
    text = f"""
import torch


class Template(Base):
    @staticmethod
    def _build_attention_mask(labels: torch.Tensor, valid: torch.Tensor):
        labels[valid] = 0
        return torch.where(valid, torch.tensor(0, device=labels.device), labels)

    def {caller}(self, batch):
        return self._build_attention_mask(batch["labels"], batch["valid"])
"""
    assert bool(places(scanned(tmp_path, {"t.py": text}))) is (caller == "forward")


@pytest.mark.parametrize(("written", "rewritten"), [("json.dump(s, f)", False), ("g(s, f)", True)])
def test_numbers_for_a_file_stay_numbers(tmp_path: Path, written: str, *, rewritten: bool) -> None:
    text = (
        "import json\nimport torch\n\n\ndef train_step(x: torch.Tensor):\n"
        "    return {'mean': x.mean().item(), 'std': x.std().item()}\n\n\n"
        f"def keep(s, f):\n    {written}\n"
    )
    found = scanned(tmp_path, {"steps.py": text}).found
    assert found
    texts = [one.site.rewrite.text for one in found if one.site.rewrite is not None]
    assert any("tolist()" not in text for text in texts) is rewritten, texts


@pytest.mark.parametrize(("device", "shown"), [("", False), (", device=x.device", True)])
def test_what_is_compared_with_the_host_is_on_the_host(
    tmp_path: Path,
    device: str,
    shown: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    text = f"""
import torch


def sample(x: torch.Tensor, draw, n: int):
    places = torch.arange(n{device}).unsqueeze(-1)
    others = draw(n)
    others[others >= places] += 1
    return x[others]
"""
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("def metric(x: torch.Tensor):\n    x = x.cpu()\n    x[x > 0] = 0\n    return x", False),
        (
            (
                "def metric(x: torch.Tensor, y):\n    z = (y - x.cpu())[1:]\n"
                "    z[z > 0] = 0\n    return z"
            ),
            False,
        ),
        (
            (
                "def repeat(x: torch.Tensor, n):\n    x = x[0].cpu()[1:-1]\n    parts = []\n"
                "    for i in range(len(n)):\n        parts.append(x[i].repeat(n[i], 1))\n"
                "    return torch.cat(parts, dim=0)"
            ),
            False,
        ),
        (
            (
                "class ScaleupProposer:\n    def propose(self, x: torch.Tensor):\n"
                "        if x.sum() > 0:\n            return x * 2\n        return x"
            ),
            False,
        ),
        (
            (
                "class DraftProposer:\n    def propose(self, x: torch.Tensor):\n"
                "        self.place = x.device\n"
                "        if x.sum() > 0:\n            return x * 2\n        return x"
            ),
            True,
        ),
        ("def clean_cpu(x: torch.Tensor):\n    x[x > 0] = 0\n    return x", False),
        ("def clean_gpu(x: torch.Tensor):\n    x[x > 0] = 0\n    return x", True),
        *[
            (
                (
                    f"class Base({base}):\n    pass\n\n\nclass Pairs(Base):\n"
                    "    def pick(self, x: torch.Tensor):\n        x[x > 0] = 0\n        return x"
                ),
                shown,
            )
            for base, shown in (("data.Dataset[int]", False), ("nn.Module", True))
        ],
        *[
            (
                (
                    "def forward(self, waves, n: torch.Tensor):\n    out = []\n"
                    "    for i in range(len(waves)):\n"
                    f"        out.append(self.mel(waves[i][: n[i]]{read}))\n    return out"
                ),
                shown,
            )
            for read, shown in ((".numpy()", False), ("", True))
        ],
        ("def f(items):\n    x = torch.tensor(items)\n    x[x > 0] = 0\n    return x", False),
        (
            (
                "def f(items, y):\n    x = torch.tensor(items, device=y.device)\n"
                "    x[x > 0] = 0\n    return x"
            ),
            True,
        ),
        ("def forward(self, n):\n    x = torch.zeros(n)\n    x[x > 0] = 0\n    return x", True),
        (
            (
                "class TextProcessor:\n    def __call__(self, x: torch.Tensor):\n"
                "        x[x > 0] = 0\n        return x"
            ),
            False,
        ),
        (
            (
                "class AttnProcessor:\n    def __call__(self, x: torch.Tensor):\n"
                "        x[x > 0] = 0\n        return x"
            ),
            True,
        ),
        (
            (
                "class DataPreprocessor(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
                "        x[x > 0] = 0\n        return x"
            ),
            True,
        ),
        (
            (
                "class Queue:\n    def __init__(self, n):\n        self.age = torch.zeros(n)\n\n"
                "    def turn(self, i):\n        self.age = self.age[i]\n"
                "        self.age[self.age < 0] = 0"
            ),
            False,
        ),
        (
            (
                "class Queue:\n    def __init__(self, n, x):\n        self.age = x.new_zeros(n)\n\n"
                "    def turn(self, i):\n        self.age[self.age < 0] = 0"
            ),
            True,
        ),
        (
            (
                "def step(x: torch.Tensor):\n    if hasattr(torch.nn.functional, 'relu'):\n"
                "        return x\n    else:\n        x[x < 0] = 0\n        return x"
            ),
            False,
        ),
        (
            (
                "def table(n, base):\n    x = 1.0 / base ** (torch.arange(n)[1:].float() / n)\n"
                "    x = torch.outer(n, x).cos()\n    x[x > 0] = 0\n    return x"
            ),
            False,
        ),
        (
            (
                "def table(n, x: torch.Tensor):\n    x = x * torch.arange(n, device=x.device)\n"
                "    x[x > 0] = 0\n    return x"
            ),
            True,
        ),
        ("import cv2\n\n\ndef step(n):\n    x = cv2.blur(n)\n    x[x > 4] = 255", False),
        ("class A:\n    def validation_step(self, x: torch.Tensor):\n        x[x > 0] = 0", False),
        ("@lru_cache(2)\ndef table(x: torch.Tensor):\n    x[x > 0] = 0\n    return x", False),
        (
            (
                "class A:\n    def mask(self, x: torch.Tensor):\n"
                "        if self.kept is None:\n            x[x > 0] = 0\n"
                "            self.kept = x\n        return self.kept"
            ),
            False,
        ),
    ],
)
def test_tensors_of_the_host_are_left_out(tmp_path: Path, code: str, *, shown: bool) -> None:
    text = f"import torch\nfrom torch import nn\n\n\n{code}\n"
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("head", "shown"), [("", True), ("import ray\n\n\n", False)])
def test_what_processes_send_each_other_stays_a_number(
    tmp_path: Path, head: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef loss_func(x: torch.Tensor):\n    loss = x.mean()\n"
        "    stats = {'loss': loss.item()}\n    return loss, stats\n"
    )
    files = {"loss.py": text, "workers.py": f"{head}def work():\n    pass\n"}
    assert bool(places(scanned(tmp_path, files))) is shown


@pytest.mark.parametrize(("caller", "shown"), [("test1", False), ("forward", True)])
def test_what_only_tests_of_a_module_call_is_left_out(
    tmp_path: Path, caller: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef unpack(x: torch.Tensor):\n"
        "    return torch.zeros(x.shape).to(x.device)\n\n\n"
        f"def {caller}():\n    return unpack(torch.ones(3))\n"
    )
    assert bool(places(scanned(tmp_path, {"kernels.py": text}))) is shown


@pytest.mark.parametrize(
    ("decorator", "shown"), [("@triton.jit", False), ("@torch.jit.script", True)]
)
def test_what_says_in_torch_what_a_kernel_computes_is_left_out(
    tmp_path: Path, decorator: str, *, shown: bool
) -> None:
    text = (
        f"import torch\nimport triton\n\n\n{decorator}\ndef _kernel(x):\n    return x\n\n\n"
        "def torch_attention(x: torch.Tensor):\n    return torch.zeros(x.shape).to(x.device)\n"
    )
    assert bool(places(scanned(tmp_path, {"kernels.py": text}))) is shown
