"""What the searches find beside the examples of their rules, and what they must leave alone."""

from __future__ import annotations

import ast
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest

from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.modules.scopes import scopes
from npufix.rules.registry import all_rules

if TYPE_CHECKING:
    from npufix.rewriters.edit.site import Site

HEADER = "import numpy as np\nimport torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
RULES = [rule for rule in all_rules() if rule.search]


def found(text: str, rule: str) -> list[Site]:
    sites = find_sites(HEADER + dedent(text), RULES)
    return [site for site in sites if site.rule.id == rule]


def rewritten(text: str, rule: str) -> str:
    (site,) = found(text, rule)
    assert site.rewrite is not None, site.problem
    ast.parse(site.rewrite.direct)
    return site.rewrite.direct.removeprefix(HEADER)


@pytest.mark.parametrize(
    ("code", "hot"),
    [
        ("class A(nn.Module):\n    def forward(self): ...", True),
        ("class A(nn.Module):\n    def get_mask(self): ...", True),
        ("class A(nn.Module):\n    def __init__(self): ...", False),
        ("class A(nn.Module):\n    def load_weights(self): ...", False),
        ("class FooMetadataBuilder:\n    def build(self): ...", True),
        ("class Foo(Dataset):\n    def forward(self): ...", True),
        ("class FooDataset:\n    def compute_step(self): ...", False),
        ("class PostProcessFoo(nn.Module):\n    def forward(self): ...", False),
        ("class A(nn.Module):\n    def rope_init(self): ...", False),
        ("def load_balancing_loss(x): ...", True),
        ("def build_model(x): ...", False),
        ("def train_one_epoch(x): ...", True),
        ("def evaluate(x): ...", False),
        ("def helper(x): ...", False),
    ],
)
def test_what_runs_in_every_step_is_told_by_its_names(code: str, *, hot: bool) -> None:
    (scope,) = scopes(ast.parse(code))
    assert is_hot(scope) is hot


@pytest.mark.parametrize(
    ("name", "hot"), [("get_weights", True), ("load_weights", False), ("log_metrics", False)]
)
def test_weights_that_forward_asks_for_are_computed(name: str, *, hot: bool) -> None:
    text = f"""
class A(nn.Module):
    def forward(self):
        return self.{name}()

    def {name}(self): ...
"""
    scope = next(s for s in scopes(ast.parse(text)) if s.function.name == name)
    assert is_hot(scope) is hot


def test_a_function_runs_as_often_as_those_that_call_it() -> None:
    module = ast.parse(
        "def inner(x): ...\n"
        "def helper(x): return inner(x)\n"
        "def once(x): ...\n"
        "def build_model(x): return once(x)\n"
        "def debug_shape(x): ...\n"
        "class A(nn.Module):\n"
        "    def forward(self, x): return debug_shape(helper(x))\n"
    )
    hot = {scope.function.name for scope in scopes(module) if is_hot(scope, module)}
    assert hot == {"inner", "helper", "forward"}


def test_a_branch_whose_arm_divides_by_what_is_tested_stays() -> None:
    text = """
    def loss(x: torch.Tensor, mask: torch.Tensor):
        n = mask.sum()
        {}
        return y
    """
    dividing = text.format("y = x.sum() / n if n > 0 else x.sum() * 0")
    assert [s for s in found(dividing, "NPU217") if s.rewrite is not None] == []
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
    "body",
    [
        "scale = y.exp()\n        x = x * scale\n        x.sum().backward()",  # the graph is freed
        "scale = y.exp()\n        z[0] = x.sum()\n        x = x * scale",  # z may be y
        "row = y.exp()\n        part = row[0]\n        part.zero_()\n        x = x * row",
        "scale = y.exp()\n        x.view(-1).mul_(2)\n        x = x * scale",  # x may be y
        "x = x * y.exp() if x.sum() else x",
        "if x.sum() > 0:\n            continue\n        scale = y.exp()\n        x = x * scale",
        "x = x + scale\n        scale = y.exp()",  # that of the round before
        "scale = y.exp()\n        kept.append(scale)",
        "scale = self.weight.exp()\n        x = x * scale",
        "noise = torch.rand(3, device=y.device)\n        x = x * noise",
        "scale = y.exp()\n        x = x * scale\n        scale = x",
        "y = y.exp()\n        x = x * y",
    ],
)
def test_what_changes_in_a_loop_stays_there(body: str) -> None:
    text = f"""
def forward(self, x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, kept, scale, n: int):
    for _ in range(n):
        {body}
    return x
"""
    assert (
        found(text.replace(", scale, n", ", n") if "x + scale" not in text else text, "NPU216")
        == []
    )


def test_what_fills_a_tensor_of_its_own_does_not_keep_the_rest_in_the_loop() -> None:
    text = """
    def forward(x: torch.Tensor, y: torch.Tensor, n: int):
        made = torch.zeros(n, 3, device=x.device)
        for i in range(n):
            # the same in each round
            scale = y.exp()
            made[i] = x[i] * scale
        return made
    """
    after = rewritten(text, "NPU216")
    assert after.index("scale = y.exp()") < after.index("for i in range(n):")
    (site,) = found(text, "NPU216")
    assert site.safety.value == "safe"


def test_a_value_that_a_call_gets_is_shared_only_if_nobody_writes_to_it() -> None:
    text = """
    class Stack(nn.Module):
        def forward(self, x: torch.Tensor, lengths: torch.Tensor):
            for layer in self.layers:
                mask = torch.arange(8, device=lengths.device)[None] < lengths[:, None]
                x = layer(x, mask)
            return x
    """
    (site,) = found(text, "NPU216")
    assert [c.name for c in site.open_conditions] == ["not-written-to"]


@pytest.mark.parametrize(
    "code",
    [
        "n = x.shape[0]\n    return y / max(n, 1)",
        "n = x.cpu().sum().item()\n    return y / n",  # the cpu() waits
        "n = x.max().item()\n    return y[:n]",
        "n = x.max().item()\n    if n > 3:\n        return y\n    return x",
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


@pytest.mark.parametrize("use", ["x[h // 2]", "self.f(rows)", "x * rows", "x[: rows / 2]"])
def test_elements_that_stay_on_the_device_are_no_numbers(use: str) -> None:
    text = f"""
    def forward(self, x: torch.Tensor, grid: torch.Tensor):
        for h, w in grid:
            rows = h // 2
            x = x + torch.arange(rows * w).sum() + {use}
        return x
    """
    assert [s for s in found(text, "NPU214") if s.rewrite is not None] == []


def test_a_limit_that_comes_first_is_not_that_of_nan() -> None:
    text = "def loss(x: torch.Tensor, y: torch.Tensor):\n    return y / max(1.0, x.sum())\n"
    (site,) = found(text, "NPU214")
    assert "never-nan" in {c.name for c in site.open_conditions}
    (other,) = found(text.replace("1.0, x.sum()", "x.sum(), 1.0"), "NPU214")
    assert "never-nan" not in {c.name for c in other.open_conditions}


@pytest.mark.parametrize(
    "code",
    [
        "valid[0] = True\n    b = y[valid]",
        "valid &= y > 1\n    b = y[valid]",
        "b = y[valid] if x.dim() else y",
        "b = [t[valid] for t in (x, y)]",
    ],
)
def test_a_mask_that_changes_is_looked_through_again(code: str) -> None:
    text = f"""
def loss(x: torch.Tensor, y: torch.Tensor):
    valid = x > 0
    a = x[valid]
    {code}
    return a, b
"""
    assert [s for s in found(text, "NPU218") if s.rewrite is not None] == []


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


def test_a_second_mask_of_one_name_gets_a_name_of_its_own() -> None:
    text = """
def loss(x: torch.Tensor, y: torch.Tensor, a: torch.Tensor, b: torch.Tensor):
    if a is not None:
        valid = a > 0
        x = x[valid] + y[valid]
    else:
        valid = b > 0
        x = x[valid] - y[valid]
    return x
"""
    first, *_ = found(text, "NPU218")
    assert first.rewrite is not None
    again = found(first.rewrite.direct.removeprefix(HEADER), "NPU218")
    (second,) = (site for site in again if site.rewrite is not None)
    assert second.rewrite is not None
    assert "valid_at2" in second.rewrite.direct


@pytest.mark.parametrize(
    ("code", "advice"),
    [
        ("torch.tensor(range(n), device=x.device)", "torch.arange"),
        ("torch.tensor([0.1, 0.2], device=x.device)", "lru_cache"),
        ("torch.tensor([n, 4]).to(dtype)", ""),  # stays on the host
        ("torch.tensor([n, 4], device=x.device)", "lru_cache"),
        ("torch.tensor([x[0] * n, x[1]], device=x.device)", "torch.stack"),
        ("torch.tensor([n * i for i in x.long().tolist()], device=x.device)", "torch.stack"),
        ("torch.tensor([], device=x.device)", ""),
        ("torch.as_tensor(np.random.rand(n), device=x.device)", ""),  # nothing else to do
    ],
)
def test_what_is_copied_decides_what_to_do_instead(code: str, advice: str) -> None:
    text = f"def forward(x: torch.Tensor, n: int, dtype):\n    return x * {code}\n"
    problems = [site.problem for site in found(text, "NPU219")]
    assert [advice in problem for problem in problems] == [True] * bool(advice)


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


def test_a_mask_behind_a_colon_is_the_same_mask() -> None:
    text = """
def forward(self, x: torch.Tensor, y: torch.Tensor):
    keep = y > 0
    return self.compare(x[:, keep], y[keep])
"""
    assert "self.compare(x[:, keep_at], y[keep_at])" in rewritten(text, "NPU218")


def test_names_that_columns_have_are_kept() -> None:
    text = """
def forward(self, x: torch.Tensor):
    p = self.head(x).reshape(*x.shape[:-1], 3, 3)
    t = p[..., 0]
    u, v = p[..., 1], p[..., 2]
    return t, u.cross(v)
"""
    kept = text.replace("t = p[..., 0]\n    u, v = p[..., 1], p[..., 2]", "t, u, v = p.unbind(-1)")
    assert rewritten(text, "NPU268").removeprefix(HEADER) == kept
    # of two names one stands for something else
    assert "u, v = p_1, p_2 + 1" in rewritten(text.replace("p[..., 2]", "p[..., 2] + 1"), "NPU268")


def test_positions_that_are_there_are_pointed_at() -> None:
    text = """
def forward(self, x: torch.Tensor, y: torch.Tensor):
    keep = y > 0
    places = torch.where(keep)[0]
    return self.compare(x[keep], y[keep], places)
"""
    (site,) = found(text, "NPU218")
    assert site.rewrite is None
    assert "index with what torch.where(keep) returns" in site.problem


def test_pieces_of_a_known_length_are_taken_whole() -> None:
    text = """
def forward(self, x: torch.Tensor):
    b, n, c = x.shape
    qkv = self.qkv(x).reshape(b, n, 3, 8, c // 8).permute(2, 0, 3, 1, 4)
    q, k, v = qkv[0], qkv[1], qkv[2]
    return q @ k * v
"""
    assert "q, k, v = qkv.unbind(0)\n" in rewritten(text, "NPU268")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if i % 100 == 0:\n            print(loss.item())", False),  # seldom enough
        ("self.logger.record('loss', loss.item())", True),
        ("if self.log_now:\n            print(loss.item())", False),
        ("self.train_epoch()\n        print(loss.item())", False),
        ("print(self.state_dict['loss'].item())", False),
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


def test_an_einsum_that_is_imported_alone_becomes_a_name_that_is_there() -> None:
    body = (
        "from torch import einsum\ndef f(a, v):\n    return einsum('b i j, b j d -> b i d', a, v)\n"
    )
    assert "return torch.matmul(a, v)" in rewritten(body, "NPU265")
    sites = find_sites("from torch import nn\n" + body, RULES)
    assert [site for site in sites if site.rule.id == "NPU265"] == []
    turned = "def f(a, v):\n    return torch.einsum('bhls,bshd->blhd', a, v)\n"
    assert found(turned, "NPU265") == []


def test_statistics_that_are_computed_keep_their_gradient() -> None:
    text = """
class Norm(nn.Module):
    def forward(self, x):
        mean, square = torch.split(gather(x), 3)
        scale = self.weight * torch.rsqrt(square - mean * mean + self.eps)
        bias = self.bias - mean * scale
        return x * scale.reshape(1, -1, 1, 1) + bias.reshape(1, -1, 1, 1)
"""
    assert [s for s in find_sites(HEADER + text, all_rules()) if s.rule.id == "NPU167"] == []


def products(count: int) -> str:
    lines = "".join(
        f"        b{i} = torch.einsum('bi,ij->bj', x, self.weight[{i}])\n" for i in range(count)
    )
    return f"{HEADER}class A(nn.Module):\n    def forward(self, x):\n{lines}        return x\n"


def test_a_function_that_holds_too_much_is_cut_and_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npufix.rewriters.find._MOST_EFFORT", 40)
    cut: list[str] = []
    sites = list(find_sites(products(40), RULES, cut=cut.append))
    assert cut == ["A.forward"]
    assert len(sites) < 40 or any(site.rewrite is None for site in sites)
    monkeypatch.undo()
    assert len(list(find_sites(products(40), RULES, cut=cut.append))) == 40
    assert len(cut) == 1


def test_a_loop_is_not_tried_without_effort(monkeypatch: pytest.MonkeyPatch) -> None:
    code = f"""{HEADER}
def f(x: torch.Tensor):
    rows = []
    for i in range(x.shape[0]):
        rows.append(torch.relu(x[i]))
    return torch.stack(rows)
"""
    loops = [rule for rule in RULES if rule.search == "loops"]
    assert [site.rewrite is not None for site in find_sites(code, loops)] == [True]
    monkeypatch.setattr("npufix.rewriters.find._MOST_EFFORT", 0)
    cut: list[str] = []
    assert not list(find_sites(code, loops, cut=cut.append))
    assert cut == ["f"]


def test_lines_of_changes_are_those_of_the_module() -> None:
    text = products(3)
    sites = list(find_sites(text, RULES))
    bare = list(find_sites(text, RULES, with_text=False))
    for site, without in zip(sites, bare, strict=True):
        assert site.rewrite is not None
        assert without.rewrite is not None
        assert site.rewrite.line == without.rewrite.line
        assert not without.rewrite.direct
        shown = site.rewrite.direct.splitlines()[site.rewrite.line - 1]
        assert shown.lstrip().startswith(f"b{sites.index(site)} ")


def test_a_mask_that_may_be_one_truth_value_is_asked_for_its_dimensions() -> None:
    text = """
    def forward(x: torch.Tensor, y: torch.Tensor):
        keep = x > 0
        return x[keep], y[keep]
    """
    (site,) = found(text, "NPU218")
    assert [c.name for c in site.open_conditions] == ["has-dimensions"]
    assert site.rewrite is not None
    assert "(mask=keep)" in site.rewrite.probe
    (shown,) = found(text.replace("return", "n = x.shape[0]\n        return n,"), "NPU218")
    assert shown.open_conditions == ()


def test_operands_that_conditions_are_about_are_asked_for() -> None:
    text = """
    def forward(x: torch.Tensor, w: torch.Tensor):
        assert (w > 0).all()
        scale = w.abs().max().item()
        y = x.sum() / scale
        bad = y > 3
        if bad.any():
            y[bad] = 0.0
        return y
    """
    (check, guard) = found(text, "NPU217")
    (read,) = found(text, "NPU214")
    probes = [site.rewrite.probe for site in (check, guard, read) if site.rewrite]
    assert "(check=lambda:(w > 0).all())" in probes[0]
    assert "(target0=y)" in probes[1]
    assert [c.name for c in guard.open_conditions] == ["may-be-written"]
    assert "(x=w.abs().max(), y0=x.sum())" in probes[2]


def test_a_choice_that_is_the_same_in_every_round_moves_as_a_whole() -> None:
    text = """
    class Pool(nn.Module):
        def __init__(self, mean: bool):
            super().__init__()
            self.mean = mean

        def forward(self, xs: list, w: torch.Tensor):
            total = 0
            for x in xs:
                if self.mean:
                    scale = w.abs().mean()
                else:
                    scale = w.abs().sum()
                total = total + x * scale
            return total
    """
    wanted = """
            total = 0
            if self.mean:
                scale = w.abs().mean()
            else:
                scale = w.abs().sum()
            for x in xs:
                total = total + x * scale
            return total
    """
    assert dedent(wanted).strip() in dedent(rewritten(text, "NPU216").split("torch.Tensor):")[1])


def test_a_choice_whose_arms_learn_other_things_says_so() -> None:
    text = """
    def loss(x: torch.Tensor, y: torch.Tensor, mask: torch.Tensor):
        n = mask.sum()
        return x.sum() / 2 if n > 0 else {}.sum() * 0
    """
    (other,), (same,) = (found(text.format(name), "NPU217") for name in "yx")
    assert "zero-gradients" in {c.name for c in other.open_conditions}
    assert "zero-gradients" not in {c.name for c in same.open_conditions}
    assert "arm0=lambda:x.sum() / 2" in (other.rewrite.probe if other.rewrite else "")


@pytest.mark.parametrize(
    ("code", "rule"),
    [
        ("n = torch.tensor([u.size(1) for u in x])\n        assert n.max() <= 5", "NPU217"),
        ("n = np.array(x.sizes)\n        assert (n > 0).all()", "NPU217"),
        ("with torch.npu.graph(g):\n            pass\n        torch.npu.synchronize()", "NPU320"),
        ("p, q = F.normalize(x), x.long()\n        return p[0] + p[1] + p[2]", "NPU268"),
        ("q = x.long()\n        return F.relu(q[:, 0]) + q[:, 1] + q[:, 2]", "NPU268"),
        ("for i in range(1, 9):\n            x[..., i, :i] = x[..., :i, :i].sum(-2)", "NPU250"),
        ("for i in range(9):\n            x[i, :n[i]] = 1\n            self.log(i)", "NPU250"),
        ("d = {}\n        for i in range(9):\n            d[i, 0], n = 1, x.y[i]", "NPU250"),
        ("rois = x.exp()\n        return rois[:, 0] + rois[:, 1] + rois[:, 2]", "NPU268"),
        ("p = F.relu(x)\n        return x[p[:, 0]] + x[p[:, 1]] + x[p[:, 2]]", "NPU268"),
        ("for i in x.sizes:\n            n = int(torch.rand(1) * x.size(0))", "NPU214"),
        ("for i in range(9):\n            save(i, x[i].cpu())", "NPU214"),
        ("return torch.randint(0, max(1, x.max()) + 1, (4,))", "NPU214"),
        ("if self.strict:\n            assert x.all()", "NPU217"),
        ("if x.max() != 0:\n            assert x.max() < 9", "NPU217"),
        ("if not x.all():\n            assert x.any()\n            self.log(x)", "NPU217"),
        ("x = torch.cat([self.cached_left_pad, x])\n        return x, (x, x)", "NPU323"),
        ("past = torch.cat([past, x], 1)\n        return (past, self.positions), x", "NPU323"),
        ("return {n: torch.tensor([], device=x.device) for n in x.names}", "NPU219"),
        (
            (
                "for i in range(9):\n            y = self.net(torch.tensor(s, device=x.device))\n"
                "            s, done = self.env.step(y)"
            ),
            "NPU219",
        ),
        ("for n, w in x.items:\n            self.kept[n] = w.cpu()", "NPU214"),
        ("while not n:\n            n = x[0].item()\n            time.sleep(1)", "NPU214"),
        ("for p, step_t in zip(x.p, x.state_steps):\n            n = step_t.item()", "NPU214"),
        ("p = x.exp()\n        for i in range(9):\n            n = p.shape[0]", "NPU216"),
        ("z = torch.fft.rfft(x)\n        return torch.einsum('bij,bjk->bik', z, z)", "NPU265"),
        ("a, b = x[0].item(), x[-1].item()\n        assert b - a > self.step", "NPU214"),
        (
            (
                "try:\n            y = [v * 2 for v in x]\n        except RuntimeError:\n"
                "            y = [v.cpu() for v in x]"
            ),
            "NPU214",
        ),
        ("y = [v.cpu() if x.device.type == 'cuda' else v for v in x]", "NPU214"),
    ],
)  # fmt: skip
def test_nothing_is_said_where_nothing_is_gained(code: str, rule: str) -> None:
    text = f"class A(nn.Module):\n    def forward(self, x: torch.Tensor):\n        {code}\n"
    assert found(text, rule) == []


def test_a_list_of_pieces_is_not_indexed_like_a_tensor() -> None:
    text = """
    def sort(x: torch.Tensor, sizes: torch.Tensor, order: torch.Tensor):
        x = {}
        return torch.cat([x[i] for i in order.tolist()], dim=0)
    """
    for made in ("torch.split(x, sizes.tolist(), dim=0)", "x.chunk(4)", "x.unbind(0)"):
        assert [s for s in found(text.format(made), "NPU250") if s.rewrite is not None] == []
    assert "x[order].flatten(0, 1)" in rewritten(text.format("x.sin()"), "NPU250")


def test_layers_of_one_input_get_the_name_that_they_share() -> None:
    text = """
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.v_proj = nn.Linear(4, 4)
            self.k_proj = nn.Linear(4, 4)

        def forward(self, x):
            k, v = self.k_proj(x), self.v_proj(x)
            return k * v
    """
    (site,) = found(text, "NPU176")
    assert "self.kv_proj = nn.Linear(4, 2 * 4)" in site.problem


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


@pytest.mark.parametrize("behind", [".clone()", " - y", " > 0"])
def test_columns_that_are_copied_anyway_are_copied_once(behind: str) -> None:
    text = f"def forward(x: torch.Tensor, y):\n    return x[:, [0, 2]]{behind}\n"
    assert rewritten(text, "NPU267") == text.replace("[0, 2]", "0:3:2")


def test_settings_get_lines_of_their_own_where_the_others_have() -> None:
    text = """
    from torch.utils.data import DataLoader
    def train_loader(data, n):
        return DataLoader(
            data,
            num_workers=n,
            collate_fn=lambda items: dict(
                items=items
            ),
        )
    """
    assert "),\n            pin_memory=True,\n        )" in rewritten(text, "NPU270").replace(
        "\n    ", "\n"
    ) or "        pin_memory=True,\n    )" in rewritten(text, "NPU270")


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
        assert site.rewrite.text in asked  # what is shown is what is written
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


_WRITTEN_TO = "t = torch.ones(h, w)\n        t.scatter_(1, ids, 0)\n"


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("t = torch.stack(torch.meshgrid(torch.arange(h), torch.arange(w))).float() / h", "sizes"),
        ("t = torch.arange(h).float() / h * 2 - 1 + torch.arange(x.shape[1]).float()", "sizes"),
        ("t = torch.arange(h).float() / h * 2 - 1", ""),  # one range, as long as a sentence
        ("t = (torch.arange(h) + torch.arange(w)) * x.mean()", ""),
        (f"{_WRITTEN_TO}        v = torch.arange(h).view(-1, 1) * torch.arange(w) * 2 - t", ""),
        ("t = torch.exp(-torch.arange(8).float() / n)", "__init__"),
        ("cos, sin = self.rope(x, position_ids)", "every layer"),
        ("cos, sin = self.rope(x, seq_len=h)", ""),  # rows of what is kept
        ("cos, sin = x if ids is None else self.rope(x, position_ids)", ""),  # handed down
        ("for a in h:\n            for b in w:\n                x[a, b] = n", ""),
    ],
)
def test_tables_that_are_made_anew_say_how_to_keep_them(body: str, told: str) -> None:
    text = f"""
class Attention(nn.Module):
    def forward(self, x: torch.Tensor, position_ids, ids, h: int, w: int, n: int = 4):
        {body}
        return self.attend(x)
"""
    sites = found(text, "NPU322") + found(text, "NPU321")
    assert [told in site.problem for site in sites] == [True] * bool(told)


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
        ("self.drop(x.cpu()).tolist()", False),
        ("self.write(x.cpu(), x.npu())", False),
    ],
)
def test_what_comes_back_from_the_host_is_computed_on_the_device(code: str, *, told: bool) -> None:
    text = f"class A(nn.Module):\n    def forward(self, x: torch.Tensor):\n        return {code}\n"
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


def test_a_falling_list_is_turned_and_an_array_is_left_alone() -> None:
    text = "def forward(x: torch.Tensor):\n    return x[:, [2, 1, 0]]\n"
    assert "return x[:, 0:3].flip(1)" in rewritten(text, "NPU267")
    parts = ", ".join(f"torch.Tensor(x[:, {n}])" for n in range(3))
    array = f"def forward(x):\n    return [{parts}]\n"
    assert found(array, "NPU268") == []


def test_whether_there_is_a_mask_is_for_the_host_to_decide() -> None:
    text = (
        "def forward(m: torch.Tensor):\n    if (m == 0).any():\n        return m\n    return None\n"
    )
    assert found(text, "NPU217") == []


def test_columns_of_what_is_detached_have_no_gradient() -> None:
    text = "def forward(x: torch.Tensor):\n    y = torch.stack([x[..., 2], x[..., 1], x[..., 0]])\n"
    assert found(f"{text}    return y.view(3, -1).detach()\n", "NPU268") == []
    assert len(found(f"{text}    return y.view(3, -1)\n", "NPU268")) == 1


def test_positions_serve_what_is_written_as_well() -> None:
    text = """
def forward(x: torch.Tensor, y: torch.Tensor, out: torch.Tensor):
    mask = (x > 0) & (y[:, 0] > 0)
    out[mask] = x[mask] / y[mask]
    return out
"""
    (site,) = found(text, "NPU218")
    assert site.rewrite is not None
    assert "out[mask_at] = x[mask_at] / y[mask_at]" in site.rewrite.direct


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
