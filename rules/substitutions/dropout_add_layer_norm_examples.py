"""Code that ``dropout-add-layer-norm`` changes, and code that looks like it and must not be."""

from __future__ import annotations

from npufix.rules.substitution import Rewritten

VALID = (
    # normalised, then dropped: embeddings
    """
class Embeddings(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=1e-12)
        self.dropout = nn.Dropout(0.1)

    def forward(self, words, positions):
        return self.dropout(self.LayerNorm(words + positions))
""",
    # pre-norm: the sum is not normalised
    """
class Sublayer(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(0.1)
        self.linear = nn.Linear(size, size)

    def forward(self, x):
        return x + self.dropout(self.linear(self.norm(x)))
""",
    # the sum is the next residual: it would have to be returned as well
    """
class Block(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        residual = self.dropout(x) + residual
        return self.norm(residual), residual
""",
    # channels are dropped, not elements
    """
class AddNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = nn.LayerNorm(size)
        self.dropout = nn.Dropout1d(0.1)

    def forward(self, x, residual):
        return self.norm(self.dropout(x) + residual)
""",
    # over the last two dimensions
    """
class AddNorm(nn.Module):
    def __init__(self, length, size):
        super().__init__()
        self.norm = nn.LayerNorm([length, size])
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        return self.norm(self.dropout(x) + residual)
""",
    # a norm of the file's own
    """
class LayerNorm(nn.Module):
    def forward(self, x):
        return x - x.mean(1, keepdim=True)


class AddNorm(nn.Module):
    def __init__(self, size):
        super().__init__()
        self.norm = LayerNorm(size)
        self.dropout = nn.Dropout(0.1)

    def forward(self, x, residual):
        return self.norm(self.dropout(x) + residual)
""",
)

REWRITTEN = (
    # BERT
    Rewritten(
        """
class BertSelfOutput(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = self.dropout(hidden_states)
        hidden_states = self.LayerNorm(hidden_states + input_tensor)
        return hidden_states
""",
        """
class BertSelfOutput(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: torch.Tensor, input_tensor: torch.Tensor) -> torch.Tensor:
        hidden_states = self.dense(hidden_states)
        hidden_states = npu_dropout_add_layer_norm(
            hidden_states,
            input_tensor,
            self.LayerNorm.weight,
            self.LayerNorm.bias,
            self.dropout.p if self.dropout.training else 0.0,
            self.LayerNorm.eps,
        )
        return hidden_states
""",
    ),
    # the order of the summands does not matter
    Rewritten(
        """
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.ln = nn.LayerNorm(dim)

    def forward(self, X, Y):
        return self.ln(X + self.dropout(Y))
""",
        """
class AddNorm(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.dropout = nn.Dropout(0.1)
        self.ln = nn.LayerNorm(dim)

    def forward(self, X, Y):
        return npu_dropout_add_layer_norm(
            Y,
            X,
            self.ln.weight,
            self.ln.bias,
            self.dropout.p if self.dropout.training else 0.0,
            self.ln.eps,
        )
""",
    ),
    # BART
    Rewritten(
        """
class BartEncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.d_model
        self.fc2 = nn.Linear(config.encoder_ffn_dim, self.embed_dim)
        self.dropout = config.dropout
        self.final_layer_norm = nn.LayerNorm(self.embed_dim)

    def forward(self, hidden_states, residual):
        hidden_states = self.fc2(hidden_states)
        hidden_states = nn.functional.dropout(hidden_states, p=self.dropout, training=self.training)
        hidden_states = residual + hidden_states
        hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states
""",
        """
class BartEncoderLayer(nn.Module):
    def __init__(self, config):
        super().__init__()
        self.embed_dim = config.d_model
        self.fc2 = nn.Linear(config.encoder_ffn_dim, self.embed_dim)
        self.dropout = config.dropout
        self.final_layer_norm = nn.LayerNorm(self.embed_dim)

    def forward(self, hidden_states, residual):
        hidden_states = self.fc2(hidden_states)
        hidden_states = npu_dropout_add_layer_norm(
            hidden_states,
            residual,
            self.final_layer_norm.weight,
            self.final_layer_norm.bias,
            self.dropout if self.training else 0.0,
            self.final_layer_norm.eps,
        )
        return hidden_states
""",
    ),
)
