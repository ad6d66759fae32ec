"""Advice about GELU kernels and about interleaved rotary embeddings in inference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.rules_test.recordings import MS, recording
from npufix.rules.diagnostics import gelu_kernels, interleaved_rope

if TYPE_CHECKING:
    from npufix.rules.diagnostic import Observation, Recording


def told(rule: Any, looked_at: Recording) -> list[Observation]:
    return list(rule.RULE.check(looked_at))


def one_by_one(*rows: tuple[str, int, str]) -> Recording:
    return recording(
        [
            {
                "type": name, "duration_ns": duration, "start_ns": 100 * MS * at, "path": "m.py",
                "line": at, "function": function,
            }
            for at, (name, duration, function) in enumerate(rows)
        ]
    )  # fmt: skip


@pytest.mark.parametrize("name", ["Gelu", "GeluV2", "GeluGrad", "GeluGradV2"])
def test_gelu_is_told_where_it_costs(name: str) -> None:
    (found,) = told(gelu_kernels, one_by_one((name, 5 * MS, "mlp"), ("MatMulV2", 9 * MS, "mlp")))
    assert found.cost_ns == 5 * MS
    assert found.saving_ns is None
    assert found.is_work  # only another function is faster
    assert [place.line for place in found.places] == [0]


def test_other_activations_and_short_ones_are_not_told() -> None:
    assert not told(gelu_kernels, one_by_one(("FastGelu", 5 * MS, "f"), ("MatMulV2", MS, "f")))
    assert not told(gelu_kernels, one_by_one(("Gelu", 1000, "f"), ("MatMulV2", 90 * MS, "f")))
    assert not told(gelu_kernels, one_by_one(("GeGluV2", 5 * MS, "f"), ("MatMulV2", MS, "f")))


INTERLEAVED = "apply_rotary_pos_emb_interleave"


def test_interleaved_queries_are_told_in_inference_only() -> None:
    rows = [("Transpose", 2 * MS, INTERLEAVED), ("Mul", MS, INTERLEAVED)]
    (found,) = told(interleaved_rope, one_by_one(*rows))
    assert found.cost_ns == 3 * MS
    assert not told(interleaved_rope, one_by_one(*rows, ("RmsNormGrad", MS, "forward")))
    others = [(name, duration, "apply_rotary_pos_emb") for name, duration, _ in rows]
    assert not told(interleaved_rope, one_by_one(*others))
