"""What steps read, or select by masks, in a form of its own: calls, settings, several at once."""

from __future__ import annotations

import pytest
from searching import found, rewritten

from npufix.rewriters.facts.steps.occasion import Occasion
from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.masked_assignment import RULE as MASKED


@pytest.mark.parametrize(
    ("body", "line"),
    [
        (
            "a = x.masked_select(m)\n    return (a - torch.masked_select(y, m)).abs().sum()",
            "return torch.where(m, (a - y).abs(), 0).sum()",
        ),
        (
            "x = x.masked_select(m)\n    y = y.masked_select(m)\n    loss = F.mse_loss(x, y)",
            'torch.where(m, F.mse_loss(x, y, reduction="none"), 0).sum() / m.expand_as(x).sum()',
        ),
        (
            'return F.l1_loss(x.masked_select(m), y.masked_select(m), reduction="sum")',
            'return F.l1_loss(x.masked_fill(~m, 0), y.masked_fill(~m, 0), reduction="sum"',
        ),
        # two ways to select, which fit to masks of different shapes; others need what is selected
        ("return (x.masked_select(m) - y[m]).abs().sum()", ""),
        ("a = x.masked_select(m)\n    return (a - 1).abs().sum(), a", ""),
        # rows of scores
        ("return F.cross_entropy(x.masked_select(m), y.masked_select(m))", ""),
    ],
)
def test_what_a_call_selects_is_added_up_with_zeros(body: str, line: str) -> None:
    text = f"""
def loss(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor):
    m = mask.bool()
    {body}
"""
    written = rewritten(text, "NPU221") if found(text, "NPU221") else ""
    assert ("".join(line.split()) in "".join(written.split())) if line else not written


@pytest.mark.parametrize(
    ("made", "call", "line"),
    [
        (
            'nn.HuberLoss(reduction="sum", delta=0.5)',
            "self.loss(x[m], y[m])",
            'F.huber_loss(x.masked_fill(~m, 0), y.masked_fill(~m, 0), delta=0.5, reduction="sum")',
        ),
        (
            "nn.BCEWithLogitsLoss()",
            "self.loss(x[m], y[m])",
            'torch.where(m, F.binary_cross_entropy_with_logits(x, y, reduction="none"), 0).sum()',
        ),
        (
            'nn.MSELoss(reduction="none")',
            "self.loss(x[m], y[m]).mean()",
            "self.loss(x, y), 0).sum()",
        ),
        ("nn.CrossEntropyLoss(ignore_index=-1)", "self.loss(x[m], y[m])", "y.masked_fill(~m, -1)"),
        # weights of classes or elements, settings of old, a loss that someone hands in
        ("nn.BCEWithLogitsLoss(pos_weight=w)", "self.loss(x[m], y[m])", ""),
        ("nn.MSELoss(False)", "self.loss(x[m], y[m])", ""),
        ("w", "self.loss(x[m], y[m])", ""),
        ("nn.L1Loss()", "self.loss(x[m], y)", ""),
    ],
)
def test_a_loss_that_is_a_module_is_the_function_it_calls(made: str, call: str, line: str) -> None:
    text = f"""
class Model(nn.Module):
    def __init__(self, w):
        super().__init__()
        self.loss = {made}

    def forward(self, x: torch.Tensor, y: torch.Tensor):
        m = y != 5
        return {call}
"""
    written = rewritten(text, "NPU221") if found(text, "NPU221") else ""
    assert ("".join(line.split()) in "".join(written.split())) if line else not written


@pytest.mark.parametrize(
    ("more", "kept"),
    [
        ("loss = loss * w[m]", "loss * w"),
        ("loss = loss * w[m].sqrt()", "loss * w.sqrt()"),
        ('loss = self.config["alpha"] * loss', 'self.config["alpha"] * loss'),
        ('loss = self.kept["alpha"] * loss', ""),
        # of others than the mask selects, or somebody else needs it
        ("loss = loss * w", ""),
        ("loss = loss.sum(0)", ""),
        ("loss = loss * w[m]\n        self.last = loss", ""),
        ("loss = loss * w[m]\n        print(loss.shape)", ""),
    ],
)
def test_what_one_branch_alone_does_with_what_a_mask_selects(more: str, kept: str) -> None:
    text = f"""
def loss(self, x: torch.Tensor, y: torch.Tensor, w=None):
    m = y == 1
    loss = -torch.log(x[m])
    if w is not None:
        {more}
    return loss.mean()
"""
    assert bool(found(text, "NPU221")) == bool(kept)
    if kept:
        written = rewritten(text, "NPU221")
        assert (
            f"    loss = -torch.log(x)\n    if w is not None:\n        loss = {kept}\n" in written
        )
        assert "return torch.where(m, loss, 0).sum() / m.sum()" in written


@pytest.mark.parametrize(
    ("body", "count"),
    [
        # one way or the other is taken
        ("if w:\n        return (x[m] * 2).mean()\n    else:\n        return x[m].log().mean()", 2),
        ("if w:\n        return (x[m] * 2).mean()\n    return x[m].log().mean()", 2),
        # a setting that two losses need
        ("a = -y.cfg['a'] * x[m].log()\n    return a.mean(), -y.cfg['a'] * x[~m]", 1),
        # both ways need what stands before them, or both are taken
        ("a = x[m]\n    if w:\n        return (a * 2).max()\n    return (a * 2).mean()", 0),
        ("a = (x[m] * 2).mean() if w else 0\n    return a + x[m].max()", 0),
        ("a = 0\n    if w:\n        a = (x[m] * 2).mean()\n    return a + x[m].max()", 0),
        # one would be changed without the other
        ("a = x[m] * 2\n    return a.mean() if w else 3 * a.mean()", 0),
    ],
)
def test_what_a_mask_selects_is_added_up_in_each_of_two_ways(body: str, count: int) -> None:
    text = f"""
def loss(x: torch.Tensor, y, w):
    m = x > 1
    {body}
"""
    assert len(found(text, "NPU221")) == count


@pytest.mark.parametrize(
    ("mask", "open_conditions"),
    [
        ("labels != -100", {"finite-outside"}),
        ("labels >= 0", {"finite-outside"}),
        ("0 <= labels", {"finite-outside"}),
        ("labels != 255", {"finite-outside"}),
        ("labels != self.ignore_index", {"finite-outside"}),
        # of probabilities as well, or of something else
        ("labels > 0", {"labels-of-classes", "row-mask", "finite-outside", "boolean-mask"}),
        ("labels != 1", {"labels-of-classes", "row-mask", "finite-outside", "boolean-mask"}),
        ("other != -100", {"labels-of-classes", "row-mask", "finite-outside", "boolean-mask"}),
    ],
)
def test_labels_are_known_by_what_they_are_compared_with(
    mask: str, open_conditions: set[str]
) -> None:
    text = f"""
class Model(nn.Module):
    def forward(self, x, labels, other):
        keep = {mask}
        return F.cross_entropy(self.head(x)[keep], labels[keep])
"""
    (site,) = found(text, "NPU221")
    assert {c.name for c in site.open_conditions} == open_conditions


@pytest.mark.parametrize(
    ("hits", "new", "asked"),
    [
        (
            "(x.argmax(-1)[m] == y[m]).float().mean()",
            "torch.where(m, (x.argmax(-1) == y).float(), 0).sum() / m.sum()",
            set(),
        ),
        ("(x[m] == y[m]).sum()", "torch.where(m, x == y, 0).sum()", set()),
        (
            "(x[m] == y[m]).half().mean()",
            "torch.where(m, (x == y).half(), 0).sum() / m.sum()",
            {"sum-fits-dtype"},
        ),
        (
            "(x[m] - y[m]).float().mean()",
            "torch.where(m, (x - y).float(), 0).sum() / m.sum()",
            {"finite-outside", "sum-fits-dtype"},
        ),
    ],
)
def test_hits_under_a_mask_are_counted_without_selecting(
    hits: str, new: str, asked: set[str]
) -> None:
    text = f"""
def accuracy(x: torch.Tensor, y: torch.Tensor):
    m = y != -100
    return {hits}
"""
    (site,) = found(text, "NPU221")
    assert f"return {new}" in rewritten(text, "NPU221")
    assert {c.name for c in site.open_conditions} - {"same-rank-mask"} == asked


@pytest.mark.parametrize(
    ("given", "kept", "call", "line"),
    [
        ("low=1e-3", "low", "max(x.sum(), self.low)", "n = x.sum().clamp(min=self.low)"),
        ("low: float", "low", "min(self.low, x.mean())", "n = x.mean().clamp(max=self.low)"),
        ("low", "0.5", "max(x.abs().sum().item(), self.low)", ".clamp(min=self.low)"),
        ("low", "0.5", "max(x.sum(), low)", "n = x.sum().clamp(min=low)"),
        # nothing says that it is a number, or it is a tensor
        ("low", "low", "max(x.sum(), self.low)", ""),
        ("low: torch.Tensor", "low", "max(x.sum(), self.low)", ""),
        ("low=None", "low", "max(x.sum(), self.low)", ""),
        ("low=1e-3", "torch.tensor(low)", "max(x.sum(), self.low)", ""),
        # of the host
        ("low=1e-3", "low", "max(len(x), self.low)", ""),
    ],
)
def test_a_setting_that_is_a_number_limits_on_the_device(
    given: str, kept: str, call: str, line: str
) -> None:
    text = f"""
class Loss(nn.Module):
    def __init__(self, {given}):
        super().__init__()
        self.low = {kept}

    def forward(self, x: torch.Tensor, y: torch.Tensor, low: float = 0.1):
        n = {call}
        return y.float() / n
"""
    sites = [s for s in found(text, "NPU214") if s.rewrite is not None]
    assert len(sites) == bool(line)
    assert not line or line in rewritten(text, "NPU214")


@pytest.mark.parametrize(
    ("told", "lines"),
    [
        (
            "return Stats(loss=loss.item(), kl=kl.mean().item())",
            "loss_value, read_value = torch.stack([loss, kl.mean()]).tolist()",
        ),
        (
            'self.logger.log({"a": loss.item(), "b": kl.item(), "c": loss.item()})',
            'self.logger.log({"a": loss_value, "b": kl_value, "c": loss_value})',
        ),
        # a count, one alone, one that may not be read, what runs in between, and of the host
        ("return Stats(loss=loss.item(), hits=(x == y).sum().item())", ""),
        ("return Stats(loss=loss.item())", ""),
        ("return Stats(loss=loss.item(), kl=kl.item() if self.deep else 0)", ""),
        ("return Stats(loss=loss.item(), n=self.count(kl), kl=kl.item())", ""),
        ("return Stats(loss=loss.item(), kl=kl.add_(1).item())", ""),
        ("return Stats(loss=np.mean(x).item(), kl=np.ones(3).sum().item())", ""),
    ],
)
def test_what_one_statement_logs_is_read_at_once(told: str, lines: str) -> None:
    text = f"""
def training_step(self, x: torch.Tensor, y: torch.Tensor):
    loss = F.mse_loss(x, y, reduction="none").mean()
    kl = self.divergence(x, y)
    loss.backward()
    {told}
"""
    sites = [s for s in found(text, "NPU214") if s.rewrite is not None]
    assert len(sites) == bool(lines)
    assert not lines or "".join(lines.split()) in "".join(rewritten(text, "NPU214").split())


@pytest.mark.parametrize(
    ("test", "leaves", "told"),
    [
        ("torch.isnan(loss)", "continue", True),
        ("torch.isnan(loss) or torch.isinf(loss)", "print(i)\n            continue", True),
        ("not torch.isfinite(loss).all()", "return None", True),
        # it is another value, of the host, or the program ends
        ("torch.isnan(scale)", "continue", False),
        ("np.isnan(loss.cpu().numpy())", "continue", False),
        ("self.debug and torch.isnan(loss)", "raise ValueError", False),
        ("torch.isnan(loss)", "return loss", False),
    ],
)
def test_a_step_is_left_out_by_its_gradients(test: str, leaves: str, *, told: bool) -> None:
    text = f"""
def train_epoch(self, batches, scale):
    for i, batch in enumerate(batches):
        loss = self.model(batch)
        if {test}:
            {leaves}
        loss.backward()
"""
    sites = found(text, "NPU214")
    assert any("left out" in site.problem for site in sites) == told


@pytest.mark.parametrize(("divide", "written"), [("torch.trace(a)", True), ("a.trace()", False)])
def test_what_torch_computes_of_is_a_tensor(divide: str, *, written: bool) -> None:
    text = f"""
def compute_loss(parts):
    total = 0
    for z in parts:
        a = z.T @ z
        a = a / {divide}.item()
        total = total + a.sum()
    return total
"""
    assert any(s.rewrite is not None for s in found(text, "NPU214")) == written


@pytest.mark.parametrize(("base", "told"), [("nn.Module", 1), ("torch.utils.data.Sampler", 0)])
def test_a_sampler_that_is_a_module_runs_on_the_device(base: str, told: int) -> None:
    text = f"""
    class Sampler({base}):
        pass

    class VSampler(Sampler):
        def forward(self, x: torch.Tensor, sigmas: torch.Tensor, n: int):
            for i in range(n):
                x = x * self.scale(sigmas[i].item())
            return x
    """
    sites = found(text, "NPU214")
    assert len([s for s in sites if s.occasion is Occasion.STEP]) == told


@pytest.mark.parametrize(
    ("then", "told"),
    [("parts = divide(lengths)", "before the loop"), ("print(lengths)", "only logged")],
)
def test_a_list_that_something_is_divided_by_is_no_log(then: str, told: str) -> None:
    text = f"""
class Engine(nn.Module):
    def train_step(self, batch):
        lengths = []
        for prompt_len, response_len in zip(batch["prompt_length"], batch["response_length"]):
            lengths.append(prompt_len.item() + response_len.item())
        {then}
        return parts
"""
    assert told in found(text, "NPU214")[0].problem


_FILL = """
def fill(n: int, x: torch.Tensor) -> torch.Tensor:
    left = torch.ones(n, dtype=torch.bool)
    for limit in [0.1, 0.2]:
        if not left.any():
            break
        left[x > limit] = False
    return left
"""
_SAID = """
class Loss(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        known = torch.isfinite(x)
        if not known.all():
            logger.debug("%d are left out", (~known).sum().item())
        return torch.where(known, x, 0).sum()
"""
_SCORES = """
class PerImage(MeanAveragePrecision):
    def forward(self, scores: torch.Tensor):
        return [row.cpu().tolist() for row in scores]
"""
_DOUBLE = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor, data):
        x = torch.relu(x)
        y = x.double()
        data.update_forces(y)
"""


@pytest.mark.parametrize(
    ("rule", "text", "by"),
    [
        ("NPU217", _FILL, ("dtype=torch.bool", "dtype=torch.bool, device=x.device")),
        ("NPU214", _SAID, ("not known.all()", "self.training")),
        ("NPU214", _SCORES, ("MeanAveragePrecision", "nn.Module")),
        ("NPU225", _DOUBLE, ("data.update_forces(y)", "return y.exp()")),
    ],
)
def test_what_lies_on_the_host_or_is_done_for_others_costs_no_step(
    rule: str, text: str, by: tuple[str, str]
) -> None:
    assert not found(text, rule)
    assert found(text.replace(*by), rule)


@pytest.mark.parametrize("is_array", [True, False])
def test_what_becomes_a_tensor_later_is_an_array(*, is_array: bool) -> None:
    text = f"""
def clean(mask):
    mask[mask < 0.5] = 0
    return {"torch.from_numpy(mask)" if is_array else "mask.sigmoid()"}
"""
    (site,) = find_sites("import torch\n" + text, [MASKED])
    assert (site.occasion is Occasion.HOST) == is_array


_LOSS = """
class Net(Base):
    def training_step(self, batch, i):
        loss = self.loss(batch)
        {}
"""
_UPDATE = """
class Agent:
    def {}(self, states):
        total = 0.0
        for s in states:
            loss = self.loss(s)
            self.{}
            total += loss.item()
        return total / len(states)
"""
_ELSE = """
class Net(nn.Module):
    def forward(self, x: torch.Tensor):
        if {}:
            y = x.mean()
        else:
            y = torch.tensor(0.0).to(x.device)
        return x + y
"""
_LABELS = """
class Head(nn.Module):
    def loss(self, ious, limits):
        far, near = ious > limits[0], ious < limits[1]
        label = far.float()
        among = {}
        label[among] = ious[among] * 2 - 0.5
        return label
"""
_LIMITS = """
class Layer(nn.Module):
    def forward(self, x: torch.Tensor):
        if x.dtype == torch.float16 and (torch.isinf(x).any() or torch.isnan(x).any()):
            {}
        return x
"""
_PICKS = """
class Head(nn.Module):
    def prepare_for_loss(self, d):
        at = d['at'].cpu()
        {}
        return {}
"""
_FLOAT = "float(loss.detach().cpu().numpy())"
_MADE = (
    "class Net(nn.Module):\n    def forward(self, x: torch.Tensor, n: int):\n        return x * {}"
)


@pytest.mark.parametrize(
    ("rule", "text", "new"),
    [
        # Lightning makes a tensor of a number; another ``log`` may want numbers
        (
            "NPU214",
            _LOSS.format("self.log('a', loss.item(), on_epoch=True)"),
            "'a', loss.detach(),",
        ),
        (
            "NPU214",
            _LOSS.format("self.log(name='a', value=loss.item(), on_step=True)"),
            "=loss.detach(),",
        ),
        (
            "NPU214",
            _LOSS.format("self.log_dict({'a': loss.item()}, prog_bar=True)"),
            "loss.detach()}",
        ),
        ("NPU214", _LOSS.format("self.log('a', loss.item())"), ""),
        ("NPU214", _LOSS.format("self.log('a', 2 * loss.item(), on_epoch=True)"), ""),
        (
            "NPU214",
            _UPDATE.format("update_net", "optimizer_update(self.opt, loss)"),
            "loss.detach().float()",
        ),
        ("NPU214", _UPDATE.format("count_up", "optimizer_update()"), None),
        # of ten steps nine go there, but nobody knows how many where something is missing
        ("NPU219", _ELSE.format("self.step % 10 == 0"), "torch.zeros((), device=x.device)"),
        ("NPU219", _ELSE.format("self.kernel(x)"), None),
        (
            "NPU219",
            _MADE.format("torch.tensor(1.0, requires_grad=True, device=x.device)"),
            "requires_grad=True",
        ),
        ("NPU219", _MADE.format("torch.tensor(1.0, pin_memory=True, device=x.device)"), None),
        ("NPU212", _MADE.format("torch.linspace(0.0, 1.0, n).to(x.device)"), "n, device=x.device"),
        ("NPU212", _MADE.format("torch.arange(x.max()).to(x.device)"), "x.max(), device=x.device"),
        ("NPU212", _MADE.format("torch.ones(n).npu()"), 'torch.ones(n, device="npu")'),
        ("NPU212", _MADE.format("torch.full((n,), x.max()).to(x.device)"), None),
        ("NPU212", _MADE.format("torch.zeros(0, n).to(x.device)"), None),
        (
            "NPU223",
            _LABELS.format("(far == 0) & (near == 0)"),
            "torch.where(among, ious * 2 - 0.5, label)",
        ),
        (
            "NPU219",
            _MADE.format("torch.tensor(range(n), device=x.device)"),
            "arange(n, device=x.dev",
        ),
        ("NPU219", _MADE.format("torch.tensor([2 * i for i in range(n)]).to(x.device)"), ""),
        ("NPU214", _PICKS.format("y = d['y'].long()", "y[at], at.numel()"), "at = d['at']\n"),
        ("NPU214", _PICKS.format("y = d['y'].cpu()", "y[at], at.numel()"), None),
        ("NPU214", _PICKS.format("y = d['y'].long()", "y[at], at"), None),
        (
            "NPU214",
            _UPDATE.format("train_step", "opt.step()").replace("loss.item()", _FLOAT),
            "loss.detach().float()",
        ),
        (
            "NPU214",
            _UPDATE.format("train_step", "opt.step()").replace("loss.item()", "float(s)"),
            None,
        ),
        (
            "NPU214",
            _MADE.format("2, {'loss': x.mean().item()}").replace("forward", "train_step"),
            "x.mean().detach()",
        ),
        (
            "NPU214",
            _MADE.format("2, {'size': x.mean().item()}").replace("forward", "train_step"),
            None,
        ),
        ("NPU217", _LIMITS.format("x = torch.clamp(x, min=-65000, max=65000)"), ""),
        ("NPU217", _LIMITS.format("x = self.widen(x)"), None),
        ("NPU223", _LABELS.format("limits & 3"), None),
    ],
)
def test_what_a_step_does_is_written_where_nobody_wants_numbers(
    rule: str, text: str, new: str | None
) -> None:
    sites = found(text, rule)
    assert bool(sites) is (new is not None)
    if sites:
        changed = [site.rewrite.direct if site.rewrite else "" for site in sites]
        assert any((new or "") in text for text in changed)
        assert any(changed) is bool(new)


@pytest.mark.parametrize(("value", "count"), [("lowest(x.dtype)", 1), ("lowest(x, x.dtype)", 0)])
def test_what_is_made_of_a_dtype_is_a_number(value: str, count: int) -> None:
    text = f"def f(x: torch.Tensor, mask: torch.Tensor):\n    x[mask] = {value}\n    return x\n"
    assert len([*find_sites("import torch\n" + text, [MASKED])]) == count


@pytest.mark.parametrize(
    ("before", "code", "occasion"),
    [
        ("", "m[m == -100] = 0", Occasion.STEP),
        ("if mode == 'train':", "m[m == -100] = 0", Occasion.STEP),
        ("if mode in ['dev', 'test']:", "m[m == -100] = 0", Occasion.ASIDE),
        ("if split == 'val_loss' and self.n > 1:", "m[m == -100] = 0", Occasion.ASIDE),
        ("if self.first:", "m[m == -100] = 0; self.first = False", Occasion.ASIDE),
        ("if self.first:", "m[m == -100] = 0; self.first = True", Occasion.STEP),
        ("if not self.made:", "self.mark(m); self.made = True", Occasion.ASIDE),
        ("if not self.made:", "self.mark(m)", Occasion.STEP),
    ],
)
def test_a_branch_that_is_taken_once_or_beside_steps_is_no_step(
    before: str, code: str, occasion: Occasion
) -> None:
    text = f"""
import torch
class Net(torch.nn.Module):
    def forward(self, m: torch.Tensor, mode, split):
        {before or "if True:"}
            {code}
        return m
"""
    if "self.mark" in code:
        text += "    def mark(self, m: torch.Tensor):\n        m[m == -100] = 0\n"
    assert [s.occasion for s in find_sites(text, [MASKED])] == [occasion]


@pytest.mark.parametrize(
    ("made", "occasion"),
    [
        ("self.age", Occasion.HOST),
        ("torch.zeros(8, device='cpu')", Occasion.HOST),
        ("torch.zeros(8, device=x.device)", Occasion.STEP),
        ("torch.zeros(8)", Occasion.STEP),  # below ``with torch.device("npu")``
    ],
)
def test_a_tensor_that_is_said_to_be_one_of_the_host_is_so_in_modules(
    made: str, occasion: Occasion
) -> None:
    text = f"""
import torch
class Net(torch.nn.Module):
    def __init__(self):
        self.age = torch.zeros(8, device="cpu")
    def forward(self, x: torch.Tensor):
        m = {made}
        m[m > 3] = 0
        return x
"""
    assert [s.occasion for s in find_sites(text, [MASKED])] == [occasion]


@pytest.mark.parametrize(
    ("name", "said", "told"),
    [
        ("RefAttention", "A reference implementation.", 0),
        ("RefAttention", "Look at a reference.", 1),
        ("Attention", "A reference implementation.", 1),
    ],
)
def test_a_class_is_a_reference_where_it_is_said_to_be_one(name: str, said: str, told: int) -> None:
    text = f"""
class {name}(nn.Module):
    '{said}'
    def forward(self, x: torch.Tensor, lens: torch.Tensor):
        return x[:, : lens.max().item()]
"""
    assert len(found(text, "NPU214")) == told


@pytest.mark.parametrize(
    ("package", "occasion"), [("from . import _C", "ASIDE"), ("from .ops import scatter", "STEP")]
)
def test_what_calls_a_package_compiled_for_one_operator_is_for_gpus(
    package: str, occasion: str
) -> None:
    text = f"""
import torch
{package}
class _Draw(torch.autograd.Function):
    @staticmethod
    def forward(ctx, m): return {package.rpartition(" ")[2]}.draw(m)
class Net(torch.nn.Module):
    def forward(self, m: torch.Tensor):
        m[m > 3] = 0
        return _Draw.apply(m)
"""
    assert [s.occasion.name for s in find_sites(text, [MASKED])] == [occasion]


@pytest.mark.parametrize(("total", "counts"), [("rows.append(x + n)", True), ("pass", False)])
def test_what_counts_rows_along_is_no_sum_for_a_log(total: str, *, counts: bool) -> None:
    text = f"""
def forward(x: torch.Tensor, sizes: torch.Tensor):
    n, rows = 0, []
    for h, w in sizes:
        {total}
        n += (h * w).item()
    return rows, n
"""
    (site,) = found(text, "NPU214")
    assert ("before the loop" in site.problem) is counts


@pytest.mark.parametrize(
    ("method", "on_host"),
    [
        ("def fit(self, batch: DataProto): return batch.n", True),
        ("def fit(self, batch: DataProto): return batch.to(self.device)", False),
        ("async def fit(self): return await self.ask(self.tokenizer.encode(self.text))", True),
        ("async def fit(self, x): return await self.ask(x)", False),
        ("async def fit(self, x): return await self.ask(self.tokenizer(x.to('npu')))", False),
        ("async def fit(self, x): return await self.ask(self.tokenizer(x.to(torch.int)))", True),
    ],
)
def test_what_drives_others_computes_on_the_host(method: str, *, on_host: bool) -> None:
    text = f"""
import torch
class Driver:
    {method}
    def compute_mask(self, m: torch.Tensor):
        m[m == -100] = 0
"""
    (site,) = find_sites(text, [MASKED])
    assert (site.occasion is Occasion.HOST) == on_host


def test_a_selection_waits_whether_or_not_it_is_asked_for() -> None:
    text = """
class Loss(nn.Module):
    def compute_loss(self, td, done: torch.Tensor):
        if done is not None and done.any():
            left = td[~done.squeeze(-1)]
        else:
            left = td
        return left
"""
    (site,) = found(text, "NPU217")
    assert "select in either case" in site.problem
    assert "torch.where" in found(text.replace("left = td\n", "left = -td\n"), "NPU217")[0].problem


@pytest.mark.parametrize(("of", "told"), [("self.gate(x).topk(2, -1)[1]", 0), ("x.long()", 1)])
def test_how_many_rows_an_expert_gets_nobody_knows_before(of: str, told: int) -> None:
    text = f"""
class Layer(nn.Module):
    def forward(self, x: torch.Tensor):
        sizes = torch.bincount({of}.flatten(), minlength=8).tolist()
        return torch.split(x, sizes, dim=0)
"""
    assert len(found(text, "NPU214")) == told


@pytest.mark.parametrize(("name", "told"), [("lens_cpu", 0), ("lens", 1)])
def test_an_attribute_that_is_a_part_of_what_lies_on_the_host_does_so(name: str, told: int) -> None:
    text = f"""
class MetadataBuilder:
    def __init__(self):
        self.lens: torch.Tensor = None

    def build(self, m):
        {name} = m.{name}[1:] - m.{name}[:-1]
        self.lens = {name}[: m.n]

    def forward(self, x: torch.Tensor):
        return x[:, : self.lens[1:].max().item()]
"""
    assert len(found(text, "NPU214")) == told


@pytest.mark.parametrize(
    ("use", "told"),
    [
        ("return np.clip(x, 0, 1).sum() / len(x)", True),
        ("self.engine.set_tensor(0, x)\n        return self.engine.invoke()", False),
        ("return self.session.run(images=x)", False),
    ],
)
def test_an_array_that_another_library_gets_is_its_own(use: str, *, told: bool) -> None:
    text = f"""
import numpy as np


class Backend(nn.Module):
    def forward(self, x: torch.Tensor):
        x = x.cpu().numpy()
        {use}
"""
    assert any("NumPy computes" in site.problem for site in found(text, "NPU214")) is told
