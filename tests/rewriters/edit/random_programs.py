"""Random small tensor programs with slow patterns in random spelling among other statements.

All of ``x``, ``y``, ``z`` and what is made of them are 3 by 4 matrices, so every program runs.
"""

from __future__ import annotations

from hypothesis import strategies as st

FLOATS = ("x", "y", "z")
SPARE = ("a", "b", "c", "x", "variance", "h")
PARAMETERS = (
    "x: torch.Tensor, y: torch.Tensor, z: torch.Tensor, m: torch.BoolTensor, i: torch.Tensor, "
    "w: torch.Tensor, k: torch.Tensor, n: int, flag: bool"
)
PLAIN = (
    "{a} + {b}", "{a} * {b}", "{a} - 1", "{a}.relu()", "torch.tanh({a})", "{a}.clone()",
    "torch.maximum({a}, {b})", "{a}.view(3, 4)", "{a}.softmax(-1)", "{a} * w", "{a}.t().t()",
    "{a} if flag else {b}", "({a}, {b})[0]",
)  # fmt: skip
SQUARES = ("{a}.pow(2)", "{a}**2", "{a} * {a}", "torch.square({a})", "torch.pow({a}, 2)")
MEANS = ("({}).mean(-1, keepdim=True)", "torch.mean({}, dim=(-1,), keepdim=True)")
NORMS = (
    "{a} * torch.rsqrt({v} + 1e-5)", "{a} / torch.sqrt({v} + 1e-5)",
    "{a} * ({v} + 1e-5) ** -0.5", "({v} + 1e-5).rsqrt() * {a}",
)  # fmt: skip
SLOW = (
    "{a}.gather(1, i.view(-1, 1)) + {b}",
    "torch.gather({a}, -1, i.unsqueeze(-1)).expand(3, 4) + {b}",
    "{a}.gather(1, i.view(-1, 1)).view(-1).unsqueeze(1) * {b}",
    "torch.gather({a}, 1, index=i[:, None]).squeeze(-1)[:, None] - {b}",
    "{a} + w.gather(0, i).sum()",
    "{a}.repeat_interleave(2, 0)[:3]",
    "{a}.repeat_interleave(n, dim=0)[1:4]",
    "torch.repeat_interleave({a}, n).view(3, 8)[:, ::2]",
    "{a}.repeat_interleave(3, dim=1)[:, 2:6]",
    "{a}.repeat_interleave(n, -1)[:, 1:5]",
    "F.one_hot(i.view(-1, 1), num_classes=4).sum(-2) * {a}",
    "{a} + F.one_hot(torch.stack([i, i], -1), 4).sum(dim=1)",
    "F.one_hot({a}.topk(2, dim=-1)[1], 4).sum(-2) + {b}",
    "F.one_hot({a}.topk(2, dim=-1).indices, 4).sum(-2) + {b}",
    "{a} @ k.t() + w",
    "w + torch.matmul({a}, k.transpose(0, 1))",
    "F.linear({a}, k, w)",
    "F.linear({a}.view(-1, 4), weight=k, bias=w)",
    "torch.where({a} < 0.5, 0.5, {a}) + {b}",
    "torch.where({a} > n, n, {a})",
    "({a} > 0).cumsum(-1) + {b}",
    "{b} + ({a} > 0).long().cumsum(0)",
    "{a}[{a} > 0].sum() + {b}",
    "{a} + w[w > 0].sum()",
    "len(({a} > {b}).nonzero()) + {a}",
    "torch.where({a} > 0)[0].numel() * {b}",
    "{a}[w[:3].argsort()] + {b}",
    "{a} * torch.ones(3, 4).to(x.device)",
)
WRITES = (
    "{a}[{a} < 0] = 0", "{a}[m] = 0.0", "{a}[~m] = 1", "{a}[{b} > {c}] = -1e9",
    "{a}[({a} != {a}) | m] = n", "{a}[torch.isnan({b})] = float('-inf')", "{a}[1:][m[1:]] = 0",
    "{a}[i[0]] = 0", "{a}[m] = {b}[m]", "{a}[{b} < {a}] += 1", "{a}[m] *= 0.5", "{a}[~m] -= n",
    "{a}[torch.where({a} < {b})] = 0.5", "{a}[(m & ({b} > 0)).nonzero(as_tuple=True)] = 3",
    "{a}[{a}.sum(-1) > 0] = 0", "{a}[w[:3].topk(2).indices] = 1",
     "{a}[:, m[0]] = 2",
)  # fmt: skip
EFFECTS = ("{a} += 1", "{a}.mul_({b})", "{a}[0] = 2", "F.relu({a}, inplace=True)",
           "{a} *= {b}", "{a}.masked_fill_(m, 3)")  # fmt: skip


@st.composite
def programs(draw: st.DrawFn) -> str:
    """Return the text of a function ``f``."""
    known = list(FLOATS)
    lines = [
        line
        for _ in range(draw(st.integers(1, 6)))
        for line in draw(blocks(known))
    ]  # fmt: skip
    results = draw(st.lists(st.sampled_from(sorted(set(known))), min_size=1, max_size=3))
    body = [*lines, f"return {', '.join(results)}"]
    return f"def f({PARAMETERS}):\n" + "".join(f"    {line}\n" for line in body)


@st.composite
def blocks(draw: st.DrawFn, known: list[str]) -> list[str]:
    """Return one statement, or several that belong together."""
    kind = draw(st.sampled_from(["simple", "simple", "simple", "norm", "if", "for", "closure"]))
    if kind == "simple":
        return [draw(statements(known))]
    if kind == "norm":
        return draw(norms(known))
    if kind == "closure":
        name = draw(st.sampled_from(known))
        return [f"later = lambda: {name}", draw(statements(known)), f"{name} = {name} + later()"]
    inside = list(known)  # what is only made inside may not exist afterwards
    body = [line for _ in range(draw(st.integers(1, 3))) for line in draw(short(inside))]
    head = "if flag:" if kind == "if" else "for _ in range(n):"
    return [head, *(f"    {line}" for line in body)]


@st.composite
def short(draw: st.DrawFn, known: list[str]) -> list[str]:
    return draw(norms(known)) if draw(st.booleans()) else [draw(statements(known))]


@st.composite
def statements(draw: st.DrawFn, known: list[str]) -> str:
    """Return one statement over the names that exist; a new name joins them."""
    templates = draw(st.sampled_from([PLAIN, SLOW, SLOW, WRITES, WRITES, EFFECTS]))
    names = {key: draw(st.sampled_from(known)) for key in "abc"}
    text: str = draw(st.sampled_from(templates)).format(**names)
    if templates in {WRITES, EFFECTS}:
        return text
    return f"{draw(target(known))} = {text}"


@st.composite
def target(draw: st.DrawFn, known: list[str]) -> str:
    name = draw(st.sampled_from(SPARE))
    known.append(name)
    return name


@st.composite
def norms(draw: st.DrawFn, known: list[str]) -> list[str]:
    """Return an RMSNorm in one to three statements."""
    name = draw(st.sampled_from(known))
    square = draw(st.sampled_from(SQUARES)).format(a=name)
    variance = draw(st.sampled_from(MEANS)).format(square)
    lines: list[str] = []
    if draw(st.booleans()):
        lines.append(f"v = {variance}")
        variance = "v"
        if draw(st.integers(0, 3)) == 0:
            lines.append(
                draw(st.sampled_from(EFFECTS)).format(a=draw(st.sampled_from(FLOATS)), b=name)
            )
    normed = draw(st.sampled_from(NORMS)).format(a=name, v=variance)
    if draw(st.booleans()):
        lines.append(f"normed = {normed}")
        normed = "normed"
    lines.append(f"{draw(target(known))} = w * ({normed})")
    return lines
