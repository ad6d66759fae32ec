"""Code that ``eager-geglu`` changes, and what it becomes."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

REWRITTEN = (
    # diffusers
    Rewritten(
        """
class GEGLU(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, hidden_states):
        hidden_states = self.proj(hidden_states)
        hidden_states, gate = hidden_states.chunk(2, dim=-1)
        return hidden_states * F.gelu(gate)
""",
        """
class GEGLU(nn.Module):
    def __init__(self, dim_in, dim_out):
        super().__init__()
        self.proj = nn.Linear(dim_in, dim_out * 2)

    def forward(self, hidden_states):
        hidden_states = self.proj(hidden_states)
        return torch_npu.npu_geglu(hidden_states, dim=-1, approximate=0)[0]
""",
    ),
    # the first half, approximated
    Rewritten(
        """
def f(x: torch.Tensor):
    gate, up = x.chunk(2, dim=-1)
    return F.gelu(gate, approximate="tanh") * up
""",
        """
def f(x: torch.Tensor):
    return torch_npu.npu_geglu(x, dim=-1, approximate=1, activate_left=True)[0]
""",
    ),
    # ModernBERT
    Rewritten(
        """
class ModernBertMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.act = ACT2FN["gelu"]
        self.drop = nn.Dropout(config.mlp_dropout)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_states):
        input, gate = self.Wi(hidden_states).chunk(2, dim=-1)
        return self.Wo(self.drop(self.act(input) * gate))
""",
        """
class ModernBertMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.Wi = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.act = ACT2FN["gelu"]
        self.drop = nn.Dropout(config.mlp_dropout)
        self.Wo = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)

    def forward(self, hidden_states):
        return self.Wo(
            self.drop(
                torch_npu.npu_geglu(
                    self.Wi(hidden_states), dim=-1, approximate=0, activate_left=True
                )[0]
            )
        )
""",
    ),
    # T5
    Rewritten(
        """
class T5DenseGatedActDense(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wi_0 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.act = ACT2FN["gelu_new"]

    def forward(self, hidden_states):
        hidden_gelu = self.act(self.wi_0(hidden_states))
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = hidden_gelu * hidden_linear
        return hidden_states
""",
        """
class T5DenseGatedActDense(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.wi_0 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.wi_1 = nn.Linear(config.d_model, config.d_ff, bias=False)
        self.act = ACT2FN["gelu_new"]

    def forward(self, hidden_states):
        hidden_linear = self.wi_1(hidden_states)
        hidden_states = torch_npu.npu_geglu(
            torch.cat((self.wi_0(hidden_states), hidden_linear), dim=-1),
            dim=-1,
            approximate=1,
            activate_left=True,
        )[0]
        return hidden_states
""",
    ),
    # SGLang
    Rewritten(
        """
class GeluAndMul(nn.Module):
    def __init__(self, approximate="tanh"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        d = x.shape[-1] // 2
        return F.gelu(x[..., :d], approximate=self.approximate) * x[..., d:]
""",
        """
class GeluAndMul(nn.Module):
    def __init__(self, approximate="tanh"):
        super().__init__()
        self.approximate = approximate

    def forward(self, x):
        return torch_npu.npu_geglu(
            x,
            dim=-1,
            approximate=int(self.approximate == "tanh"),
            activate_left=True,
        )[0]
""",
    ),
    Rewritten(
        """
class GEGLU(nn.Module):
    def __init__(self, dim: int = -1):
        super().__init__()
        self.split_dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x, gate = x.chunk(2, dim=self.split_dim)
        return x * F.gelu(gate)
""",
        """
class GEGLU(nn.Module):
    def __init__(self, dim: int = -1):
        super().__init__()
        self.split_dim = dim

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch_npu.npu_geglu(x, dim=self.split_dim, approximate=0)[0]
""",
    ),
)
