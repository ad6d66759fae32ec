"""What training and decoding loops wait for: losses that are watched, ends, clocks, batches."""

from __future__ import annotations

import pytest
from searching import found, rewritten


@pytest.mark.parametrize(
    ("read", "test", "told"),
    [
        ("value = loss.item()", "if not math.isfinite(value):\n            sys.exit(1)", True),
        ("value = loss.item()", "assert math.isfinite(value)", True),
        (
            "value = sum(losses.values())",
            "if not math.isfinite(value):\n            sys.exit()",
            True,
        ),
        ("value = loss.mean()", "if math.isnan(value):\n            raise ValueError", True),
        # a step is skipped, and a number is no tensor
        ("value = loss.item()", "if not math.isfinite(value):\n            continue", False),
        ("value = loss.mean()", "if math.isnan(value):\n            continue", False),
        ("value = self.rate", "if math.isnan(value):\n            raise ValueError", False),
        # the step goes on with it
        ("value = loss.item()", "assert math.isfinite(value)\n        self.adapt(value)", False),
    ],
)
def test_a_stop_where_the_loss_is_not_finite_waits_in_each_step(
    read: str, test: str, *, told: bool
) -> None:
    text = f"""
import math

def train_epoch(self, batches, meters):
    for losses in batches:
        loss = torch.nn.functional.mse_loss(losses["x"], losses["y"])
        loss.backward()
        {read}
        {test}
        meters.update(loss=value)
"""
    assert ["finite" in site.problem for site in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("inner", "in_epoch", "written"),
    [
        ("losses.append(loss.item())", "pass", True),
        ("value = loss.item()\n            losses.append(value)", "pass", True),
        ("losses.append(loss.item())", "print(losses)", False),
        ("losses.append(loss.item())", "losses.append(0.0)", False),
        ("value = loss.item()\n            self.see(value)", "pass", False),
    ],
)
def test_a_list_of_all_epochs_is_read_behind_the_last(
    inner: str, in_epoch: str, *, written: bool
) -> None:
    text = f"""
def train_epochs(self, parts):
    losses = []
    for part in parts:
        for batch in part:
            loss = self.model(batch).mean()
            loss.backward()
            {inner}
        {in_epoch}
    self.log(losses)
"""
    new = rewritten(text, "NPU214") if written else ""
    read = "    losses = torch.stack(losses).tolist() if losses else []\n    self.log(losses)"
    assert (read in new) is written
    assert written or not any(site.rewrite for site in found(text, "NPU214"))


@pytest.mark.parametrize(
    ("added", "behind"),
    [
        ("xs.append(float(hits.item()))", "xs = [float(n) for n in torch.stack(xs).tolist()]"),
        ("xs.append(int(y.max().item()))", "xs = [int(n) for n in torch.stack(xs).tolist()]"),
        ("xs.append(float(y.mean().item()))", "xs = torch.stack(xs).tolist() if xs"),
        ("xs.append(hits.item())", "xs = torch.stack(xs).tolist() if xs"),
        ("n += hits.item()", "n = int(n)"),
        ("n += float(hits.item())", "n = float(n)"),
        ("n += int(y.sum().item())", ""),  # cut off before it is added
    ],
)
def test_what_is_read_later_is_the_same_kind_of_number(added: str, behind: str) -> None:
    text = f"""
def train(model, loader, optimizer):
    xs, n = [], 0
    for x in loader:
        y = model(x)
        y.mean().backward()
        optimizer.step()
        hits = (y > 0).sum()
        {added}
    return xs, n
"""
    assert bool(behind) is any(site.rewrite for site in found(text, "NPU214"))
    assert not behind or behind in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    ("use", "written"),
    [
        ("n = n * self.groups[0]\n        for x in xs:\n            self.get_loss(x, n)", True),
        ("for x in xs:\n            self.get_loss(x, n)", True),
        ("n = n * self.groups[0]\n        for x in xs:\n            self.show(x, n)", False),
        ("n = n * self.groups[0]\n        self.n = n\n        return self.get_loss(xs, n)", False),
    ],
)
def test_a_number_that_losses_divide_by_stays_on_the_device(use: str, *, written: bool) -> None:
    text = f"""
class Criterion(nn.Module):
    def forward(self, xs, boxes: torch.Tensor):
        n = torch.clamp(boxes.sum(), min=1).item()
        {use}
"""
    assert any(site.rewrite for site in found(text, "NPU214")) is written


@pytest.mark.parametrize(
    ("head", "test", "told"),
    [
        ("while True", "torch.sigmoid(gate(y)) > 0.5", True),
        ("while len(ys) < 9", "(y == 2).all()", True),
        ("for _ in range(9)", "torch.sigmoid(gate(y)) > 0.5", True),
        ("while True", "torch.sigmoid(gate(y)).cpu() > 0.5", False),
        ("while True", "len(ys) > self.most", False),
        ("while True", "self.n > y.shape[1]", False),
    ],
)
def test_the_end_of_a_text_is_asked_for_in_each_round(head: str, test: str, *, told: bool) -> None:
    text = f"""
class Decoder(nn.Module):
    def decode_step(self, y: torch.Tensor, gate, ys):
        {head}:
            y = torch.relu(self.net(y))
            ys.append(y)
            if {test}:
                break
            elif len(ys) == self.most:
                break
        return ys
"""
    assert ["whether it is the last" in s.problem for s in found(text, "NPU217")] == [True] * told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("get_mask_from_lengths", True),
        ("make_pad_mask", True),
        ("sequence_mask", True),
        ("load_mask", False),
        ("mask_name", False),
    ],
)
def test_masks_of_lengths_are_made_in_each_step(name: str, *, told: bool) -> None:
    text = f"""
def {name}(lengths):
    longest = torch.max(lengths).item()
    return torch.arange(0, longest, device=lengths.device) < lengths.unsqueeze(1)
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("code", "written"),
    [
        ("[{k: v.to(device) for k, v in t.items()} for t in targets]", True),
        ("[t.to(device) for t in targets]", True),
        ("[t.to(self.cpu_device) for t in targets]", False),
        ('[t.to(torch.device("cpu")) for t in targets]', False),
        ("[t.to(device_of_host) for t in targets]", False),
        ("[t.to(self.accelerator.device) for t in targets]", False),  # it is there
        ("[self.take(t).to(device) for t in self.others]", False),
    ],
)
def test_batches_in_lists_and_dictionaries_are_copied_together(code: str, *, written: bool) -> None:
    text = f"""
def train_epoch(self, loader, device):
    for x, targets in loader:
        targets = {code}
        loss = self.model(x, targets)
        loss.backward()
"""
    sites = found(text, "NPU219")
    assert len(sites) == written
    assert not written or "to(device, non_blocking=True)" in rewritten(text, "NPU219")


@pytest.mark.parametrize(("mask", "told"), [("self.dones", False), ("self.chosen", True)])
def test_episodes_that_end_are_few(mask: str, *, told: bool) -> None:
    text = f"""
class Agent:
    def train_step(self, x: torch.Tensor, loss):
        ended = {mask}.nonzero(as_tuple=False)
        self.scores = x[ended]
        loss.backward()
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(("use", "told"), [("x[:, :n]", False), ("x.exp() * n", True)])
def test_what_is_a_size_anyway_may_be_compared(use: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor, lengths: torch.Tensor):
        n = lengths.max()
        if n < self.least:
            n = self.find(x)
        return {use}
"""
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(("launch", "told"), [("kernel[(1,)](x, pad)", False), ("0", True)])
def test_what_a_kernel_writes_into_is_no_table(launch: str, *, told: bool) -> None:
    text = f"""
def compute_grads(x: torch.Tensor, kernel):
    pad = torch.zeros(8, 8, device=x.device)
    {launch}
    table = pad[:, :4].contiguous().exp().cumsum(0)
    return table * x
"""
    assert bool(found(text, "NPU322")) is told


@pytest.mark.parametrize(("copy", "told"), [("clone()", False), ("cumsum(0)", True)])
def test_a_copy_of_a_table_is_made_to_be_written(copy: str, *, told: bool) -> None:
    text = f"""
def forward(x: torch.Tensor):
    base = torch.eye(8, device=x.device)
    table = base.{copy}
    if x.dim() > 2:
        table.add_(x[0], alpha=2.0)
    return table * x
"""
    assert bool(found(text, "NPU322")) is told


@pytest.mark.parametrize(
    ("base", "points", "told"),
    [
        ("LayerSequence", "torch.linspace(0.5, W - 0.5, W, dtype=dtype, device=device)", True),
        ("Function", "torch.linspace(0.5, W - 0.5, W, dtype=dtype, device=device)", False),
        ("LayerSequence", "torch.rand(W, dtype=dtype, device=device)", False),
    ],
)
def test_points_of_an_image_are_made_in_each_call(base: str, points: str, *, told: bool) -> None:
    text = f"""
class Encoder({base}):
    @staticmethod
    def get_reference_points(H, W, bs=1, device="cuda", dtype=torch.float):
        rows = torch.linspace(0.5, H - 0.5, H, dtype=dtype, device=device)
        y, x = torch.meshgrid(rows, {points})
        points = torch.stack((x.reshape(-1)[None] / W, y.reshape(-1)[None] / H), -1)
        points = points.repeat(bs, 1, 1).unsqueeze(2)
        return points

    def forward(self, x):
        return self.net(x, self.get_reference_points(9, 9))
"""
    assert bool(found(text, "NPU322")) is told


@pytest.mark.parametrize(
    ("call", "told"),
    [("linear_sum_assignment(c[0])", True), ("self.keep(c[0])", False)],
)
def test_costs_of_all_layers_are_copied_at_once(call: str, *, told: bool) -> None:
    text = f"""
class Matcher(nn.Module):
    def forward(self, outputs: torch.Tensor, targets):
        c = torch.cdist(outputs, targets, p=1)
        c = c.view(2, 3, -1).cpu()
        return {call}
"""
    assert ["all decoder" in s.problem for s in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("before", "after", "written"),
    [
        ("losses = []", "losses = np.mean(losses)", True),
        ("losses = self.kept()", "losses = np.mean(losses)", False),
        ("if part.first:\n            losses = []", "losses = np.mean(losses)", False),
    ],
)
def test_a_list_that_becomes_its_mean_starts_anew(
    before: str, after: str, *, written: bool
) -> None:
    text = f"""
def train_epochs(self, parts):
    losses = []
    for part in parts:
        {before}
        for batch in part:
            loss = self.model(batch).mean()
            loss.backward()
            losses.append(loss.item())
        {after}
        self.log(losses)
"""
    assert any(site.rewrite for site in found(text, "NPU214")) is written


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("torch.cuda.empty_cache()", True),
        ("if step % 10 == 0:\n            torch.cuda.empty_cache()", True),
        ("if step % 1000 == 0:\n            torch.cuda.empty_cache()", False),
        (
            "try:\n            y\n        except OSError:\n            torch.cuda.empty_cache()",
            False,
        ),
        ("self.cache.empty_cache()", False),
        ("self.net.train()\n        torch.cuda.empty_cache()", True),
        ("self.trainer.ppo_train(x)\n        torch.cuda.empty_cache()", False),  # many steps
    ],
)
def test_memory_is_not_given_back_in_each_step(code: str, *, told: bool) -> None:
    text = f"""
class ComputeLoss:
    def __call__(self, x, step):
        y = self.assign(x)
        {code}
        return y.mean()
"""
    assert ["empty_cache" in s.problem for s in found(text, "NPU320")] == [True] * told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("train_kmeans", False),
        ("_wrapped_train", False),
        ("deparallelize", False),
        ("train_step", True),
    ],
)
def test_memory_may_be_given_back_before_all_steps(name: str, *, told: bool) -> None:
    text = f"def {name}(x, model):\n    torch.cuda.empty_cache()\n    return model(x)\n"
    assert bool(found(text, "NPU320")) is told


@pytest.mark.parametrize(("end", "told"), [('raise ValueError(f"{bad}")', False), ("pass", True)])
def test_who_only_goes_on_to_fail_may_wait(end: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        if self.quick:
            return x
        bad = x.isnan().sum().item()
        self.seen = x * bad
        {end}
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("called", "told"), [("lib.free_matrix(q)", False), ("lib.freeze(q)", True)]
)
def test_what_kernels_may_still_read_is_freed_behind_a_wait(called: str, *, told: bool) -> None:
    text = f"""
def train_step(x, model, q, lib):
    y = model(x)
    torch.cuda.synchronize()
    {called}
    return y
"""
    assert bool(found(text, "NPU320")) is told


@pytest.mark.parametrize(
    ("called", "written"), [("monitor_loss_spike", False), ("scaled_loss", True)]
)
def test_who_is_told_a_number_may_keep_it_as_one(called: str, *, written: bool) -> None:
    text = f"""
class Criterion(nn.Module):
    def forward(self, monitor, x: torch.Tensor, y: torch.Tensor):
        loss = (x - y).mean()
        monitor.{called}(y, loss.item())
        return loss
"""
    assert any(site.rewrite for site in found(text, "NPU214")) is written


@pytest.mark.parametrize("name", ["train_epochs", "recognize_beam_batch"])
def test_an_epoch_or_a_text_may_end_with_memory_given_back(name: str) -> None:
    text = """
def train_epochs(model, loader, optimizer):
    for epoch in range(9):
        for batch in loader:
            loss = model(batch)
            loss.backward()
            optimizer.step()
        torch.cuda.empty_cache()
"""
    if name != "train_epochs":
        text = "class Decoder:\n    def forward(self, x):\n        pass\n\n"
        text += f"    def {name}(self, x, steps):\n        for t in range(steps):\n"
        text += "            x = self.step(x)\n        torch.cuda.empty_cache()\n        return x\n"
    assert found(text, "NPU320") == []


@pytest.mark.parametrize(
    ("index", "new"),
    [
        ("torch.arange(b)[:, None]", "torch.arange(b, device=q.device)[:, None]"),
        ("torch.arange(b).unsqueeze(1)", "torch.arange(b, device=q.device).unsqueeze(1)"),
        ("torch.arange(b)[n]", ""),
        ("torch.arange(b, device=q.device)[:, None]", ""),
    ],
)
def test_a_view_of_a_range_of_the_host_is_one(index: str, new: str) -> None:
    text = f"""
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, top: torch.Tensor, n: int):
        b = q.shape[0]
        return q[{index}, top, :]
"""
    assert len(found(text, "NPU212")) == bool(new)
    assert not new or new in rewritten(text, "NPU212")


def test_a_step_is_made_of_blocks_that_are_called() -> None:
    text = """
import torch as th

class {0}:
    def __call__(self, x: th.Tensor, device):
        return self.model(x, th.tensor(self.steps, device=device))
"""
    assert len(found(text.format("WrappedModel"), "NPU219")) == 1
    assert found(text.format("Tokenizer"), "NPU219") == []


@pytest.mark.parametrize(
    ("loop", "written"),
    [
        ("for step in range(9):\n        x, y = next(batches)", True),
        ("while step < 9:\n        x, y = next(loader)", True),
        ("for step in range(9):\n        x, y = next(self.noise)", False),
        ("for step in range(9):\n        x, y = self.draw(batches)", False),
    ],
)
def test_batches_of_an_iterator_are_copied_without_a_wait(loop: str, *, written: bool) -> None:
    text = f"""
def train(self, loader, device, step):
    batches = iter(loader)
    {loop}
        x = x.to(device)
        loss = self.model(x, y)
        loss.backward()
"""
    assert len(found(text, "NPU219")) == written
    assert not written or "x.to(device, non_blocking=True)" in rewritten(text, "NPU219")


@pytest.mark.parametrize(
    ("kept", "written"),
    [
        ('scalars.update({"loss": loss.clone().detach().cpu()})', True),
        ('scalars = {"loss_c": loss_c.detach().cpu()}', True),
        ('scalars.update({"map": heat_map.detach().cpu()})', False),
        ('np.save("x", {"loss": loss.detach().cpu()})', False),
    ],
)
def test_losses_of_a_log_are_not_copied_in_each_step(kept: str, *, written: bool) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, data, loss, loss_c, heat_map, scalars):
        {kept}
        data.update({{"scalars": scalars}})
"""
    new = [site.rewrite for site in found(text, "NPU214")]
    assert any(new) is written


@pytest.mark.parametrize(
    ("made", "use", "copied"),
    [
        ("loss = y.mean()", "total += 2 * loss.detach()", False),
        ("loss = y.mean()", "self.see(loss.detach().item())", False),
        ("loss = y.mean()", "seen = loss.detach()\n        seen.mul_(2)", True),
        ("loss = y.mean()", "loss.detach().zero_()", True),
        ("kept = loss = y.mean()", "kept.zero_()", True),
        ("loss = max(y, x)", "x.zero_()", True),  # of Python: one of the two
        ("loss = F.mse_loss(y, x)", "self.optim.step(loss)", False),
        ("loss = 2 * y.mean() + x.sum()", "self.scaler.scale(loss)", False),
        ("loss = -y.mean()", "self.seen.append(loss)", True),
        ("loss = +y", "y.zero_()", True),  # the same tensor
    ],
)
def test_a_loss_that_has_another_name_is_kept_as_a_copy(
    made: str, use: str, *, copied: bool
) -> None:
    text = f"""
def train_epoch(self, batches, total):
    losses = []
    for x in batches:
        y = self.model(x)
        {made}
        loss.backward()
        losses.append(loss.item())
        {use}
    self.log(losses)
"""
    assert ("losses.append(loss.detach().clone())" in rewritten(text, "NPU214")) is copied


@pytest.mark.parametrize(
    ("path", "told"), [("align(row.log().cpu())", False), ("align(row.log())", True)]
)
def test_a_round_that_waits_anyhow_may_read_its_length(path: str, *, told: bool) -> None:
    text = f"""
class ComputeLoss:
    def __call__(self, x: torch.Tensor, lengths: torch.Tensor):
        parts = []
        for i in range(len(x)):
            row = x[i, : lengths[i]].exp()
            parts.append(self.mean(row, {path}))
        return torch.stack(parts)
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(("after", "told"), [("x.mean()", True), ("picked.mean()", False)])
def test_what_is_selected_anyhow_has_a_size(after: str, *, told: bool) -> None:
    text = f"""
class ComputeLoss:
    def __call__(self, x: torch.Tensor, mask: torch.Tensor, y: torch.Tensor):
        picked = x[mask.bool()]
        assert y.size(0) == picked.size(0)
        return {after}
"""
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(
    ("given", "told"), [("x, dtype=torch.float64", False), ("y.exp(), dtype=torch.float64", True)]
)
def test_what_is_made_a_tensor_of_stays_where_it_is(given: str, *, told: bool) -> None:
    text = f"""
class ComputeLoss:
    def __call__(self, x, y: torch.Tensor):
        return torch.as_tensor({given}) + y
"""
    assert bool(found(text, "NPU225")) is told


@pytest.mark.parametrize(("how", "told"), [("as_tensor", False), ("tensor", True)])
def test_a_tensor_is_not_copied_once_more(how: str, *, told: bool) -> None:
    text = f"""
class Optimizer:
    def step(self, params, state):
        return [torch.{how}(state[p], device=p.device) for p in params]
"""
    assert bool(found(text, "NPU219")) is told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("return x.double()", True),
        ("return x.to(torch.float64 if x.dtype == torch.float64 else torch.float32)", False),
        ("return x.to(torch.float64 if self.exact else torch.float32)", True),
        ("try:\n            f(x)\n        except OSError:\n            f(x.double())", False),
        ("return torch.allclose(f(x).double(), y)", False),
    ],
)  # fmt: skip
def test_double_precision_on_purpose_is_left_alone(code: str, *, told: bool) -> None:
    text = f"class ComputeLoss:\n    def __call__(self, x: torch.Tensor, y, f):\n        {code}\n"
    assert bool(found(text, "NPU225")) is told


@pytest.mark.parametrize(
    ("kind", "told"),
    [("torch.Tensor", True), ("np.ndarray", False), ("npt.NDArray[np.int64] | None", False)],
)
def test_places_in_an_array_are_no_wait(kind: str, *, told: bool) -> None:
    text = f"""
def compute_loss(x: torch.Tensor, kinds: {kind}):
    at = kinds.nonzero()[0]
    return x[at].mean()
"""
    assert bool(found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("body", "written"),
    [
        ("losses = list(map(lambda x: x / factor, losses))", True),
        ("losses = [x / factor for x in losses]", True),
        ("for i in range(2):\n            losses[i] = losses[i] / factor", True),
        # others get it, something else is divided, or who is divided by
        ("losses = [x / factor for x in losses]\n        self.last = factor", False),
        ("sizes = list(map(lambda x: x / factor, sizes))", False),
        ("losses = [factor / x for x in losses]", False),
        ("losses = [x / factor for x in losses]\n        factor = 2", False),
    ],
)
def test_each_loss_of_several_is_divided_by_a_tensor(body: str, *, written: bool) -> None:
    text = f"""
class Head(nn.Module):
    def loss(self, scores, factors):
        losses, sizes = multi_apply(self.loss_single, scores)
        factor = sum(factors)
        factor = reduce_mean(factor).clamp_(min=1).item()
        {body}
        return dict(loss=losses, sizes=sizes)
"""
    sites = found(text, "NPU214")
    assert [site.rewrite is not None for site in sites] == [True] * written
    assert not written or "clamp_(min=1).detach().reshape(())" in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    ("given", "use", "told"),
    [
        ("torch.Tensor", "torch.zeros((4, n), device=x.device)", True),
        ("torch.Tensor", "torch.zeros(size=[n + 1, 4])", True),
        ("torch.Tensor", "scatter_add(x, at, dim_size=n)", True),
        ("Dict[str, torch.Tensor]", "torch.zeros(n)", True),
        ("list[torch.Tensor]", "torch.zeros(n)", True),
        # no size, and no tensor
        ("torch.Tensor", "scatter_add(x, n, dim_size=4)", False),
        ("torch.Tensor", "(x, n)", False),
        ("Dict[str, int]", "torch.zeros(n)", False),
        ("dict[str, str]", "torch.zeros(n)", False),
        ("list[int]", "torch.zeros((4, n))", False),
    ],
)
def test_the_size_that_a_value_of_the_device_becomes_is_told(
    given: str, use: str, *, told: bool
) -> None:
    part = "at" if given == "torch.Tensor" else "at['n']" if "str," in given else "at[0]"
    text = f"""
class Energy(nn.Module):
    def forward(self, x: torch.Tensor, at: {given}):
        last = {part}
        n = int(last{"[-1]" if "ensor" in given else ""}) + 1
        return {use}
"""
    assert ["size" in site.problem for site in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("step", "told"),
    [
        ("self.optim.step(loss)", True),
        ("self.scaler.scale(loss).backward()\n        self.scaler.step(self.optimizer)", True),
        ("self.manual_backward(loss)\n        opt.step()", True),
        ("self._backward(loss)\n        self.net_optim.step()", True),
        ("self.env.step(loss)", False),
        ("self.optim.step(closure)", False),
    ],
)
def test_who_hands_a_loss_to_the_optimizer_takes_a_step(step: str, *, told: bool) -> None:
    text = f"""
class Agent:
    def _refine_with(self, batch, opt, closure):
        loss = F.mse_loss(batch.x, batch.y)
        {step}
        return Stats(loss=loss.item())
"""
    assert len(found(text, "NPU214")) == told


@pytest.mark.parametrize(
    ("made", "told"),
    [("pass", True), ("self.head = nn.Linear(3, 3)", False)],  # made where it is missing
)
def test_a_part_that_a_module_has_or_not_is_no_rare_case(made: str, *, told: bool) -> None:
    text = f"""
class Tracker(nn.Module):
    def __init__(self, head=None):
        super().__init__()
        self.head = head

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        if self.head is None:
            {made}
            if (x[:, 0] >= y).any():
                x = self.refined(x, y)
        return x
"""
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(
    ("other", "told"), [("torch.tensor(self.short, device=x.device)", 2), ("x.new_ones(2)", 0)]
)
def test_numbers_are_copied_in_every_call_where_others_are_if_not_these(
    other: str, *, told: int
) -> None:
    text = f"""
    class Rotary(nn.Module):
        def __init__(self, short, long):
            super().__init__()
            self.short = short
            self.long = long

        def forward(self, x: torch.Tensor, at: torch.Tensor):
            if torch.max(at) + 1 > self.limit:
                scale = torch.tensor(self.long, device=x.device)
            else:
                scale = {other}
            return x * scale
    """
    sites = found(text, "NPU219")
    assert [s.rewrite is not None for s in sites] == [True] * told
    assert len(found(text, "NPU217")) == 1  # what is added to the number is one of Python


@pytest.mark.parametrize(
    ("stats", "written"),
    [
        ("dict(total=loss.item(), n=8)", True),
        ("dict(losses=dict(total=loss.item()), n=8)", True),
        ("self.table(losses=dict(total=loss.item()))", None),  # which may need numbers
    ],
)
def test_a_dictionary_that_is_called_for_keeps_what_is_logged(
    stats: str, *, written: bool | None
) -> None:
    text = f"""
    class Policy(nn.Module):
        def loss(self, x: torch.Tensor, y: torch.Tensor):
            loss = (x * y).mean()
            stats = {stats}
            return loss, stats
    """
    sites = found(text, "NPU214")
    assert [s.rewrite is not None for s in sites if "detach" in str(s.rewrite)] == (
        [] if written is None else [written]
    )


@pytest.mark.parametrize(
    ("body", "told"),
    [
        # the host has waited for the same, or for what the next statement is told
        ("for y in xs:\n            t = y.max()\n            if t > 0:\n                {}", 0),
        ("for y in xs:\n            t = y.max()\n            if n > 0:\n                {}", 1),
        ("e = (a / b).item() if b > 0 else 0.0", 0),
        ("e = a / b if b > 0 else 0.0", 1),
        # what the host has made and other ranks have written to
        ("if self.reduce(torch.tensor(n, device=x.device)).item() > 0:\n            x = x + 1", 0),
        ("f = torch.tensor(n).npu()\n        all_reduce(f)\n        n = 1 if f.item() else x", 0),
        ("if self.reduce(a).item() > 0:\n            x = x + 1", 1),
    ],
)  # fmt: skip
def test_what_the_host_waits_for_anyhow(body: str, told: int) -> None:
    text = f"""
from torch.distributed import all_reduce


class Trainer(nn.Module):
    def training_step(self, x: torch.Tensor, m: torch.Tensor, xs, n):
        found = []
        a, b = x.sum(), m.sum()
        {body.format("found.append(t.item())")}
        self.log("found", found)
        return x.sum()
"""
    assert len(found(text, "NPU214") + found(text, "NPU217")) == told


@pytest.mark.parametrize(
    ("read", "result", "told"),
    [
        ("batch_size = places[-1, 0].item() + 1", "self.middle(x, places, batch_size)", True),
        ("bs = int(places[:, 0].max().item()) + 1", "self.middle(x, places, bs)", True),
        ("weight = places[-1, 0].item() + 1", "self.middle(x, places, weight)", False),
        ("n = int(mask.sum().item())", "self.step_loss(x), n", False),
        ("n = int(mask.sum().item())\n        loss = self.step_loss(x)", "loss, n", True),
        ("n = int(x.sum().item())\n        loss = self.step_loss(x)", "loss, n", False),
    ],
)
def test_sizes_of_batches_and_counts_beside_losses_are_read(
    read: str, result: str, *, told: bool
) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x, places, mask):
        {read}
        return {result}
"""
    assert len(found(text, "NPU214")) == told


@pytest.mark.parametrize(
    ("written", "picked", "told"),
    [
        ("mask = near[i]\n            mask &= far", "x[i, mask], y[i, mask]", True),
        ("mask = near[i]", "x[i, mask], mask.zero_(), y[i, mask]", False),
        ("mask = near[i]", "x[i, mask], y[j, mask]", False),  # perhaps ``j`` is one as well
    ],
)
def test_a_mask_picks_of_the_row_of_a_round(written: str, picked: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, near: torch.BoolTensor, far, j):
        for i in range(len(x)):
            {written}
            self.take({picked})
"""
    assert len(found(text, "NPU218")) == told
