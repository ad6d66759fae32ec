"""Code that ``eager-swiglu`` changes, and what it becomes."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

REWRITTEN = (
    # Phi-3
    Rewritten(
        """
class Phi3MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation_fn = ACT2FN["silu"]

    def forward(self, hidden_states):
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = up_states.chunk(2, dim=-1)
        up_states = up_states * self.activation_fn(gate)
        return self.down_proj(up_states)
""",
        """
class Phi3MLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_up_proj = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.activation_fn = ACT2FN["silu"]

    def forward(self, hidden_states):
        up_states = self.gate_up_proj(hidden_states)
        up_states = torch_npu.npu_swiglu(up_states, dim=-1)
        return self.down_proj(up_states)
""",
    ),
    # AlphaFold 3: the second half
    Rewritten(
        """
class SwiGLU(nn.Module):
    def forward(self, x):
        x, gates = x.chunk(2, dim=-1)
        return F.silu(gates) * x
""",
        """
class SwiGLU(nn.Module):
    def forward(self, x):
        return torch_npu.npu_swiglu(
            torch.cat(x.chunk(2, dim=-1)[::-1], dim=-1), dim=-1
        )
""",
    ),
    # sliced
    Rewritten(
        """
def f(x: torch.Tensor):
    half = x.shape[-1] // 2
    return F.silu(x[..., :half]) * x[..., half:]
""",
        """
def f(x: torch.Tensor):
    return torch_npu.npu_swiglu(x, dim=-1)
""",
    ),
    # an activation of one's own
    Rewritten(
        """
class Swish(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()

    def forward(self, x):
        return F.silu(x.float()).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, 8 * dim)
        self.act = Swish()

    def forward(self, x):
        gate, up = self.proj(x).chunk(2, dim=-1)
        return self.act(gate) * up
""",
        """
class Swish(nn.Module):
    def __init__(self, inplace=False):
        super().__init__()

    def forward(self, x):
        return F.silu(x.float()).to(x.dtype)


class Mlp(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.proj = nn.Linear(dim, 8 * dim)
        self.act = Swish()

    def forward(self, x):
        return torch_npu.npu_swiglu(self.proj(x), dim=-1)
""",
    ),
    # the sigmoid written out
    Rewritten(
        """
def f(x: torch.Tensor):
    gate, up = torch.split(x, x.size(-1) // 2, dim=-1)
    return gate * (torch.sigmoid(gate) * up)
""",
        """
def f(x: torch.Tensor):
    return torch_npu.npu_swiglu(x, dim=-1)
""",
    ),
    # litgpt: two projections
    Rewritten(
        """
class LLaMAMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc_1 = nn.Linear(config.n_embd, config.intermediate_size, bias=config.bias)
        self.fc_2 = nn.Linear(config.n_embd, config.intermediate_size, bias=config.bias)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=config.bias)

    def forward(self, x):
        x_fc_1 = self.fc_1(x)
        x_fc_2 = self.fc_2(x)
        x = F.silu(x_fc_1) * x_fc_2
        return self.proj(x)
""",
        """
class LLaMAMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.fc_1 = nn.Linear(config.n_embd, config.intermediate_size, bias=config.bias)
        self.fc_2 = nn.Linear(config.n_embd, config.intermediate_size, bias=config.bias)
        self.proj = nn.Linear(config.intermediate_size, config.n_embd, bias=config.bias)

    def forward(self, x):
        x_fc_1 = self.fc_1(x)
        x_fc_2 = self.fc_2(x)
        x = torch_npu.npu_swiglu(torch.cat((x_fc_1, x_fc_2), dim=-1), dim=-1)
        return self.proj(x)
""",
    ),
    # Llama
    Rewritten(
        """
class LlamaMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x):
        return self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
""",
        """
class LlamaMLP(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.gate_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.up_proj = nn.Linear(config.hidden_size, config.intermediate_size, bias=False)
        self.down_proj = nn.Linear(config.intermediate_size, config.hidden_size, bias=False)
        self.act_fn = ACT2FN[config.hidden_act]

    def forward(self, x):
        return self.down_proj(
            torch_npu.npu_swiglu(
                torch.cat((self.gate_proj(x), self.up_proj(x)), dim=-1), dim=-1
            )
        )
""",
    ),
    # rows that stand for the halves
    Rewritten(
        """
def f(x: torch.Tensor):
    x = x.view(-1, 2, 64)
    return F.silu(x[..., 0, :]) * x[..., 1, :]
""",
        """
def f(x: torch.Tensor):
    x = x.view(-1, 2, 64)
    return torch_npu.npu_swiglu(x.flatten(-2), dim=-1)
""",
    ),
)
