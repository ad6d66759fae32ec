"""Objects that take what is as large as they were made for, and nothing else."""

from __future__ import annotations

import pytest

pytest.importorskip("torch")

import torch
from changed_programs import verdict

from npufix.rewriters.verification.inputs.objects.placeholders import (
    Placeholder,
    StandInPart,
    while_making,
)
from npufix.rewriters.verification.verdict import Status

IMAGES = """
class Patches(torch.nn.Module):
    def __init__(self, img_size=40, patch_size=20):
        super().__init__()
        self.img_size = (img_size, img_size)
        self.proj = torch.nn.Conv2d(3, 4, patch_size, patch_size)

    def forward(self, x):
        _, _, height, width = x.shape
        assert (height, width) == self.img_size
        return self.proj(x).flatten(2).transpose(1, 2)
"""

WINDOWS = """
class Windows(torch.nn.Module):
    def __init__(self, dim: int, stride: int = 1, size: int = 0, windows: bool = False):
        super().__init__()
        self.stride, self.size, self.windows = stride, size, windows
        self.qkv = torch.nn.Linear(dim, 3 * dim)

    def forward(self, x):
        batch, length, _ = x.shape
        if self.windows:
            count = length // (self.stride * self.size)
            q, k, v = self.qkv(x).reshape(batch, -1, count, 3, x.shape[-1]).unbind(3)
            return (q * k).sum(2) + v.sum(2) * 2
        return self.qkv(x)
"""


@pytest.mark.parametrize(
    ("program", "old", "same", "other"),
    [
        (IMAGES, "flatten(2).transpose(1, 2)", "flatten(2).mT", "flatten(2)"),
        (WINDOWS, "(q * k).sum(2) + v.sum(2) * 2", "(k * q).sum(2) + 2 * v.sum(2)", "v.sum(2)"),
    ],
)
def test_what_an_object_asserts_of_sizes_is_met(
    program: str, old: str, same: str, other: str
) -> None:
    found = verdict(program, (old, same))
    assert found.status is Status.EQUIVALENT, found
    found = verdict(program, (old, other))
    assert found.status is Status.REFUTED, found


def test_arguments_that_have_no_hash_make_objects() -> None:
    program = """
    class Typed(torch.nn.Module):
        def __init__(self, metadata: tuple[list[str], list[tuple[str, str]]]):
            super().__init__()
            self.names = [name for name in metadata[0]]

        def forward(self, x):
            return x * (1 + len(self.names))
    """
    found = verdict(program, ("x * (1 + len(self.names))", "(1 + len(self.names)) * x"))
    assert found.status is Status.EQUIVALENT, found


def test_several_missing_bases_are_not_the_same_twice() -> None:
    first, second = Placeholder("HubMixin"), Placeholder("SaveMixin")
    kind = type("Model", (*first.__mro_entries__(()), *second.__mro_entries__(())), {})
    assert len(kind.__mro__) > len(("Model", "HubMixin", "SaveMixin"))


def test_a_program_shows_what_loads_without_its_base() -> None:
    text = """
    from missing_heads import Head

    class Mine(Head):
        def forward(self, x):
            return x * 2.0
    """
    assert verdict(text, ("2.0", "3.0")).script


def test_a_mask_of_heads_says_how_many_dimensions_queries_have() -> None:
    program = """
    def attend(q, k, v, mask):
        \"\"\"mask bool (B, 1, T, S): True = keep; at least one of each row.\"\"\"
        if not bool(mask.any(-1).all()):
            raise ValueError("a row is fully masked")
        scores = torch.matmul(q, k.transpose(-2, -1)) / q.size(-1) ** 0.5
        return torch.matmul(scores.masked_fill(~mask, float("-inf")).softmax(-1), v)
    """
    old = 'torch.matmul(scores.masked_fill(~mask, float("-inf")).softmax(-1), v)'
    found = verdict(program, (old, "F.scaled_dot_product_attention(q, k, v, attn_mask=mask)"))
    assert found.status is Status.EQUIVALENT, found
    found = verdict(program, (old, "F.scaled_dot_product_attention(q, k, v, attn_mask=~mask)"))
    assert found.status is Status.REFUTED, found


def test_missing_layers_are_those_of_torch_of_the_same_name() -> None:
    with while_making():
        made = Placeholder("layers.Sequential")(None, torch.nn.Linear(8, 2))
        other = Placeholder("layers.Linear")("row", parallel=True)
    assert [type(part) for part in made] == [torch.nn.Linear]
    assert isinstance(other, StandInPart)
