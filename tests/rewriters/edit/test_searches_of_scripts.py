"""What scripts have decided: where a value lies, which class trains, who holds gradients back."""

from __future__ import annotations

import pytest
from searching import found


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("not sizes.is_cuda", False),
        ("not x.is_cuda and not sizes.is_cuda", False),
        ("not x.is_cuda", True),
        ("not (sizes.is_cuda and x.is_cuda)", True),  # perhaps one of them is
        ("sizes.is_cuda", True),
    ],
)
def test_a_branch_may_be_that_of_the_host(test: str, *, told: bool) -> None:
    text = f"""
    class Block(nn.Module):
        def forward(self, x: torch.Tensor, sizes: torch.Tensor):
            if {test}:
                return x * sizes.item()
            return x
    """
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(("test", "told"), [("torch.is_tensor(n)", False), ("n.dim()", True)])
def test_what_may_be_no_tensor_comes_from_the_host(test: str, *, told: bool) -> None:
    text = f"""
    class Block(nn.Module):
        def forward(self, x: torch.Tensor, sizes):
            return [n.tolist() if {test} else list(n) for n in sizes]
    """
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("kept", "told"), [("starts.append(start)", False), ("losses.append(start)", True)]
)
def test_where_parts_begin_is_no_log(kept: str, *, told: bool) -> None:
    text = f"""
    class Packed(nn.Module):
        def forward(self, ids: torch.Tensor, names: torch.Tensor):
            start, starts, losses = 0, [], []
            for name in names:
                length = (ids == name).sum().item()
                start += length
                {kept}
            return starts, losses
    """
    assert any("logged" in site.problem for site in found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("near", "told"),
    [
        ("kind = lion.Lion", False),
        ("try: kind = lion.Lion\n            except AttributeError: raise", False),
        ("kind = torch.optim.AdamW", True),
        ("pass", True),
    ],
)
def test_the_class_that_a_branch_has_chosen_is_made_there(near: str, *, told: bool) -> None:
    text = f"""
    def build(params, name, kind):
        if name == "lion":
            {near}
            return kind(params, lr=1e-3)
        kind = torch.optim.AdamW
        return kind
    """
    assert bool(found(text, "NPU169")) is told


@pytest.mark.parametrize(
    ("way", "told"), [("model.no_sync()", False), ("Join([model])", True)], ids=["held", "free"]
)
def test_a_base_class_may_hold_gradients_back(way: str, *, told: bool) -> None:
    text = f"""
    from torch.nn.parallel import DistributedDataParallel

    class Engine:
        def context(self, model):
            return {way}

    class Trainer(Engine):
        def train_step(self, model, batches):
            model = DistributedDataParallel(model)
            for _ in range(self.args.gradient_accumulation_steps):
                with self.context(model):
                    loss = model(next(batches))
                self.strategy.backward(loss)
            return loss
    """
    assert bool(found(text, "NPU175")) is told


@pytest.mark.parametrize(
    ("name", "told"), [("check_same", False), ("assert_same", False), ("compute_loss", True)]
)
def test_who_checks_all_ranks_waits_on_purpose(name: str, *, told: bool) -> None:
    text = f"""
    import torch.distributed as dist

    def {name}(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        dist.broadcast(y, src=0)
        assert (x == y).all()
        return x
    """
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(
    ("workers", "told"),
    [
        ("", True),
        (", num_workers=1", False),
        (", num_workers=0", False),
        (", sampler=DistributedSampler(texts), num_workers=1", True),
        (", sampler=DistributedSampler(texts), num_workers=0", False),
    ],
)
def test_who_writes_one_worker_has_chosen_it(workers: str, *, told: bool) -> None:
    text = f"""
    from torch.utils.data import DataLoader

    def train_loader(texts):
        return DataLoader(texts, batch_size=4, shuffle=True{workers})
    """
    assert bool(found(text, "NPU270")) is told


@pytest.mark.parametrize(
    ("host", "device", "told"),
    [
        ("torch.device('cpu')", "host", False),
        ("'cpu'", "host", False),
        ("None", "torch.device('cpu')", False),
        ("x.device", "host", True),
    ],
)
def test_a_device_of_another_name_may_be_the_host(host: str, device: str, *, told: bool) -> None:
    text = f"""
class Solver(nn.Module):
    def forward(self, x: torch.Tensor, limit: float):
        host = {host}
        return self.solve(x, torch.tensor([limit, 2.0], device={device}))
"""
    assert bool(found(text, "NPU219")) is told


@pytest.mark.parametrize(("name", "told"), [("BoxHead", True), ("BoxHeadInference", False)])
def test_what_makes_results_has_no_backward_pass(name: str, *, told: bool) -> None:
    text = f"""
    class {name}(nn.Module):
        def forward(self, at: torch.Tensor, deltas: torch.Tensor):
            left, top = at[:, 0] - deltas[:, 0], at[:, 1] - deltas[:, 1]
            return torch.stack([left, top, at[:, 0] + deltas[:, 2], at[:, 1] + deltas[:, 3]], dim=1)
    """
    assert bool(found(text, "NPU268")) is told


@pytest.mark.parametrize(("columns", "told"), [("", True), ("[2:]", True), ("[:, -8:]", False)])
def test_columns_of_a_batch_are_not_pinned(columns: str, *, told: bool) -> None:
    text = f"""
    def train(model, loader, optimizer, device):
        for x, y in loader:
            x = x{columns}.to(device)
            loss = model(x, y)
            loss.backward()
    """
    assert bool(found(text, "NPU219")) is told


@pytest.mark.parametrize(("ends", "written"), [("n[:, None]", False), ("n", True)])
def test_a_mask_of_two_dimensions_is_no_vector(ends: str, *, written: bool) -> None:
    text = f"""
    class Pack(nn.Module):
        def forward(self, x, place, n, width: int):
            positions = torch.arange(width, device=x.device){"[None, :]" if not written else ""}
            known = positions < {ends}
            return x[known] + place[:, known]
    """
    assert [site.rewrite is not None for site in found(text, "NPU218")] == [written]
