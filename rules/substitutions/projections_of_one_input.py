"""Query, key and value are three products of one input, as the source shows it.

What: ``self.query(x)``, ``self.key(x)``, ``self.value(x)``, layers ``nn.Linear`` with the same settings
that read the same value; keys and values of another sequence; any other three such layers.

Why it is slow on the NPU: the input is read for each of them, the host launches each, and narrow
products (keys of grouped queries, 128 columns of a small model) do not fill the cube cores.

Use instead: one ``nn.Linear`` as wide as all of them, and ``split``. The finding names the layer, the
sizes, and how old checkpoints stay loadable: a hook that joins the weights when they are loaded.

Safety: advice. Equal up to rounding, but checkpoints, optimizer states, tensor parallel plans and
adapters know the layers by their names; models of transformers, which all of these load, and layers
whose weights the class reads elsewhere, are left alone.

References: DenseTNT in Ascend DrivingSDK; rule separate-projections, which reads it from a recording.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from npufix.rules.substitution import Draw, Form, Rewritten, Substitution

if TYPE_CHECKING:
    import torch
    from torch import Tensor


def apart(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multiply the input three times."""
    return (x @ q) @ (x @ k).t() @ (x @ v)


def together(x: Tensor, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Multiply it once."""
    sizes = [q.shape[-1], k.shape[-1], v.shape[-1]]
    query, key, value = torch.split(x @ torch.cat((q, k, v), -1), sizes, -1)
    scores: Tensor = query @ key.t()
    return scores @ value


def inputs(draw: Draw) -> dict[str, Any]:
    """Return rows, and three weights, keys as wide as queries."""
    import torch

    rows, size, width = (draw.integer(1, 4) for _ in range(3))
    widths = {"q": width, "k": width, "v": draw.integer(1, 4)}
    weights = {n: draw.floats(size, w, dtype=torch.float32) for n, w in widths.items()}
    return {"x": draw.floats(rows, size, dtype=torch.float32), **weights}


_SELF = """
class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, hidden_states):
        q = self.query(hidden_states)
        k = self.key(hidden_states)
        v = self.value(hidden_states)
        return q, k, v
"""
_CROSS = """
class CrossAttention(nn.Module):
    def __init__(self, dim, inner):
        super().__init__()
        self.to_q = nn.Linear(dim, inner, bias=False)
        self.to_k = nn.Linear(dim, inner, bias=False)
        self.to_v = nn.Linear(dim, inner, bias=False)

    def forward(self, x, context):
        return self.to_q(x), self.to_k(context), self.to_v(context)
"""
_KEY_WITHOUT_BIAS = """
class SelfAttention(nn.Module):
    def __init__(self, hidden, heads):
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.key = nn.Linear(hidden, hidden)
        self.value = nn.Linear(hidden, hidden)

    def forward(self, x):
        return self.query(x), nn.functional.linear(x, self.key.weight), self.value(x)
"""

RULE = Substitution(
    id="NPU176",
    name="projections-of-one-input",
    summary="query, key and value are products of one input, one after the other",
    table="fusion",
    forms=(Form(apart, together, inputs),),
    search="projections",
    replaces=("MatMul", "MatMulCommon", "MatMulV2", "MatMulV3"),
    becomes=("MatMulV2", "MatMulV3"),
    passes=(2, 4),
    requires="torch_npu>=2.1",
    valid=(
        # each layer reads another value
        """
class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, query, key, value):
        return self.q(query), self.k(key), self.v(value)
""",
        # two heads of a detector, one of them with a bias
        """
class Head(nn.Module):
    def __init__(self, dim, classes):
        super().__init__()
        self.boxes = nn.Linear(dim, 4)
        self.classes = nn.Linear(dim, classes, bias=False)

    def forward(self, x):
        return self.boxes(x), self.classes(x)
""",
        # a setting joins them
        """
class Attention(nn.Module):
    def __init__(self, dim, fused):
        super().__init__()
        self.fused = fused
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.qkv = nn.Linear(dim, 3 * dim)

    def forward(self, x):
        if self.fused:
            q, k, v = self.qkv(x).chunk(3, dim=-1)
        else:
            q, k, v = self.q(x), self.k(x), self.v(x)
        return q, k, v
""",
        # their biases are left out
        """
class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)

    def forward(self, x):
        return F.linear(x, self.q.weight), F.linear(x, self.k.weight), F.linear(x, self.v.weight)
""",
        # the widths stand elsewhere
        """
class Attention(nn.Module):
    def __init__(self, sizes):
        super().__init__()
        self.q = nn.Linear(*sizes, bias=False)
        self.k = nn.Linear(*sizes, bias=False)
        self.v = nn.Linear(*sizes, bias=False)

    def forward(self, x):
        return self.q(x), self.k(x), self.v(x)
""",
        # the weights are somebody else's as well
        """
class Attention(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.q = nn.Linear(dim, dim)
        self.k = nn.Linear(dim, dim)
        self.v = nn.Linear(dim, dim)
        self.k.weight = self.q.weight

    def forward(self, x):
        return self.q(x), self.k(x), self.v(x)
""",
        # one after the other
        """
class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.a = nn.Linear(dim, dim)
        self.b = nn.Linear(dim, dim)
        self.c = nn.Linear(dim, dim)

    def forward(self, x):
        return self.c(self.b(self.a(x)))
""",
    ),
    rewritten=(
        Rewritten(_SELF, _SELF),
        Rewritten(_CROSS, _CROSS),
        Rewritten(_KEY_WITHOUT_BIAS, _KEY_WITHOUT_BIAS),
    ),
)
