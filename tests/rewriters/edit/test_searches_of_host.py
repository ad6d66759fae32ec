"""What the searches find where the host waits for values, checks them or makes them."""

from __future__ import annotations

import pytest
from searching import found, rewritten

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.upload_in_every_call import RULE as UPLOAD
from npufix.rules.substitutions.value_read_on_host import RULE as READ


def test_a_branch_whose_arm_divides_by_what_is_tested_divides_by_no_zero() -> None:
    text = """
    def loss(x: torch.Tensor, mask: torch.Tensor):
        n = mask.sum()
        {}
        return y
    """
    dividing = text.format("y = x.sum() / n if n > 0 else x.sum() * 0")
    written = "".join(rewritten(dividing, "NPU217").split())
    assert "torch.where(n>0,x.sum()/torch.where(n>0,n,1),x.sum()*0)" in written
    plain = text.format("y = x.sum() / 2 if n > 0 else x.sum() * 0")
    assert "y = torch.where(n > 0, x.sum() / 2, x.sum() * 0)" in rewritten(plain, "NPU217")


@pytest.mark.parametrize(
    "arm",
    ["self.head(x)", "x[mask].mean()", "x.nonzero().sum()", "torch.randn_like(x)", "1.0"],
)
def test_an_arm_that_does_more_than_choose_is_not_always_computed(arm: str) -> None:
    text = f"""
    def loss(self, x: torch.Tensor, mask: torch.BoolTensor):
        y = x * 2
        if mask.any():
            y = {arm}
        return y
    """
    assert [s for s in found(text, "NPU217") if s.rewrite is not None] == []


@pytest.mark.parametrize(
    "code",
    [
        "n = x.shape[0]\n    return y / max(n, 1)",
        "n = x.cpu().sum().item()\n    return y / n",  # the cpu() waits
        "n = lengths_cpu.max().item()\n    return y * n",
        "n = float(self.rate)\n    return y * n",
        "n = x.max().item()\n    return self.attend(y, n)",  # a longest length perhaps
    ],
)
def test_a_value_that_the_host_needs_is_not_spoken_of(code: str) -> None:
    text = f"def forward(self, x: torch.Tensor, y: torch.Tensor, lengths_cpu):\n    {code}\n"
    assert [s for s in found(text, "NPU214") if s.code.endswith("item()")] == []
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("n = x.max().item()\n    return y[:n]", "a size or a border"),
        ("return y[: x.max()]", "a size or a border"),
        ("n = x.sum()\n    return y.new_zeros(2, n + 1)", "a size or a border"),
        ("n = self.seq_lens[:4].max().item()\n    return self.attend(y, n)", "lengths"),
        ("n = x.max().item()\n    if n > 3:\n        y = y * 2\n    return y", "for the answer"),
        (
            "n = (x == self.config.t).sum().item()\n    if n != 3:\n        raise ValueError",
            "only checked",
        ),
        (
            "n = x[0].item()\n    assert n == x[1]\n    return y if n == size else part(y, n)",
            "",
        ),
        ("for i in range(x.max().item() + 1):\n        y = self.part(y, i)", "a size or a border"),
        (
            "if size is None:\n        size = int(x.max()) + 1\n    return self.pool(y, size)",
            "a size",
        ),
        ("return y[: lengths_cpu.max()]", ""),
        ("return y[: int(torch.randint(9, (), device=x.device))]", ""),
        ("n = x.max().item()\n    if n > 3:\n        print(n)\n    return y", ""),
        ("n = x.shape[0]\n    return y[: max(n, 4)]", ""),
        ("n = x.sum()\n    dist.all_reduce(n)\n    return y.new_zeros(n.item())", ""),
        ("n = dist.all_gather(x)\n    return y.new_zeros(max(n).item() - len(x))", ""),
        ("n = x.nonzero()[:, 0]\n    return y.split(n.tolist())", ""),
    ],
)
def test_who_needs_a_number_as_a_size_or_for_a_test_is_said(code: str, why: str) -> None:
    given = "x: torch.Tensor, y: torch.Tensor, lengths_cpu, size=None"
    sites = found(f"def forward(self, {given}):\n    {code}\n", "NPU214")
    assert [s.rewrite for s in sites] == [None] * bool(why)
    assert all(why in site.problem for site in sites)


@pytest.mark.parametrize(
    ("other", "places"), [("grids.tolist()", 2), ("grids.sum(-1)", 0), ("x.tolist()", 0)]
)
def test_what_several_functions_read_their_caller_reads_once(other: str, places: int) -> None:
    text = f"""
    class Rope(nn.Module):
        def forward(self, grids: torch.Tensor):
            shapes = grids.tolist()
            return torch.cat([self.freqs[: h * w].repeat(t, 1) for t, h, w in shapes])
    class Merger(nn.Module):
        def forward(self, x: torch.Tensor, grids: torch.Tensor):
            for n in {other}:
                x = x + self.merge(x[:n])
            return x
    """
    told = [s for s in found(text, "NPU214") if "where they are called" in s.problem]
    assert len(told) == places


@pytest.mark.parametrize(
    "use", ["x[h // 2]", "self.f(rows)", "x * rows", "x[: rows / 2]", "x[: int(rows * 3)]"]
)
def test_elements_that_stay_on_the_device_are_no_numbers(use: str) -> None:
    text = f"""
    def forward(self, x: torch.Tensor, grid: torch.Tensor):
        for h, w in grid:
            rows = h // 2
            x = x + torch.arange(rows * w).sum() + {use}
        return x
    """
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


def test_an_alternative_keeps_its_check() -> None:
    text = """
    def forward(x: torch.Tensor, mask: torch.BoolTensor):
        if x.dim() > 2:
            x = x * 2
        elif mask.any():
            x[mask] = 0
        return x
    """
    assert [s for s in found(text, "NPU217") if s.rewrite is not None] == []


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("torch.tensor(range(n))[:2].to(x.device)", "torch.arange"),
        ("torch.tensor([0.1, 0.2], device=x.device)", "lru_cache"),
        ("torch.tensor([n, 4]).to(dtype)", ""),  # stays on the host
        ("torch.tensor([n, 4], device=x.device)", "lru_cache"),
        ("torch.tensor([x[0] * n, x[1]], device=x.device)", "torch.stack"),
        ("torch.tensor([n * i for i in x.long().tolist()], device=x.device)", "torch.stack"),
        ("torch.tensor([x[:i].sum() for i in range(n)]).to(x.device)", "torch.stack"),
        ("torch.tensor([[x[0] * n, x[1]], [n, 1]]).to(x.device)", "torch.stack"),
        ("torch.tensor([[i, n] for i in range(n)]).to(x.device)", "lru_cache"),
        ("torch.tensor([], device=x.device)", ""),
        ("torch.as_tensor(np.random.rand(n), device=x.device)", ""),  # nothing else to do
    ],
)
def test_what_is_copied_decides_what_to_do_instead(code: str, advice: str) -> None:
    text = f"def forward(x: torch.Tensor, n: int, dtype):\n    return x * {code}\n"
    problems = [site.problem for site in found(text, "NPU219")]
    assert [advice in problem for problem in problems] == [True] * bool(advice)


@pytest.mark.parametrize(
    ("base", "advice"), [("BaseHead", "register_buffer"), ("LayerInfer", "keep the copy")]
)
def test_what_may_be_no_module_keeps_a_copy(base: str, advice: str) -> None:
    text = f"""
from base import {base}
class Layer({base}):
    def __init__(self, n: int):
        self.t = torch.linspace(0, 1, n)

    def compute_loss(self, x: torch.Tensor):
        return x * self.t.to(x.device)
"""
    assert [advice in site.problem for site in found(text, "NPU219")] == [True]


@pytest.mark.parametrize(("base", "keeps"), [("nn.Module", True), ("ABC", False), ("Far", True)])
def test_a_loss_of_python_alone_keeps_no_buffers(base: str, *, keeps: bool) -> None:
    text = f"""
class PointLoss({base}):
    pass

class QuantileLoss(PointLoss):
    def __init__(self, levels: tuple[float, ...] = (0.1, 0.9)):
        super().__init__()
        self.levels = levels

    def loss_func(self, x: torch.Tensor):
        return x * torch.tensor(self.levels, device=x.device)
"""
    (site,) = found(text, "NPU219")
    assert (site.rewrite is not None) is keeps


@pytest.mark.parametrize(("cls", "count"), [("Solver(nn.Module)", 1), ("Solver", 0)])
def test_only_a_module_keeps_buffers(cls: str, count: int) -> None:
    text = f"""
class {cls}:
    def __init__(self, n: int):
        self.t = torch.linspace(0, 1, n)

    def forward(self, x: torch.Tensor, model):
        t = self.t.to(x.device)
        return model(x, t)
"""
    assert len(found(text, "NPU219")) == count


@pytest.mark.parametrize(
    ("code", "new"),
    [
        ("torch.tensor([2.0] * n, device=x.device)", "torch.full((n,), 2.0, device=x.device)"),
        ("x.new_tensor([n])", "x.new_full((1,), n)"),
        ("x.new_tensor([0, 0])", "x.new_zeros(2)"),
        ("torch.tensor([0.5, 0.5], device=x.device)", "torch.full((2,), 0.5, device=x.device)"),
        ("torch.tensor(-2, device=x.device)", "torch.full((), -2, device=x.device)"),
        ("torch.tensor(0.0, device=x.device)", "torch.zeros((), device=x.device)"),
        ("torch.tensor(n, device=x.device)", "torch.full((), n, device=x.device)"),
    ],
)
def test_a_list_of_one_number_is_written_on_the_device(code: str, new: str) -> None:
    text = f"def forward(x: torch.Tensor, n: int):\n    return x * {code}\n"
    (site,) = found(text, "NPU219")
    assert site.rewrite is not None
    assert f"return x * {new}\n" in site.rewrite.direct


@pytest.mark.parametrize(
    "code",
    [
        "nn.utils.rnn.pack_padded_sequence(x, lengths.cpu())",  # wants it on the host
        "spconv.SparseConvTensor(x, lengths.tolist())",
        "for i in range(4):\n        names[lengths[i][0].item()] = x",
    ],
)
def test_what_another_package_takes_is_left_to_it(code: str) -> None:
    text = f"def forward(self, x: torch.Tensor, lengths: torch.Tensor, names):\n    {code}\n"
    assert [s for s in found(text, "NPU214") if s.rewrite or "log" in s.problem] == []


def test_who_asks_for_the_host_gets_it() -> None:
    text = "def loss(self, x: torch.Tensor):\n    return self.error_rate(x.argmax(-1){})\n"
    assert [s for s in found(text.format(".cpu()"), "NPU214") if s.rewrite] == []
    assert len([s for s in found(text.format(".tolist()"), "NPU214") if s.rewrite]) == 1


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if i % 100 == 0:\n            print(loss.item())", False),  # seldom enough
        ("self.logger.record('loss', loss.item())", True),
        ("if self.log_now:\n            print(loss.item())", False),
        ("self.train_epoch()\n        print(loss.item())", False),
        ("print(self.state_dict['loss'].item())", False),
        ("n = clip_grad_norm_(x, 1.0).item()\n        train_infos = {'n': n}", True),
    ],
)
def test_what_is_logged_stays_a_number(body: str, *, told: bool) -> None:
    text = f"""
def train(self, batches, f):
    for i, x in enumerate(batches):
        loss = f(x)
        {body}
"""
    sites = found(text, "NPU214")
    assert [site.rewrite for site in sites] == [None] * told


@pytest.mark.parametrize(
    ("code", "rule", "count"),
    [
        ("return dict(scores_3d=x.cpu(), boxes_3d=x.cpu())", "NPU214", 0),
        ("return [{'labels_3d': x.cpu()} for x in xs]", "NPU214", 0),
        ("return [{'loss': x.cpu()} for x in xs]", "NPU214", 1),
        ("return DataLoader(self.replay_buffer, shuffle=True)", "NPU270", 0),
        ("d = TensorDataset(x, xs)\n        return DataLoader(d, shuffle=True)", "NPU270", 0),
        ("d = Scenes(x, xs)\n        return DataLoader(d, shuffle=True)", "NPU270", 1),
    ],
)
def test_what_is_made_already_or_found_in_the_end_is_left(code: str, rule: str, count: int) -> None:
    name = "train_loader" if rule == "NPU270" else "train_step"
    text = (
        "from torch.utils.data import DataLoader, TensorDataset\n"
        f"class A(nn.Module):\n    def {name}(self, x: torch.Tensor, xs):\n"
        f"        {code}\n"
    )
    assert len(found(text, rule)) == count


@pytest.mark.parametrize(("name", "count"), [("before_train_step", 0), ("train_step", 1)])
def test_a_hook_may_wait_for_the_device(name: str, count: int) -> None:
    waits = "        y = self.f(x)\n        torch.npu.synchronize()\n"
    text = f"class A:\n    def {name}(self, x):\n{waits}"
    assert len(found(text, "NPU320")) == count


@pytest.mark.parametrize(
    ("check", "asked"),
    [
        ("assert x.all(), 'a'", "assert x.device.type == 'npu' or x.all(), 'a'"),
        ("assert n or x.all()", 'assert n or x.device.type == "npu" or x.all()'),
        (
            "assert n and x.all() and x.any()",
            'assert n and (x.device.type == "npu" or (x.all() and x.any()))',
        ),
        (
            "if not (x.all() and x.any()):\n        raise ValueError",
            'if x.device.type != "npu" and not (x.all() and x.any()):\n        raise ValueError',
        ),
        ("if n is None or x.all():\n        raise ValueError", ""),
    ],
)
def test_a_check_asks_first_where_it_runs(check: str, asked: str) -> None:
    text = f"def forward(x: torch.Tensor, n):\n    # of the mask\n    {check}\n    return x\n"
    if asked:
        assert rewritten(text, "NPU217") == text.replace(check, asked)
        (site,) = found(text, "NPU217")
        assert site.rewrite is not None
        # what is shown is what is written
        assert site.rewrite.text == asked.replace("\n    ", "\n")
    else:
        assert found(text, "NPU217") == []


@pytest.mark.parametrize(
    ("test", "body", "other", "told"),
    [
        ("m.sum() > 0", "y = F.l1_loss(x[m], t[m])", "y = x.sum() * 0", True),
        ("(t > 0).any()", "y = self.loss(x[t > 0])", "", True),
        ("m.sum() > 0", "return self.loss(x[m])", "", False),  # what comes behind it is no zero
        ("m.sum() > 0", "y = self.loss(x[m])", "y = self.other(x)", False),
        ("m.sum() > 0", "y = self.expert(x[m])", "", False),
        ("m.sum() > 0", "y = self.loss(x[t])", "", False),  # another mask
        ("m.sum() > 1", "y = self.loss(x[m])", "", False),
    ],
)
def test_a_loss_of_what_is_selected_needs_no_test(
    test: str, body: str, other: str, *, told: bool
) -> None:
    text = f"""
class A(nn.Module):
    def forward(self, x, t):
        m, y = t == 1, 0
        if {test}:
            {body}
        else:
            {other or "pass"}
        return self.sum(y)
"""
    text = text if other else text.replace("        else:\n            pass\n", "")
    sites = found(text, "NPU217")
    assert sum("weigh by the mask" in site.problem for site in sites) == told


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("n = lens.max().item()", True),
        ("n = (starts_of(x))[0].item()", False),
        ("n = query_lens.sum().item()", True),  # of what another method has returned
        ("n = m.cu_seqlens[1:].cpu().numpy().tolist()", True),
        ("n = self.seq_lens.tolist()", False),  # which somebody has filled
        ("n = (x.max() * lens.max()).item()", False),
        ("n = grid_thw[:, 1:].max().item()", True),
        ("n = grid_thw.tolist()", False),  # once it is needed there
        ("n = m.cu_seqlens[-1].cpu().item()", True),
    ],
)
def test_lengths_that_the_host_once_knew_are_not_read_back(body: str, *, told: bool) -> None:
    for name in ("build", "prepare_inputs", "_prepare_inputs_for_step"):
        text = f"""
class AttentionMetadataBuilderV1:
    def {name}(self, x: torch.Tensor, lens, m, grid_thw):
        query_lens = self.count(x)
        {body}
        return self.attend(x, n)
"""
        assert [s.occasion.value for s in found(text, "NPU214")] == ["step"] * told


@pytest.mark.parametrize(
    ("name", "body", "told"),
    [
        ("main", "loss.backward()", ["step", "call"]),  # the second stands behind the loop
        ("main", "pass", []),
        ("evaluate", "loss.backward()", []),
    ],
)
def test_a_main_that_trains_runs_steps(name: str, body: str, told: list[str]) -> None:
    text = f"""
def {name}(model, batches):
    total = 0
    for batch in batches:
        loss = model(batch)
        total += loss.item()
        {body}
    print(loss.item())
"""
    assert [site.occasion.value for site in found(text, "NPU214")] == told


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ("self.drop(x.cpu()).npu()", True),
        ("self.drop(x.cpu()).to(x.device)", True),
        ("torch.tensor(table.look_up(x.cpu().numpy())).float().to(x.device)", True),
        ("torch.tensor(scipy.special.erfcx(x.cpu().numpy())).float().to(x.device)", False),
        ("self.drop(x.cpu()).tolist()", False),
        ("self.write(x.cpu(), x.npu())", False),
    ],
)
def test_what_comes_back_from_the_host_is_computed_on_the_device(code: str, *, told: bool) -> None:
    text = "import scipy\nclass A(nn.Module):\n    def forward(self, x: torch.Tensor):\n"
    text += f"        return {code}\n"
    assert ["is copied back" in site.problem for site in found(text, "NPU214")] == [True] * told


@pytest.mark.parametrize(
    ("head", "told"),
    [
        ("for h, w in grid:\n            m = grid[:, 1].sum()", True),
        ("for h in grid[:, 0]:\n            w = 1", False),  # no name
        ("for h, w in grid:\n            m = 1", False),  # perhaps a list
    ],
)
def test_what_has_columns_is_gone_through_as_numbers(head: str, *, told: bool) -> None:
    text = f"""
class A(nn.Module):
    def forward(self, x: torch.Tensor, grid):
        {head}
            x = x + torch.arange(h * w, device=x.device).sum()
        return x
"""
    assert len([s for s in found(text, "NPU214") if s.rewrite is not None]) == told


def test_checks_in_a_row_are_one() -> None:
    text = "def forward(x: torch.Tensor):\n    assert x.all()\n    assert x.any()\n    return x\n"
    asked = text.replace("assert ", 'assert x.device.type == "npu" or ')
    assert rewritten(text, "NPU217") == asked


def test_whether_there_is_a_mask_is_for_the_host_to_decide() -> None:
    text = (
        "def forward(m: torch.Tensor):\n    if (m == 1).all():\n        return None\n    return m\n"
    )
    assert found(text, "NPU217") == []


@pytest.mark.parametrize(
    ("test", "value", "count"),
    [
        ("sum() > 0", "0", 1),
        ("sum() > 1", "0", 0),
        ("any()", "x[mask].exp()", 1),
        ("any()", "sample(x[mask])", 0),  # may refuse what holds nothing
        ("any()", "x[mask].max()", 0),
    ],
)
def test_a_test_goes_where_nothing_can_be_written(test: str, value: str, count: int) -> None:
    text = f"""
def forward(x: torch.Tensor):
    mask = x > 3
    if mask.{test}:
        x[mask] = {value}
    return x
"""
    assert sum(site.rewrite is not None for site in found(text, "NPU217")) == count


@pytest.mark.parametrize("by", ["(y != -1).sum()", "x.shape[0]"])
def test_an_arm_that_divides_by_a_count_of_what_is_tested_may_divide_by_zero(by: str) -> None:
    text = f"""
    def loss(self, x: torch.Tensor, y: torch.Tensor):
        losses = self.head(x, y)
        if torch.all(y == -1):
            loss = losses.sum()
        else:
            loss = losses.sum() / {by}
        return loss
    """
    (site,) = found(text, "NPU217")
    assert ("clamp(min=1)" in site.problem) is ("sum" in by)


@pytest.mark.parametrize(
    "code",
    [
        "parts.append(rows[start : start + n.item()])",
        "start += n.item()\n            parts.append(rows[start:])",
        "k = n.item()\n                start += k\n                parts.append(rows[start])",
    ],
)
def test_a_number_that_picks_rows_is_no_log(code: str) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, rows, counts: torch.Tensor):
            parts, start = [], 0
            for n in counts:
                {code}
            return parts
    """
    for site in found(text, "NPU214"):
        assert "every N steps" not in site.problem


@pytest.mark.parametrize(
    ("read", "written"),
    [
        ("row.sum().item()", True),
        ("row.sum().tolist()", True),
        ("row.cumsum(0).tolist()", False),  # lists of numbers
        ("row.sum().cpu()", False),  # tensors
        ("row.sum().cpu().numpy()", False),  # arrays
    ],
)
def test_only_numbers_are_read_together(read: str, *, written: bool) -> None:
    text = f"def forward(self, rows):\n    return [{read} for row in rows]\n"
    assert any(site.rewrite is not None for site in found(text, "NPU214")) is written


def test_a_place_that_is_drawn_is_needed_on_the_host() -> None:
    text = """
    class Crop(nn.Module):
        def forward(self, x: torch.Tensor, starts: torch.Tensor):
            at = torch.randint(0, 9, (1,), device=x.device).item()
            first = starts[0] + at
            last = first + 4
            return x[first:last]
    """
    assert found(text, "NPU214") == []


@pytest.mark.parametrize(("other", "kept"), [("x.shape", True), ("x.argmax(0).tolist()", False)])
def test_a_value_for_a_log_is_not_kept_where_the_host_waits_anyway(
    other: str, *, kept: bool
) -> None:
    text = f"""
    class Head(nn.Module):
        def forward(self, x: torch.Tensor):
            log = {{}}
            log["mean"] = x.mean().item()
            return {other}, log
    """
    sites = [s for s in found(text, "NPU214") if "mean" in s.code]
    assert bool(sites) is kept


@pytest.mark.parametrize(
    "code",
    ["int(q.shape[2] * rotary_factor)", "int((cu_seqlens[1:] - cu_seqlens[:-1]).max().item())"],
)
def test_what_python_computes_of_sizes_is_no_table(code: str) -> None:
    text = f"""
    def rotary(q: torch.Tensor, rotary_factor, cu_seqlens: torch.Tensor):
        n = {code}
        return q[:n]
    """
    assert bool(found(text, "NPU321")) is ("cu_seqlens" in code)


@pytest.mark.parametrize(("test", "told"), [("self._export", False), ("not self._export", True)])
def test_what_a_layer_computes_for_an_export_is_no_step(test: str, *, told: bool) -> None:
    text = f"""
    class Layer(nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor):
            if {test}:
                ends = lengths.cumsum(0)
                x = x[ends]
            return x
    """
    assert bool(found(text, "NPU321")) is told


@pytest.mark.parametrize(("given", "told"), [("[count, total]", False), ("rows", True)])
def test_a_few_numbers_in_double_precision_cost_nothing(given: str, *, told: bool) -> None:
    text = f"""
    def train_step(x: torch.Tensor, rows, count, total):
        return torch.tensor({given}, dtype=torch.float64, device=x.device)
    """
    assert bool(found(text, "NPU225")) is told


@pytest.mark.parametrize(
    ("test", "left"),
    [
        ("always and empty.any()", "if always:"),
        ("empty.any() and always", "if always:"),
        ("empty.any() and queue.pop()", ""),
        ("empty.any() and queue.pop() and always", ""),
        ("empty.any() and always and queue[0] > 1", ""),  # may be empty itself
    ],
)
def test_a_mask_test_goes_where_nothing_is_asked_more_often(test: str, left: str) -> None:
    text = f"""
    class Attend(nn.Module):
        def forward(self, out: torch.Tensor, always: bool, queue):
            empty = (out.abs() > 0).sum(-1) == 0
            if {test}:
                out = out.masked_fill(empty[..., None], 0.0)
            return out
    """
    written = [s for s in found(text, "NPU217") if s.rewrite is not None]
    assert len(written) == bool(left)
    assert not left or left in rewritten(text, "NPU217")


def test_what_ends_a_loop_is_not_read_before_it() -> None:
    text = """
        def forward(self, x: torch.Tensor, rounds):
            stop = torch.zeros(4, dtype=torch.bool, device=x.device)
            for i in range(rounds):
                x = self.net(x)
                stop |= x > 0
                if stop.all().item():
                    break
                elif time.time() > self.limit:
                    break
            return x
    """
    assert ["whether it is the last" in site.problem for site in found(text, "NPU214")] == [True]


@pytest.mark.parametrize(
    ("code", "why"),
    [
        ("at = torch.tensor(places)\n    return x[at], x[at]", "the index is made on the host"),
        ("return x[:, torch.from_numpy(places)]", "the index is made on the host"),
        ("for y in places:\n        n = torch._shape_as_tensor(y)[2:].to(x.device)", "each round"),
        (
            "n = []\n    n = torch.as_tensor(\n        n, device=x.device)\n    return n",
            "in every call",
        ),
        ("return x[torch.tensor(places, device=x.device)]", ""),
        ("return torch.zeros(9)[torch.tensor(places)]", ""),  # both on the host
        ("return torch._shape_as_tensor(x).to(x.device)", ""),
    ],
)
def test_numbers_of_the_host_that_steps_wait_for_are_named(code: str, why: str) -> None:
    sites = found(f"def forward(self, x: torch.Tensor, places):\n    {code}\n", "NPU219")
    assert [s.rewrite for s in sites] == [None] * bool(why)
    assert all(why in site.problem for site in sites)


@pytest.mark.parametrize(
    ("counted", "is_open"),
    [
        ('sum(len(t["labels"]) for t in targets)', False),
        ("sum([len(t) for t in targets])", False),
        ('sum(t["labels"].sum() for t in targets)', True),
        ("sum((len(t) for t in targets), x)", True),
    ],
)
def test_lengths_add_up_to_a_number_of_the_host(counted: str, *, is_open: bool) -> None:
    text = f"""
import torch
from torch import nn
class Criterion(nn.Module):
    def forward(self, x, targets):
        count = {counted}
        return torch.as_tensor([count], dtype=torch.float, device=x.device)
"""
    (site,) = find_sites(text, [UPLOAD])
    assert ("one-number" in {c.name for c in site.open_conditions}) is is_open


@pytest.mark.parametrize(
    ("rounds", "is_open"),
    [
        ("list(range(n))[::-1]", False),
        ("tqdm(reversed(range(n)))", False),
        ("enumerate(steps)", True),
        ("shuffled(range(n))", True),
        ("list(steps)", True),
    ],
)
def test_rounds_of_a_range_are_numbers_in_any_order(rounds: str, *, is_open: bool) -> None:
    text = f"""
import torch
from tqdm.auto import tqdm
def sample_loop(model, x, steps, n):
    rounds = {rounds}
    if n > 9:
        rounds = tqdm(rounds)
    for i in rounds:
        x = model(x, torch.tensor([i] * x.shape[0], device=x.device))
    return x
class Sampler:
    def sample(self, x):
        return sample_loop(self.model, x, self.steps, 9)
"""
    (site,) = find_sites(text, [UPLOAD])
    assert ("one-number" in {c.name for c in site.open_conditions}) is is_open


@pytest.mark.parametrize(
    ("first", "last", "told"),
    [
        ("pass", "y = x", True),
        ("raise ValueError", "y = x", True),
        ("pass", "raise ValueError", False),
    ],
)
def test_what_an_error_tells_is_read_seldom(first: str, last: str, *, told: bool) -> None:
    text = f"""
import torch
from torch import nn
class Sampler(nn.Module):
    def forward(self, x: torch.Tensor, n: int):
        if n > 3:
            y = x[:3]
            {first}
        else:
            print("min=%f, max=%f" % (x.min().item(), x.max().item()))
            {last}
        return y
"""
    assert bool(list(find_sites(text, [READ]))) is told
