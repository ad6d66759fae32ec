"""What the searches find beside the examples of their rules, and what they must leave alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest
from searching import HEADER, RULES, found, rewritten

from npufix.rewriters.facts.occasions import is_hot
from npufix.rewriters.find import find_sites
from npufix.rewriters.graph.modules.scopes import scopes
from npufix.rules.registry import all_rules


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
        ("def clip_grad_value_(parameters, limit): ...", True),
        ("def set_requires_grad(net, on): ...", False),
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


def test_an_index_is_computed_once_before_the_loop() -> None:
    text = """
    def score(x: torch.Tensor, at: torch.Tensor, n: int):
        return_value = 0
        for i in range(n):
            return_value = return_value + x[torch.arange(x.size(0), device=x.device), at + i]
        return return_value
    """
    after = rewritten(text, "NPU216")
    assert "= torch.arange(x.size(0), device=x.device)\n    for i" in dedent(after)
    assert not found(
        text.replace("x[torch.arange(x.size(0), device=x.device), at", "x[at"), "NPU216"
    )


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


def test_an_einsum_that_is_imported_alone_becomes_a_name_that_is_there() -> None:
    body = (
        "from torch import einsum\ndef f(a, v):\n    return einsum('b i j, b j d -> b i d', a, v)\n"
    )
    assert "return torch.matmul(a, v)" in rewritten(body, "NPU265")
    sites = find_sites("from torch import nn\n" + body, RULES)
    assert [site for site in sites if site.rule.id == "NPU265"] == []
    turned = "def f(a, v):\n    return torch.einsum('bhls,bshd->blhd', {}, v)\n"
    assert found(turned.format("a"), "NPU265")
    assert found(turned.format("a.softmax(-1)"), "NPU265") == []


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
    # on the host nobody waits
    assert found(text.replace("= x > 0", "= x.cpu().max(1)[0] > 0"), "NPU218") == []


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
        ("if self.strict:\n            assert x.all()", "NPU217"),
        ("if x.max() != 0:\n            assert x.max() < 9", "NPU217"),
        ("if not x.all():\n            assert x.any()\n            self.log(x)", "NPU217"),
        ("m = x == 0 if (x == 0).any() else None\n        return self.f(x, m)", "NPU217"),
        ("m: T | None = None\n        if (x == 0).any():\n            m = x == 0", "NPU217"),
        ("x = torch.cat([self.cached_left_pad, x])\n        return x, (x, x)", "NPU323"),
        ("past = torch.cat([past, x], 1)\n        return (past, self.positions), x", "NPU323"),
        ("self.cache = torch.cat([self.cache, x])\n        self.cache = self.cache[-9:]", "NPU323"),
        ("self.splice_cache = torch.cat([self.splice_cache, x])", "NPU323"),
        ("for i in range(9):\n            n = x[i].detach().numpy()", "NPU214"),
        ("for i in range(9):\n            self.bank.append(F.relu(x[i]).cpu())", "NPU214"),
        ("return x.to(device='cpu', dtype=torch.float64) * 2", "NPU225"),
        ("if x > 9:\n            print(f'{x.item()}')", "NPU214"),
        ("return {k: torch.from_numpy(v).to(x.device) for k, v in x.items()}", "NPU219"),
        ("for i in x.sizes:\n            n = torch.FloatTensor(i).mean().item()", "NPU214"),
        ("p = x.exp()\n        for i in range(9):\n            self.f(p.stride(0))", "NPU216"),
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


@pytest.mark.parametrize(("method", "count"), [("forward", 1), ("mix", 0)])
def test_layers_of_a_subclass_are_others_where_it_replaces_the_method(
    method: str, count: int
) -> None:
    text = f"""
    class A(nn.Module):
        def __init__(self):
            super().__init__()
            self.q = nn.Linear(4, 4)
            self.k = nn.Linear(4, 4)
            self.v = nn.Linear(4, 4)

        def forward(self, x):
            return self.q(x), self.k(x), self.v(x)

    class B(A):
        def __init__(self, size):
            super().__init__()
            self.k = nn.Linear(size, 4)
            self.v = nn.Linear(size, 4)

        def {method}(self, x, y):
            return self.q(x), self.k(y) + self.v(y)
    """
    sites = [site for site in found(text, "NPU176") if site.function == "A.forward"]
    assert len(sites) == count


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
    end = "        pin_memory=True,\n        persistent_workers=n > 0,\n    )"
    assert end in rewritten(text, "NPU270")


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


def test_a_falling_list_is_turned_and_an_array_is_left_alone() -> None:
    text = "def forward(x: torch.Tensor):\n    return x[:, [2, 1, 0]]\n"
    assert "return x[:, 0:3].flip(1)" in rewritten(text, "NPU267")
    parts = ", ".join(f"torch.Tensor(x[:, {n}])" for n in range(3))
    array = f"def forward(x):\n    return [{parts}]\n"
    assert found(array, "NPU268") == []


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
    ("row", "rows"),
    [
        ("row[None]", "x.clone()"),
        ("(row * 2).unsqueeze(0)", "x * 2"),
        ("row[None].relu()", "x[:, None].relu().flatten(0, 1)"),
        ("row[None, None]", "x[:, None, None].clone().flatten(0, 1)"),
    ],
)
def test_rows_with_a_dimension_of_one_are_joined_to_what_they_were(row: str, rows: str) -> None:
    text = f"""
def join(x: torch.Tensor):
    x = x.sin()
    return torch.cat([{row} for row in x])
"""
    assert f"return {rows}\n" in rewritten(text, "NPU250")
