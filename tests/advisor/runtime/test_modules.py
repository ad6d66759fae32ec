"""``apply_fused_kernels(model)``: what changes, that nothing else does, and that all comes back."""

from __future__ import annotations

import copy
import importlib.util
import inspect
import io
import pickle
import sys
import traceback
import types
from typing import TYPE_CHECKING, Any

import pytest

torch = pytest.importorskip("torch")

import fused_models  # noqa: E402 - needs torch
from fused_models import Net, Norm  # noqa: E402 - needs torch
from torch import nn  # noqa: E402
from torch.nn.utils import parametrize  # noqa: E402

from npufix.advisor import apply_fused_kernels, fused_kernels  # noqa: E402 - needs torch
from npufix.advisor.runtime.modules.applying import UnusableModelError  # noqa: E402 - needs torch

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("fused modules")  # they share what was found in one file
CHANGED = {"first", "second", "decorated", "mixed"}
ON = "virtual-npu"


@pytest.fixture
def net() -> Net:
    torch.manual_seed(0)
    return Net()


@pytest.fixture
def x() -> Any:
    torch.manual_seed(1)
    return torch.randn(2, 3, fused_models.WIDTH)


def changed(model: nn.Module) -> set[str]:
    """Return the modules whose forward, or what it calls, is not the one of the file."""
    return {
        name
        for name, module in model.named_modules()
        if any("_npufix_exchange" in vars(cls) for cls in type(module).__mro__)
    }


def test_what_matches_is_replaced_and_the_rest_is_named(net: Net, x: Any) -> None:
    expected = net(x)
    with fused_kernels(net, on=ON) as done:
        assert changed(net) == CHANGED
        assert torch.equal(net(x), expected)
        functions = {one.spot.place.function for one in done.replaced}
        left = {one.cls: one.reason for one in done.left}
    assert functions >= {"Norm.forward", "Decorated.forward", "swiglu", "Mixed.gated"}
    assert left["Hidden"] == "forward is no plain function of its class"
    assert left["Derived"] == "Derived.forward calls it through super()"
    assert "Norm: first, second" in str(done)
    assert "asked at each call: one-dimensional-weight, same-dtype" in str(done)


def test_nothing_else_changes(net: Net) -> None:
    other, names = Net(), set(vars(fused_models))
    weights, state, shown = list(net.parameters()), list(net.state_dict()), repr(net)
    source = inspect.getsource(Norm.forward)
    with fused_kernels(net, on=ON):
        assert not changed(other)
        assert set(vars(fused_models)) == names
        assert all(a is b for a, b in zip(net.parameters(), weights, strict=True))
        assert (list(net.state_dict()), repr(net)) == (state, shown)
        assert isinstance(net.first, Norm)
        assert net.first.forward.__func__ is not Norm.forward
        assert net.first.forward.__func__.__globals__ is vars(fused_models)
        assert inspect.getsource(net.first.forward) == source
        assert not net.eval().first.training
    assert type(net.first) is Norm
    assert "forward" not in vars(net.first)


def test_a_traceback_shows_the_lines_of_the_file(net: Net) -> None:
    def failing(model: nn.Module) -> list[Any]:
        with pytest.raises(RuntimeError) as caught:
            model.first(torch.ones(2, 3))
        found = traceback.extract_tb(caught.value.__traceback__)
        return [(f.lineno, f.name, f.line) for f in found if f.filename == fused_models.__file__]

    before = failing(net)
    with fused_kernels(net, on=ON):
        assert failing(net) == before != []


def test_copies_are_fused_and_come_back_with_the_model(net: Net, x: Any) -> None:
    expected = net(x)
    with fused_kernels(net, on=ON):
        deep, shallow = copy.deepcopy(net), copy.copy(net.first)
        assert changed(deep) == CHANGED
        assert deep.first.weight is not net.first.weight
        assert shallow.weight is net.first.weight
        assert torch.equal(deep(x), expected)
        replica = net.first._replicate_for_data_parallel()
        replica.weight = torch.zeros(fused_models.WIDTH)
        assert not replica(x).any()  # it computes with its own weight
    assert not changed(deep)
    assert type(shallow) is Norm
    assert not changed(copy.deepcopy(deep))


def test_a_pickle_holds_the_users_own_classes(x: Any) -> None:
    net = nn.Sequential(Norm(), fused_models.Mixed())
    expected = net(x)
    with fused_kernels(net, on=ON):
        texts = [pickle.dumps(net, protocol) for protocol in range(6)]
        whole, weights = io.BytesIO(), io.BytesIO()
        torch.save(net, whole)
        torch.save(net.state_dict(), weights)
    loaded = [pickle.loads(text) for text in texts]  # noqa: S301 - just made
    whole.seek(0)
    weights.seek(0)
    loaded.append(torch.load(whole, weights_only=False))
    fresh = nn.Sequential(Norm(), fused_models.Mixed())
    fresh.load_state_dict(torch.load(weights, weights_only=True))
    for model in (*loaded, fresh):
        assert not changed(model)
        assert torch.equal(model(x), expected)
    assert not any(b"npufix" in text for text in texts)


def test_an_error_inside_and_a_second_time(net: Net) -> None:
    def broken() -> None:
        with fused_kernels(net, on=ON):
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert not changed(net)
    outer = apply_fused_kernels(net, on=ON)
    with fused_kernels(net, on=ON) as inner:
        assert not inner.replaced
        assert "it is on fused operators already" in str(inner)
    assert changed(net) == CHANGED
    outer.undo()
    outer.undo()
    assert not changed(net)


def test_what_is_put_on_top_meanwhile_stays(net: Net, x: Any) -> None:
    class Twice(nn.Module):
        def forward(self, weight: Any) -> Any:
            return weight * 2

    with fused_kernels(net, on=ON):
        net.first.forward = net.first.forward  # as transformers does to record attentions
        parametrize.register_parametrization(net.second, "weight", Twice())
        expected = net(x)
        assert torch.equal(copy.deepcopy(net)(x), expected)
    assert not changed(net)
    assert "forward" not in vars(net.first)
    assert torch.equal(net(x), expected)
    with fused_kernels(net, on=ON) as again:
        assert any("parametrized" in one.reason for one in again.left)
    parametrize.remove_parametrizations(net.second, "weight")
    assert type(net.second) is Norm


def test_a_forward_of_its_own_is_kept(net: Net, x: Any) -> None:
    net.first.forward = lambda x: x * 0
    net.second.forward = net.second.forward  # put back by somebody
    own, back = vars(net.first)["forward"], vars(net.second)["forward"]
    with fused_kernels(net, on=ON) as done:
        assert changed(net) == CHANGED - {"first"}
        assert any("was replaced by" in one.reason for one in done.left)
        assert not net.first(x).any()
    assert vars(net.first)["forward"] is own
    assert vars(net.second)["forward"] is back


def test_what_is_compiled_is_refused_or_left(net: Net, monkeypatch: pytest.MonkeyPatch) -> None:
    net.first._compiled_call_impl = print  # what ``net.first.compile()`` sets
    with fused_kernels(net, on=ON) as done:
        assert changed(net) == CHANGED - {"first"}
        assert ("it is compiled by torch.compile", ("first",)) in {
            (one.reason, one.modules) for one in done.left
        }
    # To import what ``torch.compile`` needs takes seconds.
    frame = types.SimpleNamespace(OptimizedModule=Net)
    monkeypatch.setitem(sys.modules, "torch._dynamo.eval_frame", frame)
    with pytest.raises(UnusableModelError, match="apply_fused_kernels comes before it"):
        apply_fused_kernels(net, on=ON)
    with pytest.raises(UnusableModelError, match=r"is no torch\.nn\.Module"):
        apply_fused_kernels(Net, on=ON)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_a_script_module_is_refused() -> None:
    scripted = torch.jit.trace(nn.Linear(2, 2), torch.ones(1, 2))
    with pytest.raises(UnusableModelError, match="ScriptModule"):
        apply_fused_kernels(scripted, on=ON)


def test_a_file_that_was_edited_after_the_import_is_not_gone_by(tmp_path: Path) -> None:
    path = tmp_path / "edited_model.py"
    text = inspect.getsource(sys.modules["fused_models"])
    path.write_text(text, "utf-8")
    spec = importlib.util.spec_from_file_location("edited_model", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    path.write_text(text.replace("torch.rsqrt(variance + self.eps)", "torch.rsqrt(variance)"))
    done = apply_fused_kernels(module.Norm(), on=ON)
    assert not done.replaced
    assert not done.left  # the edited file holds no RMSNorm any more
    path.write_text(text.replace("wide * torch", "torch.rsqrt(variance + self.eps) * wide #"))
    done = apply_fused_kernels(module.Norm(), on=ON)
    assert {one.reason for one in done.left} == {"what is loaded is not what its file says"}


@pytest.mark.parametrize(("scaling", "proven"), [(1.0, True), (0.5, True), (1.2, False)])
def test_the_model_proves_that_cosines_are_within_one(scaling: float, *, proven: bool) -> None:
    model = fused_models.Rotated(scaling)
    with fused_kernels(model, on=ON) as done:
        found = {one.spot.place.rule: one.spot.proven for one in done.replaced}
    assert found == {"NPU102": ("cosines-within-one",) if proven else ()}
    if not proven:
        assert "asked at each call: table-dtype, rotary-limits, cosines-within-one" in str(done)


def test_without_an_npu_and_switched_off_nothing_changes(net: Net) -> None:
    done = apply_fused_kernels(net, disable_fused_options=True, on=ON)
    assert (changed(net), str(done)) == (set(), "npufix: nothing was changed: it is switched off")
    with fused_kernels(net, on=ON, use_fused_rms_norm=False):
        assert changed(net) == {"mixed"}
    with fused_kernels(net, on=ON, rules=["eager-rms-norm"]):
        assert changed(net) == {"first", "second", "decorated"}
