"""What the words of a function do not show is found wherever reading the function would find it."""

from __future__ import annotations

import pytest
from rewriting_snippets import sites

from npufix.rewriters.find import find_sites
from npufix.rewriters.match.prefilter import Words, words_in
from npufix.rules.registry import all_rules

GATED = (
    "class FFN(nn.Module):\n"
    "    def __init__(self, dim: int):\n"
    "        super().__init__()\n"
    "        self.up = nn.Linear(dim, dim)\n        self.gate = nn.Linear(dim, dim)\n"
    "        self.act = FP32SiLU()\n\n"
    "    def forward(self, x: torch.Tensor):\n"
    "        return self.act(self.gate(x)) * self.up(x)\n"
)
ACTIVATION = (
    "class FP32SiLU(nn.Module):\n"
    "    def forward(self, x: torch.Tensor):\n        return F.silu(x.float()).to(x.dtype)\n\n"
)

FOUND = {
    "casts by two other names": (
        (
            "def f(x: torch.Tensor, n: int):\n"
            "    y = F.layer_norm(x.type(torch.float32), (n,), None, None, 1e-5)\n"
            "    return y.type_as(x)\n"
        ),
        "NPU117",
    ),
    "a cast in a helper": (
        (
            "def widen(x):\n    return x.float()\n\n"
            "def f(x: torch.Tensor, n: int):\n    y = widen(x)\n"
            "    return F.layer_norm(y, (n,), None, None, 1e-5).to(x.dtype)\n"
        ),
        "NPU117",
    ),
    "the forward of a base": (
        (
            "class Norm(nn.LayerNorm):\n"
            "    def forward(self, x: torch.Tensor):\n"
            "        y = super( ). forward(x.float())\n        return y.to(x.dtype)\n"
        ),
        "NPU117",
    ),
    "a new tensor moved later": (
        "def f(n: int, y: torch.Tensor):\n    z = torch.zeros(n)\n    return z.to(y.device)\n",
        "NPU212",
    ),
    "a mask by another name": (
        "def f(x: torch.Tensor):\n    m = x > 0\n    k = m\n    x[k] = 0\n    return x\n",
        "NPU201",
    ),
    "an update through a mask": (
        "def f(x: torch.Tensor):\n    x[x > 0] += 1\n    return x\n",
        "NPU211",
    ),
    "the sum of what a mask chooses, in two steps": (
        "def f(x: torch.Tensor):\n    chosen = x[x > 0]\n    return chosen.sum()\n",
        "NPU209",
    ),
    "halves turned in a helper": (
        (
            "def turn(a, b):\n    return torch.cat((a, b), dim=-1)\n\n"
            "def f(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):\n"
            "    a, b = x.chunk(2, dim=-1)\n    return x * cos + turn(-b, a) * sin\n"
        ),
        "NPU102",
    ),
    "a half turned right behind a bracket": (
        (
            "def f(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):\n"
            "    a, b = x.chunk(2,dim=-1)\n    return x*cos+torch.cat((-b,a),-1)*sin\n"
        ),
        "NPU102",
    ),
    "a power of minus a half": (
        (
            "def f(x: torch.Tensor, weight: torch.Tensor):\n"
            "    return weight*(x*(x.pow(2).mean(-1,keepdim=True)+1e-6)**-0.5)\n"
        ),
        "NPU101",
    ),
    "halves made negative first": (
        (
            "def f(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor):\n"
            "    a, b = x.chunk(2, dim=-1)\n    b = -b\n    parts = (b, a)\n"
            "    return x * cos + torch.cat(parts, dim=-1) * sin\n"
        ),
        "NPU102",
    ),
    "a sum under another name": (
        (
            "class N(nn.Module):\n"
            "    def __init__(self, dim: int):\n"
            "        super().__init__()\n        self.n = nn.LayerNorm(dim)\n\n"
            "    def forward(self, x: torch.Tensor, y: torch.Tensor):\n"
            "        x = x + y\n        return self.n(x)\n"
        ),
        "NPU109",
    ),
    "a sum normalised in a helper": (
        (
            "class N(nn.Module):\n"
            "    def __init__(self, dim: int):\n"
            "        super().__init__()\n        self.n = nn.LayerNorm(dim)\n\n"
            "    def _norm(self, x):\n        return self.n(x)\n\n"
            "    def forward(self, x: torch.Tensor, y: torch.Tensor):\n"
            "        return self._norm(x + y)\n"
        ),
        "NPU109",
    ),
    "an activation with a class of its own": (ACTIVATION + GATED, "NPU103"),
    "pairs turned by matrices": (
        (
            "def f(x: torch.Tensor, freqs: torch.Tensor):\n"
            "    p = x.float().view(*x.shape[:-1], -1, 1, 2)\n"
            "    y = freqs[..., 0] * p[..., 0] + freqs[..., 1] * p[..., 1]\n"
            "    return y.reshape(x.shape)\n"
        ),
        "NPU180",
    ),
}


@pytest.mark.parametrize(("code", "rule"), FOUND.values(), ids=FOUND.keys())
def test_a_site_is_not_lost(code: str, rule: str) -> None:
    assert [site.rule.id for site in sites(code, rule)] == [rule]


def test_an_activation_of_another_module_is_not_lost() -> None:
    head = "import torch\nimport torch.nn.functional as F\nfrom torch import nn\n"
    texts = {
        ".layers": "from .activations import FP32SiLU\n",  # re-exported
        ".activations": head + ACTIVATION,
    }
    rules = [rule for rule in all_rules() if rule.id == "NPU103"]
    code = f"{head}from .layers import FP32SiLU\n\n\n{GATED}"
    assert [site.function for site in find_sites(code, rules, None, texts.get)] == ["FFN.forward"]


def test_the_constructor_of_a_base_is_no_layer_norm() -> None:
    rules = [rule for rule in all_rules() if rule.id == "NPU117"]
    words = Words(rules)
    built = words.of(words_in("super().__init__()\nself.scale = float(scale)\n"))
    read = words.of(words_in("return super().forward(x.float())\n"))
    assert (words.possible(rules, built), words.possible(rules, read)) == ([], rules)
