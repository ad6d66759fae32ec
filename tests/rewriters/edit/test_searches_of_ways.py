"""Ways that steps go: branches that are no rare ones, helpers of steps, what comes back at once."""

from __future__ import annotations

import pytest
from searching import found, rewritten

_SELECTS = """
class Agent(nn.Module):
    def step(self, x: torch.Tensor, y: torch.Tensor, mask: torch.BoolTensor, mode, at):
        {test}
            y = y.clone()
        else:
            if mask.any():
                y = y.clone()
                y[mask] = self.cast(x)[mask]
        return y * 2
"""


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("if mode == 'next':", True),
        ("if at is None:", True),
        ("if 'next' in at and at['next'] is not None:", True),
        ("if len(at) > 0:", False),
        ("if at in self.table:", False),
    ],
)
def test_the_other_way_of_a_setting_is_no_rare_one(test: str, *, told: bool) -> None:
    assert bool(found(_SELECTS.format(test=test), "NPU217")) is told


@pytest.mark.parametrize(
    ("test", "told"),
    [
        ("not self.split and lens is not None", True),
        ("not self.training and lens is not None", False),
        ("not self.split and lens is None", False),
    ],
)
def test_a_flag_that_is_off_is_nothing_rare(test: str, *, told: bool) -> None:
    text = f"""
class Attention(nn.Module):
    def forward(self, q: torch.Tensor, lens: torch.Tensor):
        if {test}:
            if torch.all(lens == lens[0]):
                q = self.mix(q)
        return q * 2
"""
    assert ("NPU217" in {site.rule.id for site in found(text, "NPU217")}) is told


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("get_loss_and_metrics", True),
        ("training_metrics", True),
        ("compute_metrics", False),
        ("eval_loss_and_metrics", False),
    ],
)
def test_a_step_may_hand_out_metrics(name: str, *, told: bool) -> None:
    text = f"""
class Trainer:
    def {name}(self, batch):
        loss = self.net(batch)
        torch.cuda.synchronize()
        return loss
"""
    assert any(site.is_hot for site in found(text, "NPU320")) is told


@pytest.mark.parametrize(
    ("name", "told"), [("_add_noise", True), ("make_mask", True), ("save_noise", False)]
)
def test_what_forward_has_made_is_made_in_each_step(name: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        return self.{name}(x)

    def {name}(self, x: torch.Tensor):
        n = x.sum().item()
        return torch.relu(x) / n
"""
    assert any(site.is_hot for site in found(text, "NPU214")) is told


def test_a_number_of_the_host_that_the_device_meets_comes_back() -> None:
    text = """
class Head(nn.Module):
    def select(self, boxes):
        kept = []
        for box in boxes:
            limit, _ = torch.kthvalue(box.scores.cpu(), 3)
            kept.append(box.scores >= {limit})
        return kept
"""
    (site,) = found(text.format(limit="limit.item()"), "NPU214")
    assert "copied back" in site.problem
    assert all("copied back" not in s.problem for s in found(text.format(limit="self.n"), "NPU214"))


@pytest.mark.parametrize(
    ("read", "use", "told"),
    [
        ("value = loss.item()", "recorder.add(step=1, loss=value)", True),
        ("value = loss.item()", "if bar.on:\n            logs = {'loss': value}", True),
        ("value = loss.item()", "metrics['loss'] = value", True),
        ("value = loss.item()", "values['loss'] = value", False),
        ("value = loss.item()", "rate = recorder.add(value)\n        self.adapt(rate)", False),
        ("value = loss.item() if self.on else None", "self.log_step(1, value)", True),
        (
            "value = clip(net)\n        value = value.item() if torch.is_tensor(value) else value",
            "if value is not None:\n            metrics['norm'] = value",
            True,
        ),
        ("value = loss.item() if self.on else None", "self.adapt(value)", False),
    ],
)
def test_what_a_recorder_gets_is_only_logged(read: str, use: str, *, told: bool) -> None:
    text = f"""
def train(self, net, loader, recorder, bar, metrics):
    for batch in loader:
        loss = net(batch).mean()
        loss.backward()
        {read}
        {use}
"""
    assert any("only logged" in site.problem for site in found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("total += self.step(batch)", True),
        ("losses.append(self.step(batch))", True),
        ("total += self.step(batch)\n            self.see(self.step(batch))", False),
        ("rate = self.step(batch)", False),
    ],
)
def test_a_number_that_callers_add_up_is_returned_as_a_tensor(use: str, *, told: bool) -> None:
    text = f"""
class Trainer:
    def step(self, batch):
        loss = self.net(batch).mean()
        return loss.item()

    def train(self, loader, total, losses):
        for batch in loader:
            {use}
"""
    assert any("in every call" in site.problem for site in found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("print(1)\n            x = torch.nan_to_num(x, 0)", True),
        ("print(1)", False),
        ("raise ValueError", False),
    ],
)
def test_what_is_mended_needs_no_test(body: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def training_step(self, x: torch.Tensor):
        if torch.isnan(x).any():
            {body}
        return x * 2
"""
    assert bool(found(text, "NPU217")) is told


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("get_sigmas(times, device):\n    times = times.to(device)", True),
        ("get_sigmas(times, device):\n    times = times.to(other)", False),
        ("load_sigmas(times, device):\n    times = times.to(device)", False),
        ("get_net(model, device):\n    model = model.to(device)", False),
    ],
)
def test_who_moves_what_it_is_handed_computes_with_it(head: str, *, told: bool) -> None:
    text = f"""
def {head}
    found = [(other == t).nonzero().item() for t in times]
    return other[found]
"""
    assert any(site.is_hot for site in found(text, "NPU214")) is told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("self.m = 0.9 * self.m + 0.1 * x.mean().item()", "running mean"),
        ("self.m = 0.9 * self.n + 0.1 * x.mean().item()", ""),
        ("token = int(x.argmax().item())\n        y = x.new_tensor([[token]])", "copied back"),
        ("token = int(x.argmax().item())\n        y = self.table[token]", ""),
        (
            "t = min(self.at.item() / 8, 1.0)\n        x = (x / 2).clamp(-t * self.m, t)",
            "a loss is computed with it",
        ),
    ],
)
def test_who_needs_a_number_is_said(body: str, told: str) -> None:
    text = f"""
class Head(nn.Module):
    def forward(self, x: torch.Tensor):
        {body}
        return x * 2
"""
    problems = [site.problem for site in found(text, "NPU214")]
    assert any(told in problem for problem in problems) if told else not problems


@pytest.mark.parametrize(
    ("head", "written"),
    [
        ("x, y = self.queue.get()", True),
        ("x, y = self.table.get()", False),
        ("x, y = self.queue.get(3)", False),
        ("x, y = self.queue.get(); self.free.put(y)", False),  # who fills it anew
        ("x, y = self.queue.get(); self.log.put(3)", True),
        ("x, y = self.queue.get(); x.div_(255)", True),  # or of the copy
        ("x, y = self.queue.get(); y.zero_()", False),
    ],
)
def test_what_a_queue_hands_over_is_copied_without_a_wait(head: str, *, written: bool) -> None:
    text = f"""
class Trainer:
    def train_epoch(self, net):
        while True:
            {head}
            x = x.to(self.device)
            loss = net(x)
            loss.backward()
            self.optimizer.step()
"""
    changed = [site.rewrite is not None for site in found(text, "NPU219")]
    assert changed == [True] * written


@pytest.mark.parametrize(("place", "told"), [("batch in loader", True), ("n in range(9)", False)])
def test_steps_that_wait_for_a_clock_are_told(place: str, *, told: bool) -> None:
    work = "loss.backward()" if told else "net(batch)"
    text = f"""
import time

def train(net, loader, batch):
    for {place}:
        torch.cuda.synchronize()
        start = time.time()
        loss = net(batch)
        {work}
        took = time.time() - start
"""
    assert any("to be timed" in site.problem for site in found(text, "NPU320")) is told


@pytest.mark.parametrize(("name", "told"), [("train_batch", True), ("train", False)])
def test_a_step_in_parts_is_one_step(name: str, *, told: bool) -> None:
    text = f"""
class Trainer:
    def {name}(self, parts):
        total = self.start()
        for part in parts:
            loss = self.net(part)
            loss.backward()
        self.metrics["total"] = total.sum().item()
"""
    (site,) = found(text, "NPU214")
    assert (site.occasion.name == "STEP") is told


@pytest.mark.parametrize(
    ("branch", "line", "value"),
    [
        ("if n > 1:\n    y /= n", "y /= n.clamp(min=1)", "x.sum()"),
        (
            "if n >= 1.0:\n    y = (y + 1) / n\nelse:\n    y = y + 1",
            "y = (y + 1) / n.clamp",
            "x.sum()",
        ),
        ("if n > 0:\n    y = y / n", "y = y / n.clamp(min=1)", "(x > 0).sum()"),
        # below one it is another divisor, and the other arm is another value
        ("if n > 0:\n    y = y / n", "", "x.sum()"),
        ("if n > 2:\n    y = y / n", "", "(x > 0).sum()"),
        ("if n < 1:\n    y = y / n", "", "(x > 0).sum()"),
        ("if n > 1:\n    y = y * n", "", "(x > 0).sum()"),
        ("if n > 1:\n    y = z / n", "", "(x > 0).sum()"),
        ("if n > 1:\n    y = y / z", "", "(x > 0).sum()"),
    ],
)
def test_a_division_by_what_is_above_one_divides_by_no_less(
    branch: str, line: str, value: str
) -> None:
    body = branch.replace("\n", "\n        ")
    text = f"""
    def loss(x: torch.Tensor, z: torch.Tensor):
        n = {value}
        y = x.abs().sum()
        {body}
        return y
    """
    if line:
        after = rewritten(text, "NPU217")
        assert line in after
        assert "if " not in after
    else:
        assert [s for s in found(text, "NPU217") if s.form.pattern.__name__ == "divided"] == []


_STEPS = """
import numpy as np
import torch
def train(model, loader, optimizer, device):
    kept = []
    for x, y in loader:
        loss = torch.nn.functional.mse_loss(model(x.to(device)), y.to(device))
        loss.backward()
        optimizer.step()
        kept.append({read})
    return kept
"""


@pytest.mark.parametrize(
    ("read", "told", "written"),
    [
        ("loss.detach().cpu().numpy().item()", 1, "loss.detach().clone()"),
        ("float(loss.detach().cpu().numpy())", 1, "loss.detach().clone()"),
        ("loss.detach().cpu().numpy()[()].item()", 0, ""),  # an array has no detach()
        ("float(np.mean(y.numpy()))", 0, ""),
    ],
)
def test_a_number_read_by_way_of_numpy_is_that_of_the_tensor(
    read: str, told: int, written: str
) -> None:
    text = _STEPS.format(read=read)
    assert [s.code for s in found(text, "NPU214") if s.code == read] == [read] * told
    assert [s.code for s in found(text, "NPU214") if s.rewrite] == [read] * bool(written)
    assert not written or f"kept.append({written})" in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    "made", ["torch.tensor(range(n)).half().cuda()", "torch.FloatTensor([list(range(n))]).to(d)"]
)
def test_a_range_in_a_list_is_no_number_to_fill_with(made: str) -> None:
    text = f"def forward(self, x: torch.Tensor, n: int, d: torch.device):\n    return x + {made}\n"
    (site,) = found(text, "NPU219")
    assert site.rewrite is None
    assert "torch.arange" in site.problem


@pytest.mark.parametrize(
    ("rounds", "step", "told"),
    [
        ("(4, 128)", "x = self.f(x, (y + 1 - n).clamp(min=0))", False),
        ("range(2)", "x = self.f(x, (y + 1 - n).clamp(min=0))", False),
        ("range(k)", "x = self.f(x, (y + 1 - n).clamp(min=0))", True),
        ("(4, 128)", "x = self.f(x, (y.exp().cumsum(-1) - n).clamp(min=0))", True),
    ],
)
def test_two_rounds_add_a_number_for_themselves(rounds: str, step: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, k: int):
        for n in {rounds}:
            {step}
        return x
"""
    assert bool(found(text, "NPU216")) is told


@pytest.mark.parametrize(
    ("step", "told"),
    [("state.seen += 1", False), ("state.other += 1", True)],
)
def test_what_other_code_counts_up_is_other_in_each_call(step: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def advance(self, state):
        {step}

    def forward(self, x: torch.Tensor, group: list):
        at = torch.tensor([state.seen for state in group], device=x.device)
        return x + at[:, None]
"""
    assert bool(found(text, "NPU219")) is told


@pytest.mark.parametrize(
    ("outer", "made", "told"),
    [
        ("mem is not None", "torch.cat((mem_mask, mask), dim=-1)", False),
        ("True", "torch.cat((mem_mask, mask), dim=-1)", True),
        ("mem is not None", "torch.cat((mem_mask, mask), dim=-1).cumsum(-1)", True),
    ],
)
def test_one_copy_in_a_branch_of_a_branch_is_not_handed_down(
    outer: str, made: str, *, told: bool
) -> None:
    head = "if mem_mask is not None:\n            "
    head += f"    if {outer}:\n                " * (outer != "True")
    text = f"""
class Attention(nn.Module):
    def forward(self, x: torch.Tensor, mask: torch.Tensor, mem=None, mem_mask=None):
        {head}    mask = {made}
        return self.attend(x.cumsum(1), mask)
"""
    assert bool(found(text, "NPU321")) is told


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("return x, weights", False),
        ("if self.shows:\n            return x, weights\n        return x", True),
        ("return x", True),
    ],
)
def test_probabilities_that_a_caller_reads_stay(use: str, *, told: bool) -> None:
    text = f"""
class Attention(nn.Module):
    def forward(self, q, k, v, mask):
        scores = torch.einsum("bnd,bmd->bnm", q, k).masked_fill(mask, -1e9)
        weights = scores.softmax(dim=-1)
        return self.out(weights @ v), weights


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.attention = Attention()

    def forward(self, x, mask):
        x, weights = self.attention(x, x, x, mask)
        {use}
"""
    assert bool(found(text, "NPU186")) is told


@pytest.mark.parametrize(
    ("left", "told"),
    [
        ("(x * y).sum()", True),
        ("y.sum(-1)", True),  # of a vector perhaps
        ("(x * y).sum(dim=-1, keepdim=True)", False),
        ("x.view(3, -1).sum(-1)", False),
    ],
)
def test_tensors_with_dimensions_have_no_truth(left: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor, n: torch.Tensor):
        assert {left} == n
        return x * 2
"""
    assert bool(found(text, "NPU217")) is told


def test_the_sums_of_one_loop_are_one_change() -> None:
    text = """
def train(model, loader):
    total = 0.0
    hits = 0.0
    for x, y in loader:
        loss, kl = model(x).mean(), model(y).std()
        loss.backward()
        total += loss.item()
        hits += kl.item()
    return total, hits
"""
    (site,) = found(text, "NPU214")
    assert site.rewrite is not None
    new = rewritten(text, "NPU214")
    assert "total += loss.detach().float()\n        hits += kl.detach().float()\n" in new
    assert "    total = float(total)\n    hits = float(hits)\n    return" in new
    text = text.replace(
        "    return", "    for x in loader:\n        more += f(x).item()\n    return"
    )
    assert len(found(text.replace("total = 0.0", "total = more = 0.0"), "NPU214")) > 1


@pytest.mark.parametrize(
    ("mean", "written"),
    [
        ("s / n if n > 0 else 0.0", "torch.where(n > 0, s / n.clamp(min=1), 0.0)"),
        ("s / n if n != 0 else s * 0", "torch.where(n != 0, s / n.clamp(min=1), s * 0)"),
        (
            "s / n if n > 0 else torch.tensor(0.0, device=x.device)",
            "torch.where(n > 0, s / n.clamp(min=1), 0.0)",
        ),
        # another count, several numbers, a leaf, more than a zero
        ("s / k if n > 0 else 0.0", ""),
        ("x / n if n > 0 else 0.0", ""),
        ("s / n if n > 0 else torch.tensor(0.0, requires_grad=True)", ""),
        ("s / n if n > 0 else self.empty(x)", ""),
        ("s / n if n > 1 else 0.0", ""),
    ],
)
def test_a_mean_of_what_may_be_none_is_chosen_on_the_device(mean: str, written: str) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, m: torch.Tensor, k: torch.Tensor):
        n, s = (m > 0).sum(), (x * m).sum()
        return {mean}
"""
    sites = [site for site in found(text, "NPU217") if site.rewrite is not None]
    assert bool(sites) is bool(written)
    assert all(written in "".join(site.rewrite.direct) for site in sites if site.rewrite)
