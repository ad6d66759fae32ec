"""Attention in small operators that no pattern of one value shows.

Each module holds searches as in the folder above, which ``searches`` lists: ``attention_weights``
(modules of ``torch.nn``), ``flash_attention`` (calls of that package), ``biased_attention``.
"""
