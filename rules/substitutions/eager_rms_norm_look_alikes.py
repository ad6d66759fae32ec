"""Code that looks like an RMSNorm that ``npu_rms_norm`` computes, and is none."""

VALID = (
    # the gain alone is returned, and another tensor multiplied
    """
def f(x, y, scale: torch.Tensor, eps: float):
    dtype = torch.promote_types(x.dtype, torch.float32)
    scale = scale.to(dtype) * torch.rsqrt(x.to(dtype).pow(2).mean(-1, keepdim=True) + eps)
    return y * scale.to(x.dtype)
""",
    # the mean is subtracted: LayerNorm
    """
def f(x, weight: torch.Tensor, bias: torch.Tensor, eps: float):
    x = x - x.mean(-1, keepdim=True)
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps)) + bias
""",
    # eps outside the square root
    """
def f(x, weight: torch.Tensor, eps: float):
    return weight * (x / (torch.sqrt(x.pow(2).mean(-1, keepdim=True)) + eps))
""",
    # over the channels
    """
def f(x, weight: torch.Tensor, eps: float):
    return weight * (x * torch.rsqrt(x.pow(2).mean(1, keepdim=True) + eps))
""",
    # no gradient for the weight: ImageGPT
    """
class ImageGPTLayerNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        return (
            x
            / torch.sqrt(torch.mean(torch.square(x), axis=-1, keepdim=True) + self.eps)
            * self.weight.data[..., :]
        )
""",
    # the result is thrown away: MegaRMSNorm
    """
class MegaRMSNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        mean_square = torch.mean(torch.square(x), dim=-1, keepdim=True)
        x * torch.rsqrt(mean_square + self.eps) * self.weight
        return x
""",
    # one gain for all
    """
class ScaleNorm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(1))
        self.eps = eps

    def forward(self, x):
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + self.eps))
""",
    # the variance is a result as well
    """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        return self.weight * (x * torch.rsqrt(variance + self.eps)), variance
""",
    # a write between the square and the product
    """
class Norm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, x):
        variance = x.pow(2).mean(-1, keepdim=True)
        x.add_(1)
        return self.weight * (x * torch.rsqrt(variance + self.eps))
""",
    # compiled
    """
@torch.jit.script
def rms_norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    return weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
""",
    # without eps: torch chooses one by dtype and version
    """
class Norm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))

    def forward(self, x):
        return F.rms_norm(x, self.weight.shape, self.weight)
""",
    # without weight
    """
def norm(x: torch.Tensor, eps: float):
    return F.rms_norm(x, x.shape[-1:], None, eps)
""",
    # one plus a number
    """
class Norm(nn.Module):
    def __init__(self, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(1))
        self.eps = eps

    def forward(self, x):
        output = x.float() * torch.rsqrt(x.float().pow(2).mean(-1, keepdim=True) + self.eps)
        return (output * (1.0 + self.weight.float())).type_as(x)
""",
    # the gate is inside the mean
    """
class GatedNorm(nn.Module):
    def __init__(self, dim, eps=1e-6):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.eps = eps

    def forward(self, hidden_states, gate=None):
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.to(torch.float32)
        if gate is not None:
            hidden_states = hidden_states * F.silu(gate.to(torch.float32))
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * torch.rsqrt(variance + self.eps)
        return self.weight * hidden_states.to(input_dtype)
""",
    # the result stays in float32
    """
def norm(x: torch.Tensor, weight: torch.Tensor, eps: float):
    x = x.float()
    return weight.float() * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + eps))
""",
)
