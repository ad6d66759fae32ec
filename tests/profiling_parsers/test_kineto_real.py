"""Traces that the torch.profiler installed here writes."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from npufix.profiling_parsers.kineto.file import is_kineto
from npufix.profiling_parsers.kineto.reader import read_kineto

if TYPE_CHECKING:
    from npufix.profiling_parsers.profile import Profile

pytestmark = pytest.mark.filterwarnings("ignore")  # torch's own
HERE = Path(__file__).name
BARE, FULL = "bare.pt.trace.json", "full.pt.trace.json.gz"
"""Without and with stacks and shapes."""


def train(path: Path, **settings: Any) -> None:
    torch = pytest.importorskip("torch")
    from torch.profiler import ProfilerActivity, profile, schedule

    model = torch.nn.Sequential(torch.nn.Linear(64, 256), torch.nn.ReLU(), torch.nn.Linear(256, 8))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2),
        on_trace_ready=lambda profiler: profiler.export_chrome_trace(str(path)),
        **settings,
    ) as profiler:
        for _ in range(3):
            loss = model(torch.randn(512, 64)).square().mean()
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            profiler.step()


Trained = tuple["Profile", list[dict[str, Any]]]
Train = Callable[[str], Trained]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Train:
    folder = tmp_path_factory.mktemp("kineto")
    known: dict[str, Trained] = {}

    def run(name: str) -> Trained:
        if name not in known:
            path, full = folder / name, name == FULL
            train(path, with_stack=full, record_shapes=full)
            assert is_kineto(path)
            data = path.read_bytes()
            text = gzip.decompress(data) if full else data
            known[name] = read_kineto(path), json.loads(text)["traceEvents"]
        return known[name]

    return run


@pytest.mark.parametrize("name", [BARE, FULL])
def test_self_times_add_up_to_the_time_in_operators(trained: Train, name: str) -> None:
    profile, events = trained(name)
    operators = [event for event in events if event.get("cat") == "cpu_op"]
    assert len(profile.kernels) == len(operators)
    assert profile.kernels["type"].value_counts().sum() == len(operators)
    union = 0
    for thread in {event["tid"] for event in operators}:
        latest = 0
        spans = sorted(
            (round(e["ts"] * 1000), round(e["ts"] * 1000) + round(e["dur"] * 1000))
            for e in operators
            if e["tid"] == thread
        )
        for start, end in spans:
            union += max(end - max(start, latest), 0)
            latest = max(latest, end)
    # An operator of no length counts as 1 ns.
    assert profile.kernels["duration_ns"].sum() == pytest.approx(union, abs=len(operators))


@pytest.mark.parametrize("name", [BARE, FULL])
def test_matrix_products_are_hot_and_led_to_their_step(trained: Train, name: str) -> None:
    profile, _ = trained(name)
    count = profile.kernels["type"].value_counts()
    assert count["aten::addmm"] == 4
    assert count["aten::mm"] >= 4
    assert sorted(profile.kernels["step"].dropna().unique()) == [1, 2]
    assert (profile.steps["computing_ns"] > 0).all()
    assert set(profile.kernels["core"]) == {"CPU"}
    assert profile.environment.with_stack is (True if name == FULL else None)


def test_shapes_of_the_products(trained: Train) -> None:
    kernels = trained(FULL)[0].kernels
    products = kernels[kernels["type"] == "aten::addmm"]
    assert set(products["input_shapes"]) == {"256;512,64;64,256", "8;512,256;256,8"}
    assert set(products["input_dtypes"]) == {"FLOAT;FLOAT;FLOAT"}


def test_forward_and_backward_lead_to_the_model(trained: Train) -> None:
    profile, _ = trained(FULL)
    kernels = profile.kernels
    time = kernels["duration_ns"].to_numpy()
    in_this_file = np.array(
        [any(site.path.endswith(HERE) for site in stack) for stack in profile.stacks] + [False]
    )[kernels["stack"].to_numpy()]
    assert time[in_this_file].sum() > 0.9 * time.sum()
    forward = kernels[(kernels["type"] == "aten::addmm")]
    modules = {profile.modules[row].split("/")[-1] for row in forward["module"]}
    assert len(modules) == 2
    assert all(name.startswith("Linear_") for name in modules)
    backward = kernels[(kernels["type"] == "aten::mm")]
    assert set(backward["basis"]) == {"forward-function"}


def test_without_stacks_it_says_so(trained: Train) -> None:
    profile, _ = trained(BARE)
    assert not (profile.kernels["stack"] >= 0).any()
    problem = next(one for one in profile.problems if "no call stacks" in one.what)
    assert "with_stack=True" in problem.remedy
    assert not problem.damaged
