"""What is left out because of what is made once, learned, or chosen elsewhere in a program."""

from __future__ import annotations

import ast
from typing import TYPE_CHECKING

import pytest
from scanned_code import places, scanned

from npufix.advisor.project import callers
from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.graph.modules.scopes import scopes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

ROWS = "import torch\n\n\ndef step(x: torch.Tensor):\n    {}\n"


@pytest.mark.parametrize(
    ("head", "other", "shown"),
    [
        ("", "", True),
        ("", "loss.backward()\n", False),
        ("@torch.no_grad()\n", "loss.backward()\n", True),
    ],
)
def test_a_gather_that_gradients_flow_into_is_left_alone(
    tmp_path: Path, head: str, other: str, *, shown: bool
) -> None:
    text = ROWS.format("return x.gather(1, x.argmax(1).unsqueeze(1)).squeeze(1)")
    files = {"net.py": text.replace("def ", f"{head}def "), "train.py": other}
    assert bool(places(scanned(tmp_path, files))) is shown


KEPT = """
import torch
from torch import nn


class Net(nn.Module):
    def grow(self, x: torch.Tensor):
        {}
        self.table = torch.zeros(x.shape).to(x.device)
        return None
"""


@pytest.mark.parametrize(
    ("before", "shown"),
    [
        ("if self.table.size(1) >= x.size(1):\n            return", False),
        ("if x.size(1) >= 9:\n            return", True),
    ],
)
def test_what_is_made_anew_only_where_it_does_not_suffice(
    tmp_path: Path, before: str, *, shown: bool
) -> None:
    assert bool(places(scanned(tmp_path, {"a.py": KEPT.format(before)}))) is shown


@pytest.mark.parametrize("asked", ["not hasattr(self, 'queue')", "x.ndim == 2"])
def test_what_an_object_lacks_is_made_once(tmp_path: Path, asked: str) -> None:
    made = "self.queue = torch.zeros(9).to(x.device)"
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def push(self, x: torch.Tensor):\n        if {asked}:\n            {made}\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is ("ndim" in asked)


@pytest.mark.parametrize(("scaler", "shown"), [("GradScaler()", False), ("Scale()", True)])
def test_an_optimizer_made_for_a_loop_that_scales_gradients_is_left_alone(
    tmp_path: Path, scaler: str, *, shown: bool
) -> None:
    files = {
        "make.py": "import torch\n\n\ndef smart_optimizer(model, rate):\n"
        "    return torch.optim.AdamW(model.parameters(), lr=rate)\n",
        "run.py": "from make import smart_optimizer\n\n\ndef train(model, batches):\n"
        f"    scaler, optimizer = {scaler}, smart_optimizer(model, 0.1)\n"
        "    for batch in batches:\n        scaler.scale(model(batch)).backward()\n"
        "        scaler.step(optimizer)\n",
    }
    assert any("make.py" in place for place in places(scanned(tmp_path, files))) is shown


def test_a_model_that_is_moved_away_is_no_tensor(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Ensemble(nn.Module):\n"
        "    def forward(self, x: torch.Tensor):\n        found = 0\n"
        "        for model in self.models:\n            found += model.to(x.device)(x)\n"
        "            model.cpu()\n        return found\n"
    )
    assert places(scanned(tmp_path, {"a.py": text})) == []


@pytest.mark.parametrize(("given", "shown"), [("ids", True), ("tokenizer", False)])
def test_who_gets_a_tokenizer_runs_once_a_text(tmp_path: Path, given: str, *, shown: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        f"        return x\n\n    def decode(self, lengths: torch.Tensor, {given}):\n"
        f"        return {given}, lengths.sum().item()\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("decorator", "shown"), [("", True), ('@norms("torch")\n', False)])
def test_a_class_that_is_chosen_by_name_beside_the_fused_one(
    tmp_path: Path, decorator: str, *, shown: bool
) -> None:
    norm = (
        "import torch\nfrom torch import nn\nfrom lib import norms\n\n\n{}class {}(nn.Module):\n"
        "    def __init__(self, n):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(n))\n\n"
        "    def forward(self, x: torch.Tensor):\n"
        "        return {}\n"
    )
    written = "self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))"
    fused = "torch_npu.npu_rms_norm(x, self.weight, 1e-6)[0]"
    files = {
        "plain.py": norm.format(decorator, "Norm", written),
        "ascend.py": norm.format('@norms("npu")\n', "Other", fused),
    }
    assert bool(places(scanned(tmp_path, files))) is shown


@pytest.mark.parametrize(
    ("before", "params", "shown"),
    [
        ("pass", "net.parameters()", True),
        ("return apex.optimizers.NpuFusedAdam(net.parameters())", "net.parameters()", False),
        ("pass", "[torch.nn.Parameter(torch.zeros(1))]", False),
    ],
)
def test_an_optimizer_beside_that_of_an_npu_is_chosen(
    tmp_path: Path, before: str, params: str, *, shown: bool
) -> None:
    text = (
        "import apex\nimport torch\n\n\ndef build(net, slow):\n"
        f"    if not slow:\n        {before}\n"
        f"    return torch.optim.AdamW({params}, lr=0.1)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("other", "shown"), [("class NpuNorm", False), ("class Norm2NPU", True), ("class Other", True),
     ('put("Norm", "forward")\n\n\nclass Other', False)],
)  # fmt: skip
def test_a_class_that_gives_way_to_another_one_on_an_npu(
    tmp_path: Path, other: str, *, shown: bool
) -> None:
    head = "import torch\nfrom torch import nn\n\n\n"
    norm = (
        "(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(n))\n\n"
        "    def forward(self, x: torch.Tensor):\n        return "
    )
    written = "self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))\n"
    fused = "torch_npu.npu_rms_norm(x, self.weight, 1e-6)[0]\n"
    files = {
        "plain.py": f"{head}class Norm{norm}{written}",
        "converters/norm.py": f"import torch_npu\n{head}{other}{norm}{fused}",
    }
    assert bool(places(scanned(tmp_path, files))) is shown


def test_the_texts_of_a_tree_are_searched_once_for_all_classes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked: list[str] = []

    def noted(text: str, parts: Sequence[str]) -> bool:
        asked.extend(parts)
        return any(part in text for part in parts)

    monkeypatch.setattr(callers, "_holds_any", noted)
    norm = (
        "class Norm{}(nn.Module):\n    def __init__(self, n):\n        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(n))\n\n"
        "    def forward(self, x: torch.Tensor):\n"
        "        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))\n"
    )
    every = "\n\n".join(map(norm.format, range(4)))
    text = f"import torch\nfrom torch import nn\n\n\n{every}"
    assert len(places(scanned(tmp_path, {"plain.py": text}))) == 4
    assert asked.count("npu_rms_norm") == asked.count("torch_npu.") == 1


@pytest.mark.parametrize(
    ("made", "shown"),
    [("self.register_buffer('queue', {})", False), ("self.push(torch.ones(3), {})", True)],
)
def test_a_buffer_that_is_missing_is_made_once(tmp_path: Path, made: str, *, shown: bool) -> None:
    made = made.format("torch.zeros(9).to(x.device)")
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def step(self, x: torch.Tensor):\n        if not hasattr(self, 'queue'):\n"
        f"            {made}\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("beside", "given", "shown"),
    [
        ("", "graph", True),
        ("class Graph:\n    def repeat_interleave(self, n):\n        return n\n", "graph", False),
        ("class Graph:\n    def repeat_interleave(self, n):\n        return n\n", "x", True),
    ],
)
def test_a_method_of_the_program_is_none_of_a_tensor(
    tmp_path: Path, beside: str, given: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef step(x: torch.Tensor, graph, k: int):\n"
        f"    return {given}.repeat_interleave(k)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text, "graph.py": beside}))) is shown


@pytest.mark.parametrize(
    ("done", "shown"),
    [
        ("self.llm.generate(x)", False),
        ("self.llm.encode(x)", True),
        ("self.get_reward(self.llm.generate(x))", True),
    ],
)
def test_who_has_a_text_generated_runs_once_a_text(
    tmp_path: Path, done: str, *, shown: bool
) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n    def forward(self, x):\n"
        f"        return x\n\n    def answers(self, x: torch.Tensor):\n        y = {done}\n"
        "        return y, torch.ones(x.shape).to(x.device)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("other", "shown"), [("F.gelu", False), ("self._gelu_python", True)])
def test_a_formula_in_python_for_which_torch_may_stand(
    tmp_path: Path, other: str, *, shown: bool
) -> None:
    text = (
        "import math\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n\n\n"
        "class GELU(nn.Module):\n    def __init__(self, slow: bool):\n        super().__init__()\n"
        f"        if slow:\n            self.act = {other}\n        else:\n"
        "            self.act = self._gelu_python\n\n"
        "    def _gelu_python(self, x: torch.Tensor):\n"
        "        return x * 0.5 * (1.0 + torch.erf(x / math.sqrt(2.0)))\n\n"
        "    def forward(self, x: torch.Tensor):\n        return self.act(x)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("element", "shown"), [("m is not None", False), ("m * 2", True), ("len(m)", False)]
)
def test_a_list_that_hardly_comes_again(tmp_path: Path, element: str, *, shown: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def forward(self, x: torch.Tensor, ms):\n        flags = [{element} for m in ms]\n"
        "        return x * torch.tensor(flags, device=x.device)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("name", "written"), [("losses", True), ("log_vars", False)])
def test_what_mmcv_logs_stays_a_number(tmp_path: Path, name: str, *, written: bool) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def forward(self, x: torch.Tensor):\n        {name} = {{}}\n"
        f"        {name}['loss'] = x.sum().item()\n        return x, {name}\n"
    )
    (found,) = scanned(tmp_path, {"a.py": text}).report.findings
    assert bool(found.replacement) is written


def test_advice_about_a_part_of_what_is_written_is_not_said_beside_it(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self, size):\n        super().__init__()\n        self.size = size\n\n"
        "    def forward(self, x: torch.Tensor, n: int):\n        for _ in range(n):\n"
        "            scale = torch.tensor([self.size, 2], device=x.device)\n"
        "            x = self.blocks(x / scale)\n        return x\n"
    )
    (found,) = scanned(tmp_path, {"a.py": text}).report.findings
    assert (found.rule, bool(found.replacement)) == ("NPU216", True)


TRAIN = """
import torch


class Trainer:
    def train_epochs(self, model, batches, epochs: int):
        for epoch in range(epochs):
            for x in batches:
                self.optimizer.zero_grad()
                model(x).backward()
                self.optimizer.step()
{steps}
            for y in batches:
                self.show(y)
{epochs}
        self.close()
{end}
"""


@pytest.mark.parametrize(("place", "shown"), [("steps", True), ("epochs", False), ("end", False)])
def test_what_stands_beside_the_loop_that_takes_steps(
    tmp_path: Path, place: str, *, shown: bool
) -> None:
    asked = {"steps": "", "epochs": "", "end": ""}
    deep = 8 if place == "end" else 16
    asked[place] = " " * deep + "self.lengths.append(self.count.sum().item())"
    text = TRAIN.format(**asked)
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


ASKED_FOR = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x: torch.Tensor, t: torch.Tensor, scale: torch.Tensor, limit, config):
        {}
        return self.body(x)
"""
LENGTHS = "s = self.{} + 1\n        self.n = [torch.cumsum(s[i], 0).tolist() for i in range(9)]"
TESTED = (
    "while {}:\n            if torch.all(x <= 1.0):\n                x = self.a(x)\n"
    "            t = self.b(x)"
)


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("if config.p2p_sync:\n            torch.cuda.synchronize()", False),
        ("if config.wide:\n            torch.cuda.synchronize()", True),
        ("if config.empty_unused > 0:\n            torch.cuda.empty_cache()", False),
        ("if config.wide:\n            torch.cuda.empty_cache()", True),
        ("x = x * scale.double().reciprocal().float()", False),
        ("x = x * scale.double().softmax(-1).float()", True),
        (TESTED.format("torch.abs(t).mean() > limit"), False),
        (TESTED.format("limit > 0"), True),
        (LENGTHS.format("lens_cpu"), False),
        (LENGTHS.format("lens"), True),
        ("for row in x:\n            assert limit > 0, row.max().item()", False),
        ("for row in x:\n            self.n += row.max().item()", True),
        ("self.n = self.processor(x)['input_ids'][0].tolist()", False),
        (
            "for k in range(limit):\n            x[:, k + 1] = (x[:, k] * t[:, k]).clamp(max=1)",
            False,
        ),
        ("for k in range(limit):\n            x[:, k + 1] = x[:, k] * t[:, k]", True),
        ("x = F.linear(x, fp8_weight_dequant(self.weight, scale))", False),
        ("x = F.linear(x, weight_dequant(self.weight, scale))", True),
    ],
)
def test_what_is_asked_for_or_cannot_be_otherwise(
    tmp_path: Path, code: str, *, shown: bool
) -> None:
    found = scanned(tmp_path, {"net.py": ASKED_FOR.format(code)})
    assert bool(places(found)) is shown


@pytest.mark.parametrize("in_loop", [True, False])
def test_what_a_sample_begins_with_is_made_once(*, in_loop: bool) -> None:
    made = "ts = self.table(n)"
    before, inside = ("pass", made) if in_loop else (made, "pass")
    module = ast.parse(
        "class Solver:\n    def table(self, n):\n        return torch.linspace(0, 1, n)\n\n"
        f"    def sample(self, x, n):\n        {before}\n        for i in range(n):\n"
        f"            {inside}\n            x = self.model(x, ts[i])\n        return x\n"
    )
    table = next(s for s in scopes(module) if s.function.name == "table")
    assert is_hot(table, module) is in_loop


@pytest.mark.parametrize(("device", "shown"), [("", False), (", device=x.device", True)])
def test_ranges_that_are_put_together_lie_where_they_are_made(
    tmp_path: Path, device: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef step(x: torch.Tensor, ends: torch.Tensor):\n"
        f"    ids = torch.cat([torch.arange(n{device}) for n in ends.tolist()])\n"
        "    return ids.eq(0).cumsum(0)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


CREATED = """
import torch
from torch import nn


class Net(nn.Module):
    def forward(self, x):
        y = torch.linalg.lstsq(x, x).solution
        if {}:
            y = torch.eye(y.shape[1]).to(y.device)
        return y @ x
"""


@pytest.mark.parametrize(
    ("test", "shown"),
    [
        ("torch.isnan(y).any()", False),
        ("not y.isfinite().all()", False),
        ("torch.isfinite(y).all()", True),
        ("self.is_first", True),
    ],
)
def test_what_replaces_numbers_that_are_none_runs_seldom(
    tmp_path: Path, test: str, *, shown: bool
) -> None:
    report = scanned(tmp_path, {"net.py": CREATED.format(test)}).report
    found = [finding.rule for finding in report.findings]
    assert ("NPU212" in found) is shown


UNPACKED = """
import torch
from torch import nn


def unpack(weight: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    table = torch.tensor([0.0, 0.5, 1.0, 1.5, 2.0], device=like.device)
    return table[weight.long()]


class Method(nn.Module):
    def process_weights_after_loading(self, layer):
        layer.w = unpack(layer.w, layer.scale)
{}
"""


@pytest.mark.parametrize(
    ("other", "shown"),
    [
        ("", False),
        ("    def forward(self, x):\n        return x @ unpack(self.w, x)", True),
        ("    def __init__(self):\n        self.unpack = unpack", True),  # who knows who calls it
        ("\n\nUNPACK_INIT_FUNCTIONS: dict[str, object] = {'four': unpack}", False),
        ("\n\nUNPACK_FUNCTIONS = {'four': unpack}", True),
    ],
)
def test_what_only_the_loading_of_weights_calls_runs_once(
    tmp_path: Path, other: str, *, shown: bool
) -> None:
    report = scanned(tmp_path, {"net.py": UNPACKED.format(other)}).report
    found = [finding.rule for finding in report.findings]
    assert ("NPU219" in found) is shown


@pytest.mark.parametrize(("name", "shown"), [("WideNorm", True), ("LayerNormF32", False)])
def test_a_class_that_keeps_its_weights_in_float32_by_its_name(
    tmp_path: Path, name: str, *, shown: bool
) -> None:
    text = (
        f"import torch\nfrom torch import nn\n\n\nclass {name}(nn.LayerNorm):\n"
        "    def forward(self, x: torch.Tensor):\n"
        "        return super().forward(x.float()).to(x.dtype)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown
