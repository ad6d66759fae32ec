"""Columns, experts, clipped and early reduced gradients in other spellings than a rule's own."""

from __future__ import annotations

import pytest

from npufix.rewriters.find import find_sites
from npufix.rules.registry import all_rules

HEADER = "import torch\nfrom torch import nn\nimport torch.nn.functional as F\nimport torch_npu\n"


def changes(text: str, rule: str) -> list[tuple[str, list[str]]]:
    """Return the lines that a rule would add to a text, or its advice, and what is open there."""
    rules = [r for r in all_rules() if r.id == rule]
    lines = text.splitlines()
    return [
        (
            "\n".join(
                line.strip() for line in site.rewrite.direct.splitlines() if line not in lines
            )
            if site.rewrite
            else site.problem,
            [c.name for c in site.open_conditions],
        )
        for site in find_sites(text, rules)
    ]


def columns(body: str) -> str | None:
    lines = body.replace("; ", "\n").split("\n")
    text = "\n        ".join(lines)
    found = changes(
        f"{HEADER}\n\nclass Head(nn.Module):\n    def forward(self, x, scale, i):\n"
        f"        p = F.normalize(x)\n        {text}\n",
        "NPU268",
    )
    assert len(found) <= 1
    return found[0][0] if found else None


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            (
                "a = p[..., 0].exp()  # (B, N)\nb = torch.tanh(p[..., 1])\nc = p[..., 2]\n"
                "return a + b * c"
            ),
            "a, p_1, c = p[..., :3].unbind(-1)\na = a.exp()  # (B, N)\nb = torch.tanh(p_1)",
        ),
        (
            (
                "a = (p[:, 0:1]).sigmoid() * (scale[3] - scale[0]) + scale[0]\nb = p[:, 1:2]\n"
                "c = p[:, 2:4]\nreturn a, b, c"
            ),
            (
                "p_0, b, c = p[:, :4].split([1, 1, 2], dim=1)\n"
                "a = (p_0).sigmoid() * (scale[3] - scale[0]) + scale[0]"
            ),
        ),
        (
            "p[:, 0] = 1\na, b, c = p[:, 0], p[:, 1], p[:, 2]\nreturn a + b + c",
            "a, b, c = p[:, :3].unbind(1)",
        ),
        # names that are read before they are bound anew keep their values until then
        (
            "c = p.mean(-1); a = p[..., 0].mul(c); b = p[..., 1]; c = p[..., 2]; return a + b + c",
            "a, b, p_2 = p[..., :3].unbind(-1)\na = a.mul(c)\nc = p_2",
        ),
        (
            "a = 1; a = p[..., 0] * a; b = p[..., 1]; c = p[..., 2]; return a + b + c",
            "p_0, b, c = p[..., :3].unbind(-1)\na = p_0 * a",
        ),
        (
            "a = p[..., 0] * p[..., 3]; b = p[..., 1]; c = p[..., 2]; return a + b + c",
            "p_0, b, c, p_3 = p[..., :4].unbind(-1)\na = p_0 * p_3",
        ),
        (
            "a = p[..., 0]  # centre; b = p[..., 1]; c = p[..., 2]; return a + b + c",
            "p_0, b, c = p[..., :3].unbind(-1)\na = p_0  # centre",
        ),
    ],
)
def test_pieces_within_expressions(body: str, expected: str) -> None:
    assert columns(body) == expected


@pytest.mark.parametrize(
    "body",
    [
        # parts of unbind, and what they are views of, may not be written to
        "a = p[..., 0].sigmoid_(); b = p[..., 1]; c = p[..., 2]; return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; b = F.relu(b, inplace=True); return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; torch.sigmoid_(a); return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; torch.exp(i, out=b); return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; a.view(-1).zero_(); return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; p[:, 0] = 1; return a + b + c",
        "a, b, c = p[..., 0], p[..., 1], p[..., 2]; p.mul_(2); return a + b + c",
        # a piece that is taken later, and columns in between that nobody takes
        "a = p[..., 0]; b = p[..., 2]; c = p[..., 4]; return a + b + c",
        "a = lambda: p[..., 0]; b = p[..., 1]; c = p[..., 2]; return a() + b + c",
    ],
)
def test_pieces_that_stay(body: str) -> None:
    assert columns(body) is None


CLIP = """
def train(model, batch, params, limit):
    {made}
    model(batch).backward()
    norm = {clip}
    {step}
"""
MADE = "optimizer = torch_npu.optim.NpuFusedAdamW(model.parameters(), lr=1e-3)"
STEP = "optimizer.step()"


@pytest.mark.parametrize(
    ("made", "clip", "step", "expected"),
    [
        (MADE, "(model.parameters(), max_norm=limit)", STEP, "optimizer{}(limit)"),
        (MADE, "(parameters=model.parameters(), max_norm=5)", STEP, "optimizer{}(5)"),
        (MADE, "(model.parameters(), limit, 2.0)", STEP, "optimizer{}(limit, 2.0)"),
        (
            (
                "ps = [p for p in model.parameters() if p.requires_grad]\n"
                "    opt = torch_npu.optim.NpuFusedSGD(ps, lr=0.1)"
            ),
            "(ps, limit)",
            "opt.step()",
            "opt{}(limit)",
        ),
        # not known to be the same
        (MADE.replace("model.parameters()", "params"), "(params, limit)", STEP, None),
        (MADE, "(model.head.parameters(), limit)", STEP, None),
        # another meaning
        (MADE, "(model.parameters(), limit, error_if_nonfinite=True)", STEP, ""),
        (MADE, "(model.parameters(), limit)", "model.step()", ""),
    ],
)
def test_clipping(made: str, clip: str, step: str, expected: str | None) -> None:
    text = HEADER + CLIP.format(made=made, clip=f"nn.utils.clip_grad_norm_{clip}", step=step)
    found = changes(text, "NPU174")
    if expected:
        assert found == [("norm = " + expected.format(".clip_grad_norm_fused_"), [])]
    else:
        assert [conditions for _, conditions in found] == (
            [] if expected == "" else [["all-parameters"]]
        )


def test_norms_of_sharded_parameters_are_left_alone() -> None:
    text = CLIP.format(
        made="model = FSDP(model)\n    " + MADE,
        clip="nn.utils.clip_grad_norm_(model.parameters(), 1)",
        step=STEP,
    )
    imported = "from torch.distributed.fsdp import FullyShardedDataParallel as FSDP\n"
    assert changes(HEADER + imported + text, "NPU174") == []
    assert len(changes(HEADER + text.replace("FSDP", "wrap"), "NPU174")) == 1


@pytest.mark.parametrize(
    ("end", "count"),
    [
        ("if (i + 1) % args.grad_accum == 0:\n            opt.step()", 1),
        ("if (i + 1) % args.grad_accum:\n            continue\n        opt.step()", 1),
        ("last = i % args.accum_iter == 0\n        if last:\n            opt.step()", 1),
        ("if (i + 1) % args.grad_accum == 0:\n            scaler.step(opt)", 1),
        ("opt.step()\n        if i % args.print_freq == 0:\n            print(i)", 0),
        ("opt.step()\n        if i % args.accum_iter == 0:\n            scheduler.step()", 0),
    ],
)
def test_early_reductions(end: str, count: int) -> None:
    text = (
        "from torch.nn.parallel import DistributedDataParallel\n\n\n"
        "def train(model, batches, opt, scheduler, scaler, args):\n"
        "    model = DistributedDataParallel(model)\n"
        "    for i, batch in enumerate(batches):\n"
        f"        model(batch).backward()\n        {end}\n"
    )
    assert len(changes(text, "NPU175")) == count
    held = text.replace(
        "        model(batch)", "        with misc.ddp_sync(model, i): model(batch)"
    )
    assert changes(held, "NPU175") == []


LAYER = """
class {name}(nn.Module):
    def forward(self, x, top_weights, top_experts):
        out = torch.zeros_like(x)
        for i in range(self.n):
            {body}
        return out
"""


@pytest.mark.parametrize(
    ("name", "body", "count"),
    [
        (
            "Experts",
            (
                "slot, rows = torch.where(self.mask[i])\n"
                "            out.index_add_(0, rows, self.mlp(rows, i))"
            ),
            1,
        ),
        (
            "SparseMoE",
            (
                "rows, slot = (top_experts == i).nonzero(as_tuple=True)\n"
                "            out.index_add_(0, rows, x[rows] @ self.w[i])"
            ),
            1,
        ),
        ("Switch", "out[self.rows[i]] = self.experts[i](x[self.rows[i], :])", 1),
        ("Heads", "rows = (top_experts == i).nonzero()[0]; out[rows] = x[rows] @ self.w[i]", 1),
        ("Layers", "out = self.moe_block(x, i)", 0),
        ("Trees", "rows = torch.where(x == i)[0]; out[rows] = x[rows] + 1", 0),
    ],
)
def test_loops_over_experts(name: str, body: str, count: int) -> None:
    found = changes(HEADER + LAYER.format(name=name, body=body), "NPU172")
    assert len(found) == count
    assert all("top_experts.int()" in advice and "top_weights" in advice for advice, _ in found)


@pytest.mark.parametrize(
    ("scores", "fused"),
    [
        ("self.softmax(self.router(x)).topk(2)", "(self.router(x), None, 2)"),
        ("torch.topk(self.wg(x).softmax(dim=-1), self.k, -1)", "(self.wg(x), None, self.k)"),
        ("F.softmax(input=x, dim=-1).topk(k=2, sorted=False)", "(x, None, 2)"),
    ],
)
def test_routers(scores: str, fused: str) -> None:
    text = f"class TopKGate(nn.Module):\n    def forward(self, x):\n        return {scores}\n"
    ((advice, _),) = changes(HEADER + text, "NPU173")
    assert f"npu_moe_gating_top_k_softmax{fused}" in advice
    indexer = text.replace("TopKGate", "GateIndexer")  # selects keys of attention
    assert changes(HEADER + indexer, "NPU173") == []


@pytest.mark.parametrize(
    ("scale", "count"), [("nn.Parameter(make())", 0), ("scale", 1), ("nn.Parameter(make()) * 2", 1)]
)
def test_a_trained_scale_is_no_number(scale: str, count: int) -> None:
    text = (
        "class Mix(nn.Module):\n    def __init__(self, scale, make):\n"
        f"        self.scale = {scale}\n\n"
        "    def forward(self, c, a, b):\n        return c + self.scale * (a @ b)\n"
    )
    assert len(changes(HEADER + text, "NPU115")) == count


@pytest.mark.parametrize(
    ("body", "is_found"),
    [
        (
            (
                "parts = torch.split(x, counts.tolist(), 0)\n"
                "for expert, part in zip(self.experts, parts):\n    out.append(expert(part))"
            ),
            True,
        ),
        (
            (
                "for i, part in enumerate(x.split(tokens_per_expert, dim=0)):\n"
                "    out.append(self.experts[i](part))"
            ),
            True,
        ),
        # as many tokens for each: one batched product takes them
        (
            "for expert, part in zip(self.experts, x.split(16)):\n    out.append(expert(part))",
            False,
        ),
        # all tokens for each
        ("for expert in self.experts:\n    out.append(expert(x))", False),
    ],
)
def test_experts_that_get_parts_of_different_lengths(body: str, *, is_found: bool) -> None:
    lines = "\n        ".join(body.split("\n"))
    text = (
        f"{HEADER}\n\nclass Experts(nn.Module):\n"
        f"    def forward(self, x, counts, tokens_per_expert):\n        out = []\n        {lines}\n"
        "        return torch.cat(out)\n"
    )
    found = [advice for advice, _ in changes(text, "NPU172")]
    assert ["permute" in advice for advice in found] == [True] * is_found


def recurrences(body: str, *, more: str = "") -> bool:
    lines = "\n            ".join(body.split("\n"))
    text = (
        f"{HEADER}{more}\n\nclass Scan(nn.Module):\n    def forward(self, a, b, c, h, w):\n"
        f"        out = []\n        for t in range(a.shape[1]):\n            {lines}\n"
        "            out.append(h)\n        return torch.stack(out, dim=1)\n"
    )
    return any("the one before it" in advice for advice, _ in changes(text, "NPU250"))


@pytest.mark.parametrize(
    "body",
    [
        "h = a[:, t] * h + b[:, t]",
        "d = a[:, t] + 0.9 * c[:, t]\nh = d + 0.9 * 0.95 * h",
        "h = b[:, t] + 0.9 * h\nh = h * c[:, t]",
    ],
)
def test_linear_recurrences_are_told(body: str) -> None:
    assert recurrences(body)


@pytest.mark.parametrize(
    "body",
    [
        "h = self.cell(a[:, t], h)",
        "h = torch.tanh(a[:, t] * h + b[:, t])",
        "d = torch.tanh(h @ w)\nh = a[:, t] * h + d",  # it hides where the round before is read
        "h = a[:, t] * h + b[:, t]\nh = torch.relu(h)",
        "h = a[:, t] * h + h * h",
        "h = 0.9 * h + a[t]",  # perhaps a list of the host
    ],
)
def test_rounds_that_are_not_linear_in_the_one_before(body: str) -> None:
    assert not recurrences(body)


def test_recurrences_of_arrays_are_left_alone() -> None:
    body = "h = a[:, t] * h + np.exp(b[:, t])"
    assert not recurrences(body, more="import numpy as np\n")


@pytest.mark.parametrize("use", ["f'{[y[0], n]}'", "self.show([y[0], n])", "self.bce_loss([n])"])
def test_a_list_of_numbers_keeps_them(use: str) -> None:
    text = f"def forward(self, x: torch.Tensor, y):\n    n = x.sum().item()\n    return {use}\n"
    assert [told for told, _ in changes(HEADER + text, "NPU214") if told.startswith("n = ")] == []


@pytest.mark.parametrize(
    ("test", "loss", "nothing", "advice"),
    [
        ("torch.all(y == -100)", "loss", "x.mean() * 0", 'reduction="sum"'),
        ("not (y != -100).any()", "criterion", "x.mean() * 2", "clamp(min=1)"),
        ("(y != -100).sum() == 0", "loss_fn", "torch.zeros_like(x)", 'reduction="sum"'),
        ("torch.all(y == -100)", "head", "x.mean() * 0", "clamp"),
        ("torch.all(y == -100)", "head", "x.mean() * 2", "both"),
        ("torch.isnan(y).any()", "loss", "x.mean() * 2", "both"),  # of something else
    ],
)
def test_a_loss_of_no_labels_is_not_chosen_but_divided(
    test: str, loss: str, nothing: str, advice: str
) -> None:
    work = f"self.{loss}(" + "+".join(f"x[{n}] * y[{n}]" for n in range(9)) + ")"
    text = f"""
class Loss(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor):
        if {test}:
            loss = {nothing}
        else:
            loss = {work}
        return loss
"""
    ((told, _),) = changes(HEADER + text, "NPU217")
    assert advice in told


@pytest.mark.parametrize(
    ("arms", "advice"),
    [
        ("-a.sum() if n == 0 else -(a + b).sum() / n", "clamp(min=1)"),
        ("self.f(a) if n == 0 else self.f(a, b) / n", "clamp(min=1)"),
        ("self.f(a) if n == 0 else self.f(a, b) / 2", "either case"),
    ],
)
def test_what_is_divided_in_one_of_two_values_has_a_limit(arms: str, advice: str) -> None:
    text = f"""
class Loss(nn.Module):
    def forward(self, a: torch.Tensor, b: torch.Tensor, y: torch.Tensor):
        n = (y > 0).sum()
        loss = {arms}
        return loss
"""
    ((told, _),) = changes(HEADER + text, "NPU217")
    assert advice in told


@pytest.mark.parametrize(
    ("made", "shown"),
    [
        ("dict(fused=True) if on_gpu else dict()", False),
        ("{'fused': on_gpu}", False),
        ("other(on_gpu)", True),
    ],
)
def test_who_decides_about_fused_has_chosen(made: str, *, shown: bool) -> None:
    text = (
        f"import torch\n\n\ndef build(params, on_gpu):\n    extra = {made}\n"
        "    return torch.optim.AdamW(params, lr=1e-3, **extra)\n"
    )
    assert bool(changes(text, "NPU169")) is shown


@pytest.mark.parametrize(
    ("optimizer", "step", "said"),
    [
        ("torch.optim.SGD(model.parameters(), 0.1)", "optim.step()", "NpuFusedSGD"),
        ("torch.optim.Adam(model.parameters())", "scaler.step(optim)", "NpuFusedAdam"),
        ("torch.optim.Adam(model.parameters(), weight_decay=0.1)", "optim.step()", "NpuFusedAdam"),
        ("torch.optim.AdamW(model.parameters())", "scaler.step(optim)", "NpuFusedAdamW"),
        # AdamW of torch is fused as it is, and has no such method
        ("torch.optim.AdamW(model.parameters())", "optim.step()", None),
        ("torch.optim.Adam(list(model.parameters()))", "optim.step()", None),
        ("torch.optim.Adam(model.parameters(), foreach=True)", "optim.step()", None),
        ("torch.optim.LBFGS(model.parameters())", "optim.step()", None),
        ("build(model)", "optim.step()", None),
    ],
)
def test_gradients_are_clipped_together_once_the_optimizer_could_be_fused(
    optimizer: str, step: str, said: str | None
) -> None:
    body = f"""

def train(model, loss, scaler, build):
    optim = {optimizer}
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    {step}
"""
    found = changes(HEADER + (body if "scaler" in step else body.replace(", scaler", "")), "NPU174")
    assert [said in text for text, _ in found if said] == ([True] if said else [])
    assert bool(found) is (said is not None)
    sharded = HEADER + "from torch.distributed.fsdp import FSDP\n" + body
    assert not changes(sharded, "NPU174")


@pytest.mark.parametrize(
    ("optimizer", "emptied", "shown"),
    [
        ("torch.optim.Adam(model.parameters(), lr=1e-3)", "set_to_none=True", True),
        ("torch.optim.AdamW(model.parameters(), lr=1e-3)", "set_to_none=True", False),
        ("torch.optim.Adam(model.parameters(), lr=1e-3)", "set_to_none=False", False),
        ("torch.optim.Adam(model.parameters(), lr=1e-3)", "", False),
        ("torch.optim.Adam([log_alpha], lr=1e-3)", "set_to_none=True", False),
        ("torch.optim.Adam(model.parameters(), fused=True)", "set_to_none=True", False),
    ],
)
def test_an_optimizer_whose_gradients_are_emptied_is_pointed_at(
    optimizer: str, emptied: str, *, shown: bool
) -> None:
    body = f"""

def train(model, loss, log_alpha):
    optimizer = {optimizer}
    optimizer.zero_grad({emptied})
    loss.backward()
    optimizer.step()
"""
    found = changes(HEADER + body, "NPU169")
    assert bool(found) is shown
    assert all("without set_to_none=True" in text for text, _ in found)


def test_an_optimizer_for_each_of_several_models_is_made_fused() -> None:
    text = (
        "import torch\nfrom torch.optim import AdamW\n\n\ndef build(groups, lr):\n"
        "    return dict([(key, AdamW(params, lr=lr)) for key, params in groups.items()])\n"
    )
    ((added, unknown),) = changes(text, "NPU169")
    assert "AdamW(params, lr=lr, fused=True)" in added
    assert unknown == ["parameters-on-npu"]


def test_what_a_factory_imports_for_itself_is_known() -> None:
    text = (
        "import torch\n\n\ndef build(name, params, **settings):\n    if name == 'sgd':\n"
        "        from torch.optim import SGD\n        return SGD(params, **settings)\n"
        "    from torch.optim import {0}\n    return {0}(params, **settings)\n"
    )
    (advice,) = changes(text.format("Adam"), "NPU169")
    assert "NpuFusedSGD" in advice[0]  # of several only the first is named
    (written,) = changes(text.format("AdamW"), "NPU169")
    assert "fused=True" in written[0]


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("if (x > 0).any():\n            return self.slow(x, mask, cache)", False),  # has all of it
        ("if (x > 0).any():\n            return self.slow(x)", True),
        (
            "if mask['a'].sum() == 0:\n            x = x + 1\n        m = mask['a'].to(x.device)",
            False,
        ),
        ("if mask['a'].sum() == 0:\n            x = x + 1\n        m = mask['a'].float()", True),
        ("if (x != -1).all():\n            self.pbar.update(1)", False),
        ("if (x != -1).all():\n            self.count.update(1)", True),
        ("for w in mask:\n            lines.append('%.3g' % w.norm().item())", False),  # a report
        ("for w in mask:\n            lines.append(w.norm().item() * 2)", True),
        ("n = torch.tensor([self.ids[m] for m in mask], device=x.device)", False),  # of this call
        ("n = torch.tensor([m.shape for m in mask], device=x.device)", True),
    ],
)
def test_what_is_told_of_a_step_or_done_by_others_is_no_wait(body: str, *, told: bool) -> None:
    text = f"""
class Net(nn.Module):
    def forward(self, x: torch.Tensor, mask, cache):
        lines = []
        {body}
        return x * 2, lines
"""
    told_of = {"NPU214", "NPU217", "NPU219"}
    found = [s.rule.id for s in find_sites(HEADER + text, all_rules()) if s.rule.id in told_of]
    assert bool(found) is told


@pytest.mark.parametrize(("made", "told"), [("draw(0.5, 9)", False), ("rows", True)])
def test_numbers_that_each_round_draws_are_not_copied_before(made: str, *, told: bool) -> None:
    text = f"""
import numpy as np


def train(model, loader, optimizer, rows, device):
    for x in loader:
        mixed = torch.from_numpy({made}).to(device)
        loss = model(x, mixed).mean()
        loss.backward()
        optimizer.step()
"""
    said = [site.problem for site in find_sites(HEADER + text, all_rules())]
    assert any("once before the loop" in problem for problem in said) is told


SUM = """total = 0.0
    for x in batch:
        {loss} = self.loss(x)
        {step}
        total += {loss}.item()
    return total"""
READ = """a_value, b_value = torch.stack([a.reshape(()), b.reshape(())]).tolist()
return {'a': a_value, 'b': b_value}"""
SUMMED = [("total += loss.detach().float()\ntotal = float(total)", list[str]())]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        # what training steps by is of floating point, and on one device
        (
            "(a + 0.5 * b).backward()\n    return {'a': a.item(), 'b': b.item()}",
            [(READ, [])],
        ),
        # one of which nothing is known
        ("a.backward()\n    return {'a': a.item(), 'b': b.item()}", None),
        # a count, perhaps, of integers
        ("(a / b).backward()\n    return {'a': a.item(), 'b': b.item()}", None),
        ("(b * a).backward()\n    return {'a': a.item(), 'b': b.item()}", None),
        (SUM.format(loss="loss", step="self.accelerator.backward(loss)"), SUMMED),
        (SUM.format(loss="loss", step="self.scaler.scale(loss).backward()"), SUMMED),
        # a gradient is given, not asked of it
        (SUM.format(loss="grad", step="x.backward(grad)"), None),
    ],
)
def test_losses_are_known_by_their_gradient(
    body: str, expected: list[tuple[str, list[str]]] | None
) -> None:
    start = "    a = self.first(batch)\n    b = self.second(batch)\n"
    found = changes(f"{HEADER}\n\ndef train_step(self, batch):\n{start}    {body}\n", "NPU214")
    if expected is None:
        assert found
        assert all(conditions for _, conditions in found)
    else:
        assert found == expected


@pytest.mark.parametrize(
    ("body", "rule", "expected"),
    [
        ("torch.tensor(0.).float().to(x.device)", "NPU219", "torch.zeros((), dtype=torch.float32"),
        ("torch.tensor(3).half().to(x.device)", "NPU219", "torch.full((), 3, dtype=torch.float16"),
        # another number in half precision than after single precision, perhaps
        ("torch.tensor(0.1).half().to(x.device)", "NPU219", ""),
        (
            "torch.zeros(n).to(x.dtype).to(x.device)",
            "NPU212",
            "torch.zeros(n, device=x.device).to(",
        ),
        (
            "torch.arange(total) + torch.repeat_interleave(x, k)",
            "NPU214",
            "torch.repeat_interleave(x, k, output_size=total)",
        ),
        (
            "torch.ones(n, requires_grad=False).to(x.device)",
            "NPU212",
            "torch.ones(n, requires_grad=False, device=x.device)",
        ),
        # a leaf on the host, which gets the gradient
        ("torch.ones(n, requires_grad=True).to(x.device)", "NPU212", ""),
        # the sum of something else
        ("torch.arange(total) + torch.repeat_interleave(x, x.long())", "NPU214", ""),
    ],
)
def test_what_is_known_before_is_written_at_once(body: str, rule: str, expected: str) -> None:
    text = (
        f"{HEADER}\n\nclass Head(nn.Module):\n    def forward(self, x, n: int, k: torch.Tensor):\n"
        f"        total = int(k.sum().item())\n        return F.normalize(x), total, {body}\n"
    )
    found = [text for text, conditions in changes(text, rule) if not conditions]
    written = [line.replace("\n", "") for line in found if line.startswith("return")]
    assert [expected in line for line in written] == ([True] if expected else [])


def test_waits_are_told_where_a_backward_pass_is_written_by_hand() -> None:
    code = "class Scale(torch.autograd.Function):\n    @staticmethod\n"
    code += "    def backward(ctx, grad: torch.Tensor):\n"
    code += "        ones = torch.ones(grad.shape[0]).to(grad.device)\n"
    code += "        grad[grad > 1] = 0\n        return grad * ones\n"
    found = changes(f"{HEADER}\n\n{code}", "NPU212")
    assert found == [("ones = torch.ones(grad.shape[0], device=grad.device)", [])]
    assert changes(f"{HEADER}\n\n{code}", "NPU201") == []
