"""Whole numbers in order, and calls about one of several, of which some come back."""

from __future__ import annotations

import ast

import pytest

torch = pytest.importorskip("torch")

from tests.rewriters.verification.inputs.test_exposing_calls import verified  # noqa: E402 - needs torch

from npufix.rewriters.verification.calls.values import (  # noqa: E402 - same
    Tensor,
    make_tensor,
    seed_generator,
)
from npufix.rewriters.verification.inputs.source.operands import (  # noqa: E402 - same
    find_keys,
    list_plain_keys,
)
from npufix.rewriters.verification.verdict import Status  # noqa: E402 - same

COMPONENTS = '''
import torch

def components(edges, nodes: int):
    """edges (E, 2) long, ids below nodes; the smallest id that each node is connected with."""
    label = torch.arange(nodes)
    for _ in range(8):
        low = torch.minimum(label[edges[:, 0]], label[edges[:, 1]])
        label = label.scatter_reduce(0, edges[:, 0], low, "amin")
        label = label.scatter_reduce(0, edges[:, 1], low, "amin")
    return label
'''
CACHE = """
class Cache:
    def __init__(self, table, capacity: int = 4):
        self.table = table
        self.capacity = capacity
        self.rows = {}

    def get(self, key: int):
        if key in self.rows:
            row = self.rows.pop(key)
        else:
            row = self.table[key].clone()
            if len(self.rows) >= self.capacity:
                self.rows.pop(next(iter(self.rows)))
        self.rows[key] = row
        return row
"""

RECENT = """
from collections import OrderedDict

class Recent:
    def __init__(self, capacity: int = 3):
        self.capacity = capacity
        self.squares = OrderedDict()

    def get(self, length: int):
        if length in self.squares:
            self.squares.move_to_end(length)
            return self.squares[length]
        self.squares[length] = length * length
        if len(self.squares) > self.capacity:
            self.squares.popitem(last=False)
        return self.squares[length]
"""
PUT = """
class Slots:
    def __init__(self, size=2):
        self.size = size
        self.data = {}

    def put(self, key, value):
        if key in self.data:
            del self.data[key]
        elif len(self.data) >= self.size:
            del self.data[next(iter(self.data))]
        self.data[key] = value
"""

BANK = '''
import torch

class Bank:
    def __init__(self, dim: int = 8):
        self.dim = dim
        self.items: dict[str, torch.Tensor] = {}

    def add(self, name: str, feat: torch.Tensor):
        self.items[name] = feat.detach()

    def nearest(self, query: torch.Tensor):
        """query: (dim,)"""
        if not self.items:
            raise KeyError("empty")
        best, score = "", -float("inf")
        for name, feat in self.items.items():
            now = float(torch.dot(query, feat))
            if now > score:
                best, score = name, now
        return best
'''


@pytest.mark.parametrize(
    ("text", "old", "new", "status"),
    [
        (BANK, "if now > score:", "if score < now:", Status.EQUIVALENT),
        (BANK, "best, score = name, now", "best = name", Status.REFUTED),
        (RECENT, "            self.squares.move_to_end(length)\n", "", Status.REFUTED),
        (
            PUT,
            "if key in self.data:\n            del self.data[key]\n        elif len",
            "if key not in self.data and len",
            Status.REFUTED,
        ),
        (COMPONENTS, "range(8):", "range(2):", Status.REFUTED),
        (CACHE, "row = self.rows.pop(key)", "row = self.rows[key]", Status.REFUTED),
        (
            CACHE,
            "row = self.rows.pop(key)",
            "row = self.rows[key]\n            del self.rows[key]",
            Status.EQUIVALENT,
        ),
    ],
)
def test_long_paths_and_full_caches_are_tried(
    text: str, old: str, new: str, status: Status
) -> None:
    verdict = verified(text, old, new)
    assert verdict.status is status, verdict


def test_what_is_looked_up_is_a_key() -> None:
    text = """
def get(self, name, size, dtype, p):
    key = (size, dtype)
    if name in self.names or p.grad in self.seen:
        return self.tables.get(key)
    return other.get(p)
"""
    function = ast.parse(text).body[0]
    assert find_keys(function) == {"name", "size", "dtype", "key"}
    assert set(list_plain_keys(function, {"name", "p"})) == {"name"}


def test_edges_in_order_are_a_path() -> None:
    made = make_tensor(Tensor((3, 2), "int", 8), "in order", seed_generator("edges"), torch.float32)
    assert made.tolist() == [[0, 1], [1, 2], [2, 3]]
