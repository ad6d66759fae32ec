"""Loops that write one number to ranges, drawn at random: what is written computes the same."""

from __future__ import annotations

import random
from typing import Any

import pytest

pytest.importorskip("torch")

import torch

from npufix.rewriters.find import find_sites
from npufix.rules.substitutions.loop_over_rows import RULE

HEADER = "import torch\n"


class _Writer:
    """Writes loops over ranges, as no person would, of numbers that are not negative."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)  # noqa: S311 - programs, not secrets
        self.known = ["k"]

    def number(self, depth: int = 0) -> str:
        kind = self.draw.random()
        if depth > 1 or kind < 0.4:
            return self.draw.choice(self.known)
        if kind < 0.6:
            return str(self.draw.randint(0, 4))
        left, right = self.number(depth + 1), self.number(depth + 1)
        sign = self.draw.choice(["+", "+", "*"])
        form = self.draw.choice(
            [f"min({left}, {right})", f"max({left}, {right})", f"({left}) // 2"]
        )
        return f"{left} {sign} {right}" if kind < 0.8 else form

    def positions(self) -> str:
        low = self.draw.choice(self.known)
        ranges = [f"{low}:{low} + {self.number()}", f"{self.number()}:{self.number()}", ":"]
        return self.draw.choice([*ranges, f"{self.number()}:", f":{self.number()}"])

    def body(self, indent: str, depth: int = 0) -> list[str]:
        lines = []
        for _ in range(self.draw.randint(1, 3)):
            kind = self.draw.random()
            if kind < 0.25 and not depth:
                name = self.draw.choice("abc")
                lines.append(f"{indent}{name} = {self.number()}")
                self.known.append(name)
            elif kind < 0.4 and depth < 2:
                sign = self.draw.choice(["<", ">=", "=="])
                lines.append(f"{indent}if {self.number()} {sign} {self.number()}:")
                inner = [f"{indent}    continue"] if kind < 0.33 else []
                lines += inner or self.body(f"{indent}    ", depth + 1)
            elif kind < 0.5:
                lines.append(f"{indent}at += {self.number()}")
            else:
                lines.append(f"{indent}m[{self.positions()}, {self.positions()}] = 0")
        return lines

    def program(self) -> str:
        begun = self.draw.choice(
            ["0", "1", "k", "0\n    at += 1", "0\n    if k > 1:\n        at = 1"]
        )
        heads = {
            "for n in ns": ["n"],
            "for i, n in enumerate(ns)": ["i", "n"],
            "for i in range(k)": ["i"],
            "for i in range(1, k)": ["i"],
            "for i in range(len(ns))": ["i", "ns[i]"],
        }
        head = self.draw.choice([*heads])
        self.known += [*heads[head], "at"]
        body = "\n".join(self.body("        "))
        return (
            "def f(ns: list[int], k: int):\n    m = torch.ones(24, 24)\n"
            f"    at = {begun}\n    {head}:\n{body}\n        at += {self.number()}\n    return m\n"
        )


def test_ranges_that_are_written_at_once_are_those_of_the_rounds() -> None:
    written = 0
    for seed in range(400):
        text = HEADER + _Writer(seed).program()
        for site in (s for s in find_sites(text, [RULE]) if s.rewrite):
            assert site.rewrite is not None
            written += 1
            for given in (([2, 3, 1, 4, 2], 5), ([0, 3, 0, 1, 1, 2], 3), ([1, 1, 1, 1, 1], 6)):
                results = []
                for version in (text, site.rewrite.direct):
                    scope: dict[str, Any] = {}
                    exec(version, scope)  # noqa: S102 - the program above
                    results.append(scope["f"](*given))
                assert torch.equal(*results), (text, site.rewrite.direct)
    assert written > 20


@pytest.mark.parametrize(("count", "asked"), [("self.groups", True), ("len(x)", False)])
def test_a_setting_may_say_that_there_are_few_rounds(count: str, *, asked: bool) -> None:
    text = f"""
import torch
class Target:
    def forward(self, x: torch.Tensor, n: int):
        m = torch.ones(99, 99)
        for i in range({count}):
            m[n * i : n * (i + 1), n * i : n * (i + 1)] = 0
        return m
"""
    (site,) = find_sites(text, [RULE])
    assert ("many-rounds" in [proof.condition.name for proof in site.proofs]) is asked
