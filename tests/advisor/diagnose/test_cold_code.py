"""Only what a step runs is shown; what is one thing in many places is said once."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from scanned_code import FILL, MODEL, places, scanned

from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.project.cold_files import is_cold
from npufix.advisor.project.source_tree import read_source_tree, read_source_trees

if TYPE_CHECKING:
    from pathlib import Path


def test_what_stands_beside_the_folder_for_npus_is_for_another_device(tmp_path: Path) -> None:
    files = ("ops/cuda/fill.py", "ops/ascend/fill.py", "other/cuda/fill.py")
    found = places(scanned(tmp_path, dict.fromkeys(files, FILL)))
    assert [place.partition(":")[0] for place in found] == ["ops/ascend/fill.py", files[2]]


def test_what_stands_beside_the_file_for_npus_is_for_another_device(tmp_path: Path) -> None:
    files = ("a/fill_gpu_patch.py", "a/fill_npu_patch.py", "b/fill_gpu.py")
    found = places(scanned(tmp_path, dict.fromkeys(files, FILL)))
    assert [place.partition(":")[0] for place in found] == list(files[1:])


def test_what_fused_functions_are_held_to_runs_in_no_step(tmp_path: Path) -> None:
    files = ("a/naive.py", "a/naive_gate.py", "b/scan_ref.py", "net.py")
    texts = {n: FILL.replace("step(", f"step_{i}(") for i, n in enumerate(files)}
    texts["net.py"] += "\n\ndef forward(x):\n    return step_2(x) if x.is_cpu else fused(x)\n"
    found = [place.partition(":")[0] for place in places(scanned(tmp_path, texts))]
    assert found == list(files[1:])
    texts["a/__init__.py"] = "from .naive import step_0\n"
    assert len(places(scanned(tmp_path, texts))) == len(found)


def test_what_stands_beside_a_loader_of_data_works_on_samples(tmp_path: Path) -> None:
    files = ("a/data/mix.py", "a/data/data_loader.py", "b/data/mix.py", "c/data.py", "e/data/x.py")
    loads = "\n\nclass Samples(torch.utils.data.Dataset):\n    pass\n"
    texts = dict.fromkeys((*files, "d/data/pad.py"), FILL)
    texts |= {"d/data/part/train.py": FILL + loads, "e/data/models/train.py": FILL + loads}
    found = places(scanned(tmp_path, texts))
    shown = [place.partition(":")[0] for place in found]
    assert shown == [*files[2:4], "e/data/models/train.py", files[4]]


@pytest.mark.parametrize(
    "function",
    [
        "test_step(", "log_step(", "step_logs(", "test2(", "fill_pattern_1(", "gather_for_save(",
        "get_mock_step(", "make_test_data(", "unmerge(",
    ],
)  # fmt: skip
def test_functions_beside_the_steps_are_left_out(tmp_path: Path, function: str) -> None:
    files = {"a.py": FILL.replace("step(", function), "b.py": FILL}
    assert places(scanned(tmp_path, files)) == ["b.py:5"]


def test_what_only_the_making_of_a_table_calls_runs_once(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Rope(nn.Module):\n"
        "    def {}(self):\n        self.ends = self.steps(self.freqs)\n\n"
        "    def steps(self, x: torch.Tensor):\n"
        "        return x + torch.ones(x.shape[1]).to(x.device)\n"
    )
    files = {"a.py": text.format("rope_init"), "b.py": text.format("forward")}
    assert places(scanned(tmp_path, files)) == ["b.py:10"]


def test_what_an_optimizer_keeps_is_made_once(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef step(group, x: torch.Tensor):\n"
        "    if {}:\n        group['n'] += 1\n    else:\n"
        "        group['n'] = torch.ones(x.shape[1]).to(x.device)\n"
    )
    files = {"a.py": text.format("'n' in group"), "b.py": text.format("x.shape[0] > 3")}
    assert places(scanned(tmp_path, files)) == ["b.py:8"]


def test_what_a_hook_does_to_a_state_dict_is_done_once(tmp_path: Path) -> None:
    hook = "\n\nclass Net(nn.Module):\n    def hook(self, {}):\n        fill({})\n"
    for name, shown in (("scores", True), ("state_dict", False)):
        text = FILL.replace("step", "fill") + hook.format(name, name)
        assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


def test_what_stands_beside_the_loop_of_a_rollout_runs_once_for_all_of_it(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\nclass Agent:\n"
        "    def explore(self, env, state: torch.Tensor):\n"
        "        kept = torch.zeros(9, state.shape[1]).to(state.device)\n"
        "        for t in range(9):\n"
        "            state = env.step(self.act(state))\n"
        "            kept[t] = state + torch.ones(state.shape[1]).to(state.device)\n"
        "        return kept\n"
    )
    assert places(scanned(tmp_path, {"a.py": text})) == ["a.py:9"]


@pytest.mark.parametrize(
    ("cls", "shown"), [("PromptUnit(PipelineUnit)", False), ("Prompt(nn.Module)", True)]
)
def test_the_units_of_a_pipeline_run_once_a_call(
    tmp_path: Path,
    cls: str,
    shown: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    text = (
        f"import torch\nfrom torch import nn\n\n\nclass {cls}:\n"
        "    def process(self, x: torch.Tensor):\n"
        "        return torch.cat([x, torch.zeros(3, x.shape[1]).to(x.device)])\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("method", "shown"),
    [
        ("AntEnv(VecTask).reset_idx", False),
        ("AntEnv(VecTask).step", True),
        ("AntEnv(VecTask)._sample_initial_state", False),
        ("AntEnv(VecTask).sample_state", True),
        ("Engine().transport_tensors", False),
        ("Engine().transport_plan", True),
        ("Sampler(nn.Module).pick_idx", True),
        ("Sampler(nn.Module).reset_idx", False),
        ("FScore(torchmetrics.Metric).update", False),
        ("MetricLoss(nn.Module).update", True),
        ("TextFeaturizer().update", False),
        ("DataStatisticsManager().update", False),
        ("TextPreprocessor(nn.Module).update", False),
        ("Prompter(nn.Module).update", True),
        ("PCA(nn.Module).fit_transform", False),
        ("PCA(nn.Module).transform", True),
        ("BatchProto().repeat", False),
        ("Batch().repeat", True),
    ],
)
def test_environments_metrics_and_protocols_are_left_out(
    tmp_path: Path,
    method: str,
    shown: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    cls, _, name = method.rpartition(".")
    text = (
        f"import torch\nimport torchmetrics\nfrom torch import nn\n\n\nclass {cls}:\n"
        f"    def {name}(self, x: torch.Tensor):\n        x[x > 0] = 0\n        return x\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("m.x[m.keep] = m.x[m.keep] + y[m.keep]", False),  # one for each row, perhaps
        ("keep = x > 0\n    x[keep] = x[keep] + y[keep]", True),
        ("box = np.array(y)\n    box[:, :2] /= 2\n    x = box[:, [1, 0]]", False),
        ("box = torch.tensor(y)\n    box[:, :2] /= 2\n    x = box[:, [1, 0]]", True),
    ],
)
def test_what_may_be_no_tensor_or_no_mask_of_elements_is_left_out(
    tmp_path: Path, code: str, *, shown: bool
) -> None:
    text = (
        "import numpy as np\nimport torch\n\n\nclass Net(torch.nn.Module):\n"
        "  def forward(self, x: torch.Tensor, y, m):\n    CODE\n    return x\n"
    )
    assert bool(places(scanned(tmp_path, {"net.py": text.replace("CODE", code)}))) is shown


@pytest.mark.parametrize("product", ["F.gelu(k) * v", "F.silu(k) * v"])
def test_what_is_copied_for_one_operator_is_left_out_unless_asked_for(
    tmp_path: Path, product: str
) -> None:
    text = f"""
import torch
import torch.nn.functional as F
from torch import nn


class FFN(nn.Module):
    def __init__(self, n: int):
        super().__init__()
        self.key = nn.Linear(n, n)
        self.value = nn.Linear(n, n)

    def forward(self, x: torch.Tensor):
        k = self.key(x)
        v = self.value(x)
        return {product}
"""
    assert not places(scanned(tmp_path, {"ffn.py": text}))
    assert places(scanned(tmp_path, {}, allow=frozenset({"joining-pays"})))
    # the backward pass gains, in a model or a program that has one
    assert places(scanned(tmp_path, {"base.py": "supports_gradient_checkpointing = True\n"}))
    (tmp_path / "base.py").unlink()
    assert places(scanned(tmp_path, {"run.py": "def step(loss):\n    loss.backward()\n"}))


def test_a_function_inside_a_hook_between_epochs_is_left_out(tmp_path: Path) -> None:
    text = """
import torch


class Brain:
    def {}(self, stage):
        def compute(x: torch.Tensor):
            x[x > 0] = 0
            return x

        self.metric = compute
"""
    for hook, shown in (("on_stage_start", False), ("on_init_start", False), ("stage", True)):
        assert bool(places(scanned(tmp_path, {"a.py": text.format(hook)}))) is shown


@pytest.mark.parametrize(
    ("path", "cold"),
    [
        ("tests/norm.py", True),
        ("pkg/test_norm.py", True),
        ("docs/source/conf.py", True),
        ("pkg/utils/colormaps.py", True),
        ("pkg/transforms/flip.py", True),
        ("examples/train.py", True),
        ("tools/convert_llama_to_hf.py", True),
        ("pkg/export_onnx.py", True),
        ("pkg/_export/layers.py", True),
        ("pkg/datasets/coco.py", True),
        ("pkg/data/dataset_utils.py", True),
        ("pkg/probe.py", True),
        ("pkg/utils/generate_data_statistics.py", True),
        ("pkg/generate.py", False),
        ("models/whisper/feature_extraction_whisper.py", True),
        ("pkg/metrics/retrieval.py", True),
        ("SentEval/probe/ranking.py", True),
        ("pkg/retrieval/ranking.py", False),
        ("inference/gradio_demo/net.py", True),
        ("tools/model_hf2custom.py", True),
        ("tests_extend/unit/norm.py", True),
        ("vendor/maca/ops.py", True),
        ("device/camb.py", True),
        ("pkg/memory_profiler.py", True),
        ("utils/loggers/board.py", True),
        ("scripts/benchmark_mlp.py", True),
        ("pkg/data/data_transforms_multimer.py", True),
        ("models/llama/modeling_llama.py", False),
        ("pkg/losses/metric_loss.py", False),
        ("pkg/testament.py", False),
        ("pkg/losses/contrastive.py", False),
        ("train.py", False),
        ("tools/numerics_debugging/trace.py", True),
        ("nets/preprocessing/resample.py", True),
        ("egs/asr/streaming-ncnn-decode.py", True),
        ("pkg/data/mixup.py", False),
        ("pkg/attest.py", False),
        ("utils/vis_utils.py", True),
        ("pkg/llama_gptq/quant.py", True),
        ("pkg/visual_encoder.py", False),
        ("ops/norm_fallback.py", True),
        ("modules/modeling_backup.py", True),
        ("modules/backbone.py", False),
        ("scripts/eval_dtu/render.py", True),
        ("scripts/put_benchmark.py", True),
        ("rcnn_benchmark/modeling/rpn/loss.py", False),
        ("rcnn_benchmark/run.py", True),
        ("hubconf.py", True),
        ("pkg/data/data_ops.py", True),
        ("pkg/encoder/interpretability.py", True),
        ("pkg/model_repo_zh/net/1/model.py", True),
        ("pkg/model_repository/net.py", True),
        ("pkg/model_report/net.py", False),
    ],
)
def test_a_path_tells_what_no_step_runs(path: str, *, cold: bool) -> None:
    assert is_cold(path) is cold


def test_loaders_of_training_data_stand_in_files_of_data(tmp_path: Path) -> None:
    text = """
from torch.utils.data import DataLoader


class ScenesDataModule:
    def train_dataloader(self):
        return DataLoader(self.scenes, 4, num_workers=self.workers, pin_memory=True)
"""
    paths = ("datasets/scenes.py", "scenes_datamodule.py", "tests/data/scenes.py")
    # The same settings would be one decision of the project.
    found = scanned(
        tmp_path, {p: text.replace("workers,", f"workers_{n},") for n, p in enumerate(paths)}
    )
    assert places(found) == [f"{path}:7" for path in paths[:2]]


def test_what_no_step_runs_is_counted_and_shown_on_demand(tmp_path: Path) -> None:
    host = (
        "import torch\n\n\nclass Boxes(Dataset):\n"
        "    def __getitem__(self, i):\n"
        "        x = torch.rand(4)\n        x[x > 0] = 0\n        return x\n"
    )
    files = {"model.py": FILL, "tests/test_model.py": FILL, "boxes.py": host}
    found = scanned(tmp_path, files)
    assert places(found) == ["model.py:5"]
    assert "Beside them 2 in tests" in found.report.headline
    everything = scanned(tmp_path, files, everywhere=True)
    assert sorted(places(everything)) == ["boxes.py:7", "model.py:5", "tests/test_model.py:5"]
    assert "in tests" not in everything.report.headline


BUILT = {
    "tables.py": FILL.replace("def step", "def _table")
    + "\n\ndef table(n):\n    return _table(torch.eye(n, device='npu'))\n\n\n__all__ = ['table']\n",
    "net.py": (
        "from torch import nn\nfrom .tables import table\n\n\nclass Net(nn.Module):\n"
        "    def __init__(self):\n        self.rows = {}\n\n    def forward(self, x):\n"
        "        return {}\n"
    ),
}


@pytest.mark.parametrize(
    ("built", "forward", "shown"),
    [
        ("table(4)", "x * self.rows", False),
        ("4", "x * table(4)", True),
        ("table(4)", "x * table(4)", True),
        ("table", "x * self.rows(4)", True),  # handed on
        ("lambda: table(4)", "x * self.rows()", True),
        ("4", "x", True),  # anyone may call what nobody here calls
    ],
)
def test_what_only_builds_a_model_is_left_out(
    tmp_path: Path, built: str, forward: str, *, shown: bool
) -> None:
    files = {**BUILT, "net.py": BUILT["net.py"].format(built, forward)}
    assert bool(places(scanned(tmp_path, files))) is shown
    boxes = files["net.py"].replace("(nn.Module)", "").replace("def forward", "def area")
    assert places(scanned(tmp_path, {**files, "net.py": boxes}))  # made in each step, perhaps


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("def draw(boxes):\n    return fill(boxes)\n", False),
        ("def draw(boxes):\n    return map(fill, boxes)\n", False),
        ("def draw(boxes):\n    return fill(boxes)\n\n\ndef loss(x):\n    draw(x)\n", True),
        ("def main():\n    fill(boxes)\n", True),
        ("x = 4\n", True),  # there for others
    ],
)
def test_what_is_used_beside_the_steps_alone_is_left_out_if_it_is_open(
    tmp_path: Path, user: str, *, shown: bool
) -> None:
    text = FILL.replace("def step", "def fill")
    files = {"ops.py": text, "use.py": f"from ops import fill\n\n\n{user}"}
    assert places(scanned(tmp_path, files))  # as it was proven
    open_one = text.replace("] = 0", "] = 7e4")  # which not each dtype holds
    found = scanned(tmp_path, {**files, "ops.py": open_one})
    assert bool(places(found)) is shown


def test_what_is_proven_and_handed_on_may_run_in_a_step(tmp_path: Path) -> None:
    text = FILL.replace("def step", "def fill")
    for used, shown in (("fill", True), ("fill(i)", False)):
        loads = f"from ops import fill\n\n\ndef load(i):\n    return {used}\n"
        data = {"load.py": loads, "datasets/a.py": "from load import load\n\nload(4)\n"}
        assert bool(places(scanned(tmp_path, {"ops.py": text, **data}))) is shown
    method = text.replace("def", "class Boxes:\n  def").replace("(x", "(self, x")
    assert places(scanned(tmp_path, {"ops.py": method}))  # by another name, perhaps


def test_what_main_trains_with_is_told_of(tmp_path: Path) -> None:
    text = "from torch.utils.data import DataLoader\n\n\ndef main(data):\n"
    files = {
        "train.py": f"{text}    for batch in DataLoader(data, shuffle=True):\n        step(batch)\n"
    }
    assert places(scanned(tmp_path, files)) == ["train.py:5"]


def test_torch_calls_forward_whoever_else_does(tmp_path: Path) -> None:
    calls = "class Net(nn.Module):\n    def __init__(self):\n        forward(4)\n"
    files = {"tables.py": FILL.replace("def step", "def forward"), "net.py": calls}
    assert places(scanned(tmp_path, files))


def test_mindspeed_is_asked_for_where_a_program_may_depend_on_it(tmp_path: Path) -> None:
    layer = (
        "import torch\nfrom torch import nn\n\n\nclass Layer(nn.Module):\n"
        "    def __init__(self):\n        super().__init__()\n"
        "        self.drop, self.norm = nn.Dropout(0.1), nn.LayerNorm(64)\n\n"
        "    def forward(self, x: torch.Tensor, y: torch.Tensor):\n"
        "        return self.norm(self.drop(x) + y)\n"
    )
    assert places(scanned(tmp_path, {"layer.py": layer})) == []
    embedding = {"model.py": "def embed(vocab_size):\n    ...\n"}
    assert places(scanned(tmp_path, embedding)) == []  # a language model needs none of it
    uses = {"model.py": "from mindspeed import megatron_adaptor\n"}
    assert places(scanned(tmp_path, uses)) == ["layer.py:11"]


def test_what_is_guessed_twice_or_not_said_is_left_out(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef step(x: torch.Tensor, mask, other):\n"
        "    x[mask] = 0\n    x[x > 0] = 1\n"
    )
    found = scanned(tmp_path, {"a.py": text})
    assert places(found) == ["a.py:6"]  # above it a mask, perhaps, of unknown rank
    assert "Beside them 1 in" in found.report.headline
    assert len(places(scanned(tmp_path, {}, everywhere=True))) == 2
    granted = frozenset({"boolean-mask"})
    assert len(places(scanned(tmp_path, {}, allow=granted))) == 2
    widened = text.replace("x[mask] = 0", "x = x.repeat_interleave(3, dim=1)")
    assert places(scanned(tmp_path, {"a.py": widened})) == ["a.py:6"]  # five lines for one
    product = text.replace("x[mask] = 0", "y = x.bmm(mask.unsqueeze(2)).squeeze(2)")
    assert places(scanned(tmp_path, {"a.py": product})) == ["a.py:6"]
    needed = "def step(x, w):\n    y = x.repeat_interleave(3, dim=1)\n    return g(y)\n"
    loop = (
        "def step(x: torch.Tensor, rows):\n    y = torch.zeros_like(x)\n"
        "    for i in range(9):\n        y[i] = x[rows[i]]\n    return y\n"
    )
    assert not any(
        "advice" in f.safety
        for f in scanned(tmp_path, {"a.py": f"import torch\n{needed}\n{loop}"}).report.findings
    )


def test_operators_for_driving_are_for_programs_that_drive(tmp_path: Path) -> None:
    text = (
        "import torch_scatter\nfrom torch import nn\n\n\nclass Pool(nn.Module):\n"
        "    def forward(self, x, batch):\n"
        "        return torch_scatter.scatter_mean(x, batch, dim=0)\n"
    )
    assert not places(scanned(tmp_path, {"pool.py": text}))
    assert places(scanned(tmp_path, {"points.py": "def voxelize(points):\n    ...\n"}))


def test_what_shows_a_model_in_its_file_is_left_out(tmp_path: Path) -> None:
    shows = FILL.replace("step", "main")
    found = places(scanned(tmp_path, {"models/a.py": shows, "loss_b.py": shows, "train.py": shows}))
    assert found == ["train.py:5"]


def test_simulated_quantization_is_left_out(tmp_path: Path) -> None:
    assert not places(scanned(tmp_path, {"a.py": FILL.replace("def step", "def quant_noise")}))


def test_what_stands_beside_the_steps_of_a_sample_is_no_step(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef sample(self, x: torch.Tensor):\n    x[x > 0] = 7e4\n"
        "    for t in self.times:\n        x = self.{}(x, t)\n        x[x > 0] = 7e4\n"
    )
    assert places(scanned(tmp_path, {"a.py": text.format("unet")})) == ["a.py:8"]
    assert (
        len(places(scanned(tmp_path, {"a.py": text.format("scale")}))) > 1
    )  # of logits, in a step


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("self.pool = PoolLayer()", False),
        ("self.pools = nn.ModuleList(\n            PoolLayer() for _ in range(3)\n        )", True),
        ("self.first, self.last = PoolLayer(), PoolLayer()", True),
        ("self.pool = build(PoolLayer)", True),
    ],
)
def test_what_one_layer_computes_is_not_computed_in_every_layer(
    tmp_path: Path, made: str, *, shown: bool
) -> None:
    layers = (
        "import torch\nfrom torch import nn\n\n\nclass PoolLayer(nn.Module):\n"
        "    def forward(self, x: torch.Tensor, lengths: torch.Tensor):\n"
        "        ends = lengths.cumsum(0)\n        return x[ends]\n"
    )
    model = (
        "from torch import nn\nfrom layers import PoolLayer\n\n\nclass Model(nn.Module):\n"
        f"    def __init__(self):\n        {made}\n"
    )
    found = scanned(tmp_path, {"layers.py": layers, "model.py": model}).report.findings
    assert ("NPU321" in {finding.rule for finding in found}) is shown


@pytest.mark.parametrize(
    ("function", "count"), [("_beam_search", 0), ("GenerationMixin.f", 0), ("loss", 2)]
)
def test_what_the_host_keeps_of_a_search_is_no_step(
    tmp_path: Path, function: str, count: int
) -> None:
    cls, _, name = function.rpartition(".")
    text = (
        f"def {name}(x: torch.Tensor):\n    n = int(x.max())\n    x[x > 0] = 0\n    return x[:n]\n"
    )
    if cls:
        text = f"class {cls}:\n" + "".join(f"    {line}\n" for line in text.splitlines())
    found = places(scanned(tmp_path, {"a.py": f"import torch\n\n\n{text}"}))
    assert len(found) == count


_TORCH = "import torch\nfrom torch import Tensor"
_VALIDATES = (
    "def run(net, loader, opt):\n    net.{}()\n    for x in loader:\n        loss = net(x).mean()\n"
    "        {}\n        x[x > 0] = 0\n"
)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (_VALIDATES.format("eval", "print(loss)"), False),
        (_VALIDATES.format("eval", "loss.backward()"), True),
        (_VALIDATES.format("train", "print(loss)"), True),
        (
            "def f(x: Tensor):\n    x[x > 0] = 0\n    for i in tqdm(range(9)):\n        x += i\n",
            False,
        ),
        ("def f(x: Tensor):\n    for i in tqdm(range(9)):\n        x[x > i] = 0\n", True),
        (
            "def pairs(x: Tensor) -> Dataset:\n    x[x > 0] = 0\n    return Dataset(x)\n",
            False,
        ),
        (
            "def f_loop(x: Tensor):\n    x[x > 0] = 0\n\n\ndef f_vectorized(x):\n    pass\n",
            False,
        ),
        (
            "def f_loop(x: Tensor):\n    x[x > 0] = 0\n\n\ndef f(x: Tensor):\n    f_loop(x)\n",
            True,
        ),
        (
            "def f(x: Tensor):\n    if x.isnan().any() | x.isinf().any():\n        x[x > 0] = 0\n",
            False,
        ),
        ("class Net:\n    def get_init_states(self, x):\n        x[x > 0] = 0\n", False),
        ("class Net:\n    def get_init_mask(self, x):\n        x[x > 0] = 0\n", True),
        ("def step(x, lm):\n    y = lm.generate_sequences(x)\n    y[y > 0] = 0\n", True),
        ("def act(x, lm):\n    y = lm.generate_sequences(x)\n    y[y > 0] = 0\n", False),
    ],
)
def test_what_validates_or_begins_a_stream_is_no_step(
    tmp_path: Path, text: str, *, shown: bool
) -> None:
    typed = text.replace(", x):", ", x: torch.Tensor):")
    assert bool(places(scanned(tmp_path, {"a.py": f"{_TORCH}\n\n\n{typed}"}))) is shown


@pytest.mark.parametrize(("cls", "count"), [("BeamSearch", 1), ("Head", 2)])
def test_what_a_search_does_behind_its_loop_is_no_step(
    tmp_path: Path, cls: str, count: int
) -> None:
    text = (
        f"import torch\n\n\nclass {cls}(torch.nn.Module):\n"
        "    def forward(self, x: torch.Tensor):\n        for i in range(9):\n"
        "            x = self.search(x, i)\n            x[x > 0] = 7e4\n"
        "        x[x > 0] = 7e4\n        return x\n"
    )
    (one,) = scanned(tmp_path, {"a.py": text}).report.findings
    assert 1 + len(one.places) == count


@pytest.mark.parametrize(
    ("use", "shown"),
    [
        ("nn.SiLU(4)", False),
        ("'the SiLU function: github.com/SiLU.'", False),
        ("nn.Mish  # SiLU, that is, x * sigmoid", False),
        ("SiLU()", True),
        ("dict(act=SiLU)", True),
        ("'SiLU'", True),
    ],
)
def test_an_activation_that_nobody_uses_is_left_out(
    tmp_path: Path, use: str, *, shown: bool
) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass SiLU(nn.Module):\n"
        "    def forward(self, x):\n        return x * torch.sigmoid(x)\n"
    )
    files = {"activations.py": text, "net.py": f"act = {use}\n", "export.py": "act = SiLU()\n"}
    assert bool(places(scanned(tmp_path, files))) is shown


def test_a_class_that_calls_a_package_for_gpus_is_left_out(tmp_path: Path) -> None:
    net = MODEL.replace("        x = x.float()\n", "        x = ME.cat(x)\n")
    imported = "try:\n    import {} as ME\nexcept ImportError:\n    ME = None\n"
    assert not places(scanned(tmp_path, {"a.py": imported.format("MinkowskiEngine") + net}))
    assert places(scanned(tmp_path, {"a.py": imported.format("my_engine") + net}))
    kernel = "from numba import cuda\n\n\n@cuda.jit\ndef add(x):\n    ...\n\n\n"
    assert not places(scanned(tmp_path, {"a.py": kernel + net.replace("ME.cat", "add[1, 2]")}))


@pytest.mark.parametrize(
    ("looks_up", "shown"),
    [
        ("import_module(path)", False),
        ("getattr(importlib.import_module(path), name)", True),
        ("vars(plugins)[name]", True),
        ("vars(args)", False),
    ],
)
def test_the_import_of_a_module_finds_no_class_by_its_name(
    tmp_path: Path, looks_up: str, *, shown: bool
) -> None:
    files = {"net.py": MODEL, "main.py": f"if __name__ == '__main__':\n    made = {looks_up}\n"}
    assert bool(places(scanned(tmp_path, files))) is shown


def test_no_cache_grows_in_training(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\nclass Attention(nn.Module):\n    def forward(self, k):\n"
        "        self.k_cache = torch.cat((self.k_cache, k), dim=1)\n        return self.k_cache\n"
    )
    files = {"train/patch.py": text, "net/model.py": text}
    assert [p.partition(":")[0] for p in places(scanned(tmp_path, files))] == ["net/model.py"]


def test_what_is_made_once_is_left_out(tmp_path: Path) -> None:
    made = "torch.zeros(9).to(device)"
    text = (
        f"import torch\n\n\ndef main(device):\n    x = {made}\n    while True:\n        f({made})\n"
    )
    built = f"import torch\n\n\ndef group_init(device):\n    f({made})\n"
    files = {"train.py": text, "groups.py": built}
    assert places(scanned(tmp_path, files)) == ["train.py:7"]


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("if self.table is None or n > len(self.table):\n            self.table = ", False),
        ("self.table = ", True),
    ],
)
def test_a_table_that_is_made_longer_when_it_is_too_short_is_kept(
    tmp_path: Path, made: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\nclass Positions(torch.nn.Module):\n    def __init__(self, dim):\n"
        "        self.dim = dim\n        self.table = self.make(8)\n\n"
        "    def make(self, n):\n"
        "        rates = torch.exp(torch.arange(self.dim, dtype=torch.float) * -0.1)\n"
        "        return torch.arange(n).unsqueeze(1) * rates\n\n"
        "    def forward(self, x):\n        n = x.size(1)\n"
        f"        {made}self.make(n)\n        return x + self.table[:n].to(x)\n"
    )
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is shown


ROWS = "import torch\n\n\ndef step(x: torch.Tensor):\n    {}\n"


@pytest.mark.parametrize(
    ("code", "shown"),
    [
        ("return x.gather(1, x.argmax(1).unsqueeze(1)).squeeze(1)", True),
        ("return x.gather(1, x.argmax(1).unsqueeze(1))", False),  # longer, and one launch more
        ("return x[:, [2, 0, 1]]", True),
        ("for row in x:\n        row.cpu().sum()", True),
        ("for row in x:\n        row.numpy().sum()", False),  # on the host already
    ],
)
def test_what_gains_less_than_its_text_costs_is_left_out(
    tmp_path: Path, code: str, *, shown: bool
) -> None:
    assert bool(places(scanned(tmp_path, {"net.py": ROWS.format(code)}))) is shown


@pytest.mark.parametrize(("head", "shown"), [("", True), ("from vllm import config\n", False)])
def test_a_server_counts_a_few_numbers(tmp_path: Path, head: str, *, shown: bool) -> None:
    text = head + ROWS.format("return (x > 0).cumsum(0)")
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is shown


def test_what_is_made_once_in_a_loop_of_init_is_left_out(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\nclass Cache:\n    def {}(self, n, device):\n        for _ in range(n):\n"
        "            self.parts.append(torch.zeros(4).to(device))\n"
    )
    for name, shown in (("__init__", False), ("step", True)):
        assert bool(places(scanned(tmp_path, {"cache.py": text.format(name)}))) is shown


@pytest.mark.parametrize(("given", "shown"), [("group_list", True), ("actual_seq_q", False)])
def test_fused_attention_is_handed_lengths_as_a_list(
    tmp_path: Path, given: str, *, shown: bool
) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        f"    def forward(self, x, {given}: torch.Tensor):\n"
        f"        return self.attend(x, {given}.tolist())\n"
    )
    found = scanned(tmp_path, {"net.py": text}).report.findings
    assert any(f.replacement for f in found) is shown


SAMPLED = """
import torch
from torch import nn


class Voice(nn.Module):
    def {}(self, x: torch.Tensor):
        {}
        return x
"""


@pytest.mark.parametrize(
    ("name", "body", "shown"),
    [
        ("inference", "x = x + torch.zeros(9).to(x.device)", False),
        ("inference", "for _ in range(3):\n            x += torch.zeros(9).to(x.device)", True),
        ("forward", "x = x + torch.zeros(9).to(x.device)", True),
    ],
)
def test_what_is_made_once_for_a_text_is_left_out(
    tmp_path: Path, name: str, body: str, *, shown: bool
) -> None:
    assert bool(places(scanned(tmp_path, {"a.py": SAMPLED.format(name, body)}))) is shown


def test_what_saves_a_checkpoint_is_set_up(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef do_forward_pass(x: torch.Tensor):\n"
        "    return torch.zeros(x.shape).to(x.device)\n\n\n"
        "def {}(x):\n    return do_forward_pass(x)\n"
    )
    saved, used = (text.format(name) for name in ("save_ds_checkpoint", "train_step"))
    assert not places(scanned(tmp_path, {"a.py": saved}))
    assert places(scanned(tmp_path, {"a.py": used}))


@pytest.mark.parametrize(
    ("head", "name", "shown"),
    [
        ('"""Avoid bugs of the MPS backend."""\n', "pad", False),
        ('"""Compute."""\n# nor on MPS\n', "pad", True),
        ("", "truncate_after_eos", False),
    ],
)
def test_what_is_for_another_device_or_behind_a_text(
    tmp_path: Path, head: str, name: str, *, shown: bool
) -> None:
    text = (
        f"{head}import torch\n\n\ndef {name}(x: torch.Tensor):\n"
        "    return x + torch.zeros(9).to(x.device)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("search(W, scale)", False),
        ("search(x, W, scale)", True),
        ("search(W, scaled)", True),
        ("dequantize(W, scale)", True),
    ],
)
def test_what_looks_for_the_numbers_of_a_weight_runs_once(
    tmp_path: Path, head: str, *, shown: bool
) -> None:
    text = (
        f"import torch\n\n\ndef {head} -> torch.Tensor:\n"
        "    W = W + torch.zeros(9).to(W.device)\n    return W\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("end", "shown"), [("return n", False), ("train(model, n)", True)])
def test_what_reads_the_tokenizer_itself_finds_out_something_once(
    tmp_path: Path, end: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef measure(model, x: torch.Tensor):\n"
        "    tokenizer = AutoTokenizer.from_pretrained(model.name)\n"
        "    for text in model.texts:\n"
        f"        n = torch.zeros(9).to(x.device) + model(tokenizer(text))\n    {end}\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("files", "shown"),
    [
        ({}, False),
        ({"use.py": "from ops import Fill\n\nfill = Fill()\n"}, True),
        ({"use.py": "from ops import Fill\n\n\nclass Net(Fill):\n    pass\n"}, False),
        ({"use.py": "from ops import Fill as Layer\n\nfill = Layer()\n"}, True),
        ({"use.py": "KINDS = {'a': 'ops.Fill'}\n"}, True),
        ({"use.py": "import ops\n\n\ndef make(kind):\n    return getattr(ops, kind)()\n"}, True),
        ({"setup.py": "from setuptools import setup\n\nsetup(name='ops')\n"}, True),
    ],
)
def test_what_nothing_in_a_program_mentions_is_left_out(
    tmp_path: Path, files: dict[str, str], *, shown: bool
) -> None:
    layer = "\n\nclass Fill(nn.Module):\n    def forward(self, x):\n        return fill(x)\n"
    ops = FILL.replace("def step", "def fill") + layer
    script = 'if __name__ == "__main__":\n    print("begins")\n'
    assert bool(places(scanned(tmp_path, {"ops.py": ops, "run.py": script, **files}))) is shown


@pytest.mark.parametrize("steps", [True, False])
def test_a_script_that_takes_no_step_needs_no_fast_optimizer(
    tmp_path: Path,
    steps: bool,  # noqa: FBT001 - a parameter of the test
) -> None:
    taken = "    train_one_epoch(net, optimizer)\n" if steps else "    print(evaluate(net))\n"
    text = (
        "import torch\n\n\ndef main(net):\n"
        f"    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-4)\n{taken}\n\n"
        'if __name__ == "__main__":\n    main(build())\n'
    )
    assert bool(places(scanned(tmp_path, {"run.py": text}))) is steps


@pytest.mark.parametrize(
    ("user", "shown"),
    [
        ("def predict(self, x):\n        return self.clean(self(x))", False),
        ("def predict(self, x):\n        return [self.clean(y) for y in x]", True),
        ("def predict_step(self, x):\n        return self.clean(self(x))", True),
        ("def predict(self, x):\n        return self.last(x)", True),
        ("def load_balancing(self, x):\n        return self.clean(x)", True),
        ("def evaluate_actions(self, x):\n        return self.clean(x)", True),
        ("def evaluate(self, x):\n        return self.clean(x)", False),
        ("def slide_inference(self, x):\n        return self.clean(x)", False),
    ],
)
def test_what_only_a_prediction_calls_runs_once_for_an_image(
    tmp_path: Path, user: str, *, shown: bool
) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def clean(self, x: torch.Tensor):\n        x[x > 0] = 0\n        return x\n\n"
        f"    {user}\n"
    )
    assert bool(places(scanned(tmp_path, {"net.py": text}))) is shown


def test_a_forward_is_called_by_no_name(tmp_path: Path) -> None:
    text = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def forward(self, x: torch.Tensor):\n        x[x > 0] = 0\n        return x\n\n"
        "    def predict(self, x):\n        return self.forward(x)\n"
    )
    assert places(scanned(tmp_path, {"net.py": text}))


def test_a_model_may_be_saved_by_who_waits(tmp_path: Path) -> None:
    wait = "import torch\n\n\ndef {}(model):\n    torch.cuda.synchronize()\n    model()\n"
    for name, shown in (("safe_save_model_for_hf", False), ("forward_step", True)):
        assert bool(places(scanned(tmp_path, {"run.py": wait.format(name)}))) is shown


@pytest.mark.parametrize(
    ("code", "rules"),
    [
        ("debug = strict or ON\n    if debug:\n        assert (x >= 0).all()", set()),
        ("assert (x >= 0).all()", {"NPU217"}),
        (  # one decision: the loop
            (
                "y = []\n    for i in range(len(x)):\n        n = lengths[i].item()\n"
                "        y.append(x[i, :n].mean(0))\n    x = torch.stack(y)"
            ),
            {"NPU250"},
        ),
        (  # no kernel runs in any round
            (
                "m = torch.zeros(len(x), 9, dtype=torch.bool)\n    for i, n in enumerate(lens):\n"
                "        m[i, :n] = True\n    x = x * m.to(x.device)"
            ),
            set(),
        ),
        (
            (
                "m = torch.zeros(len(x), 9, dtype=torch.bool)\n"
                "    for i, n in enumerate(lengths):\n"
                "        m[i, :n] = True\n    x = x * m.to(x.device)"
            ),
            {"NPU250"},
        ),
        ("y = x[mask]\n    for f in self.fs:\n        y += f(x)\n    x[mask] = y", set()),
        ("x[mask] = 0", {"NPU201"}),
    ],
)
def test_one_decision_is_one_finding(tmp_path: Path, code: str, rules: set[str]) -> None:
    text = (
        "import torch\n\n\nclass Net(torch.nn.Module):\n  def forward(\n    self, x: torch.Tensor, "
        f"mask: torch.BoolTensor, lengths: torch.Tensor, lens: list[int], strict=None\n  ):\n"
        f"    {code}\n    return x\n"
    )
    found = scanned(tmp_path, {"net.py": text}).report.findings
    assert {finding.rule for finding in found} - {"NPU211", "NPU218"} == rules


def test_keys_and_values_alone_gain_less_than_new_names_in_checkpoints_cost(tmp_path: Path) -> None:
    head = "import torch\nfrom torch import nn\n\n\nclass Attention(nn.Module):\n"
    layers = "".join(f"        self.{n} = nn.Linear(8, 8)\n" for n in "qkv")
    text = f"{head}    def __init__(self):\n        super().__init__()\n{layers}\n"
    text += "    def forward(self, x, y):\n        return self.q({}), self.k(x), self.v(x)\n"
    files = {"a.py": text.format("x"), "b.py": text.format("y")}
    assert places(scanned(tmp_path, files)) == ["a.py:13"]


@pytest.mark.parametrize(
    ("module", "shown"),
    [(".cutlass_fp4.grouped", False), (".libs.marlin", False), (".grouped", True)],
)
def test_a_function_that_calls_kernels_for_gpus_is_left_out(
    tmp_path: Path, module: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef forward(x: torch.Tensor):\n"
        f"    from {module} import product\n\n    x[x > 0] = 0\n    return product(x)\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("import numpy as np\n\n\nclass Ids:", False),
        ("import numpy as np\nimport torch\n\n\nclass Ids(torch.nn.Module):", True),
    ],
)
def test_what_a_file_of_arrays_selects_is_no_tensor(
    tmp_path: Path, head: str, *, shown: bool
) -> None:
    text = f"{head}\n    def step(self, n):\n        m = self.all[n:]\n        m[m == 1] = 2\n"
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


@pytest.mark.parametrize(("test", "shown"), [("ok", False), ("full", True)])
def test_what_is_done_for_numbers_that_are_none_is_no_step(
    tmp_path: Path, test: str, *, shown: bool
) -> None:
    text = (
        "import torch\n\n\ndef step(x: torch.Tensor):\n    ok = x.isfinite()\n"
        f"    full = x > 0\n    if not {test}.all():\n        x[~ok] = 7e4\n    return x\n"
    )
    found = scanned(tmp_path, {"a.py": text}).report.findings
    assert any(f.rule == "NPU201" for f in found) is shown


@pytest.mark.parametrize(
    ("head", "shown"),
    [
        ("def run_epoch(model, loader):\n    for x in loader:\n        step(x)\n    ", False),
        ("def run_epoch(model, loader):\n    for x in loader:\n        step(x)\n        ", True),
        ("def run_step(model, x):\n    ", True),
    ],
)
def test_what_is_called_behind_the_loop_of_an_epoch_is_no_step(
    tmp_path: Path, head: str, *, shown: bool
) -> None:
    model = (
        "import torch\nfrom torch import nn\n\n\nclass Net(nn.Module):\n"
        "    def renew(self, x: torch.Tensor):\n        x[x > 0] = 0\n        return x\n"
    )
    files = {"net.py": model, "train.py": f"{head}model.renew(x)\n"}
    assert bool(places(scanned(tmp_path, files))) is shown


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        # layers are smoothed before they are quantised
        ("def smooth(norm, layers, s):\n    for fc in layers:\n        fc.weight.mul_(s)\n", False),
        ("def shrink(weight, layers, s):\n    weight.mul_(s)\n", True),
        # a mean of all data, and a training
        ("def compute_mean(loader):\n    for s in loader:\n        s.max(0)\n", False),
        ("def compute_mean(loader, f):\n    for s in loader:\n        f.step(s)\n", True),
    ],
)
def test_what_is_computed_once_of_weights_or_data_is_no_step(
    tmp_path: Path, text: str, *, shown: bool
) -> None:
    text = (
        f"import torch\n\n\n{text}    x = torch.ones(9)\n    x = x.to(s.device)\n    s[s > 0] = 0\n"
    )
    assert bool(places(scanned(tmp_path, {"a.py": text}))) is shown


_SIZES = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x):
        sizes = {}
        x = self.turn(x, sizes)
        return self.fold(x, sizes)

    def turn(self, x, sizes):
        return x, sizes.tolist()

    def fold(self, x, sizes):
        return x, sizes.tolist()
"""
_ROUNDS = """
import torch
from torch import nn


class Model(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        {}
        for i{} in {}:
            total = total + (x[i] - x[i].mean()).exp() * y[:, i]
        return total
"""
_KINDS = """
import torch
from torch import nn


class Head(nn.Module):
    def loss(self, x: torch.Tensor, kind: torch.Tensor):
        found = []
        for {} in {}:
            one = {}.assign(x[kind == i])
            found.append(one)
        return found
"""
_SCORES = """
import torch
import torch.nn.functional as F


def compute_loss(x: torch.Tensor, ids: torch.Tensor, lengths: list):
    loss = x.new_zeros(len(lengths))
    seqs, labels = x.split(lengths), ids.split(lengths)
    for i, (logits, target) in enumerate(zip(seqs, labels)):
        if len(target) > 1:
            loss[i] = F.cross_entropy({}, target[1:], reduction="sum")
    return loss
"""
_WAITS = """
import torch


def train_step(model, data):
    # {}
    torch.npu.synchronize()
    x = torch.as_tensor(data.rows, device="npu")
    return model(x)
"""
_DRAWN = """
import torch


def sample(logits: torch.Tensor):
    # {}
    drawn = torch.rand(logits.shape, dtype=torch.float64, device=logits.device)
    return (logits.exp() > drawn).any(-1)
"""


@pytest.mark.parametrize(
    ("rule", "text", "shown"),
    [
        ("NPU214", _SIZES.format("torch.stack([torch.tensor(u.shape[2:]) for u in x])"), False),
        ("NPU214", _SIZES.format("torch.stack([self.size(u) for u in x])"), True),
        ("NPU250", _ROUNDS.format("total = 0", "", "range(x.shape[0])"), True),
        ("NPU250", _ROUNDS.format("total = 0", ", n", "enumerate(x.shape[:2])"), False),
        ("NPU250", _ROUNDS.format("total = 0", "", "range(x.dim())"), False),
        ("NPU250", _KINDS.format("i", "range(9)", "self.assigner"), True),
        ("NPU250", _KINDS.format("i, assigner", "enumerate(self.assigners)", "assigner"), False),
        ("NPU250", _SCORES.format("logits[:-1]"), True),
        ("NPU250", _SCORES.format("logits[:-1].float()"), False),
        ("NPU320", _WAITS.format("Wait."), True),
        ("NPU320", _WAITS.format("The library writes on a different stream."), False),
        ("NPU225", _DRAWN.format("Draw."), True),
        ("NPU225", _DRAWN.format("Of float64."), True),
        ("NPU225", _DRAWN.format("In float64 to avoid zeros."), False),
    ],
)
def test_what_costs_nothing_or_was_chosen_is_not_told(
    tmp_path: Path, rule: str, text: str, *, shown: bool
) -> None:
    found = scanned(tmp_path, {"a.py": text}).report.findings
    assert (rule in {finding.rule for finding in found}) is shown


def test_who_calls_what_is_in_files_that_were_named_need_not_be_among_them(tmp_path: Path) -> None:
    text = (
        "import torch\n\n\ndef turn(x: torch.Tensor, r: torch.Tensor):\n"
        '    return torch.einsum("bmd,bds->bms", x, r)\n\n\n'
        "def evaluate(x: torch.Tensor, r: torch.Tensor):\n    return turn(x, r)\n"
    )
    files = [tmp_path / "a.py", tmp_path / "b.py"]
    for file in files:
        file.write_text(text if file.name == "a.py" else "import torch\n", encoding="utf-8")
    assert places(scan(read_source_tree(tmp_path))) == []
    named = read_source_trees(files, exclude_named=False)
    assert [place.rpartition("/")[2] for place in places(scan(named))] == ["a.py:5"]
