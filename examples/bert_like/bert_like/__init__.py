"""A small BERT/LLaMA hybrid: bidirectional encoder, RMSNorm, RoPE, SwiGLU and a few experts."""

from bert_like.config import Config
from bert_like.model import BertLike

__all__ = ["BertLike", "Config"]
