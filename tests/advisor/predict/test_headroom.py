"""Bounds of kernels: the work that shapes say, the rates of chips, and what is above."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pytest

from npufix.advisor.predict.headroom import with_shapes
from npufix.advisor.predict.link_bounds import link_bounds
from npufix.advisor.roofline.bounds import LIMITS, compute_bounds
from npufix.advisor.roofline.products import product_operations
from npufix.advisor.roofline.rates import find_rates
from npufix.advisor.roofline.work import RATE_NAMES, work_of
from npufix.profiling_parsers.signals import SCHEMAS, Signals
from npufix.rules.shared.chips import find_chips, link_rate


def kernels(*rows: tuple[str, str, str, str]) -> pd.DataFrame:
    names = ["type", "input_shapes", "input_dtypes", "output_shapes"]
    return pd.DataFrame(rows, columns=names).astype("category")


@pytest.mark.parametrize(
    ("kind", "inputs", "outputs", "expected"),
    [
        ("MatMulV3", [(4, 8), (8, 2)], [(4, 2)], 2 * 4 * 8 * 2),
        ("MatMulV2", [(8, 4), (2, 8), (2,)], [(4, 2)], 2 * 4 * 8 * 2),
        ("BatchMatMulV2", [(3, 5, 4, 8), (3, 5, 8, 2)], [(3, 5, 4, 2)], 15 * 2 * 4 * 8 * 2),
        ("BatchMatMulV2", [(3, 4, 8), (8, 2)], [(3, 4, 2)], 3 * 2 * 4 * 8 * 2),
        ("BatchMatMulV2", [(3, 4, 8), (1, 8, 2)], [(3, 4, 2)], 3 * 2 * 4 * 8 * 2),
        ("GroupedMatmul", [(64, 8), (4, 8, 2)], [(64, 2)], 2 * 64 * 8 * 2),
        ("aten::mm", [(4, 8), (8, 2)], [], 2 * 4 * 8 * 2),
        ("aten::linear", [(3, 4, 8), (2, 8), (2,)], [], 3 * 2 * 4 * 8 * 2),
        ("aten::addmm", [(2,), (4, 8), (8, 2)], [], 2 * 4 * 8 * 2),
        ("aten::addmm", [(4, 2), (4, 8), (8, 2)], [], 2 * 4 * 8 * 2),
        ("Conv2D", [(2, 16, 9, 9), (32, 16, 3, 3)], [(2, 32, 7, 7)], 2 * 2 * 32 * 49 * 16 * 9),
        (
            "Conv2DBackpropInput",
            [(4,), (32, 16, 3, 3), (2, 32, 7, 7)],
            [(2, 16, 9, 9)],
            2 * 2 * 32 * 49 * 16 * 9,
        ),
        (
            "Conv2DBackpropFilter",
            [(2, 16, 9, 9), (4,), (2, 32, 7, 7)],
            [(32, 16, 3, 3)],
            2 * 2 * 32 * 49 * 16 * 9,
        ),
        # 2 heads of 64, 100 rows over 300 columns; two products.
        (
            "FlashAttentionScore",
            [(100, 1, 128), (300, 1, 128), (300, 1, 128)],
            [(1, 2, 100, 8), (1, 2, 100, 8), (), (100, 1, 128)],
            2 * 2 * 100 * 300 * 128,
        ),
        ("Add", [(4, 8), (4, 8)], [(4, 8)], 0),
        ("MatMulV3", [(4, 8)], [(4, 2)], 0),
    ],
)
def test_operations_are_those_of_the_shapes(
    kind: str,
    inputs: list[tuple[int, ...]],
    outputs: list[tuple[int, ...]],
    expected: float,
) -> None:
    assert product_operations(kind, inputs, outputs) == pytest.approx(expected)


def test_a_compressed_causal_mask_halves_attention() -> None:
    tensors = [(4096, 1, 128), (4096, 1, 128), (4096, 1, 128)]
    out = [(1, 2, 4096, 8)]
    whole = product_operations("FlashAttentionScore", tensors, out)
    assert product_operations("FlashAttentionScore", [*tensors, (2048, 2048)], out) == whole / 2


@pytest.mark.parametrize(
    ("row", "moved"),
    [
        (("Add", "4,8;4,8", "FLOAT;FLOAT", "4,8"), 3 * 32 * 4),
        (("Cast", "4,8", "FLOAT", "4,8"), 32 * (4 + 2)),
        (("Equal", "4,8;4,8", "INT64;INT64", "4,8"), 2 * 32 * 8 + 32),
        (("Slice", "4,800;2;2", "FLOAT16;INT64;INT64", "4,8"), 2 * 64 + 32),
        (("ZerosLike", "4,8", "FLOAT", "4,8"), 32 * 4),
        (("ApplyAdamWV2", "8;8;8;8;1", "FLOAT;FLOAT;FLOAT;FLOAT;INT64", ""), 7 * 32 + 8),
        (("aten::mul", "4,8;4,8", "FLOAT;FLOAT", ""), 3 * 32 * 4),
        (("aten::sum", "4,8", "FLOAT", ""), 32 * 4),
        (("MemSet", "", "", ""), 0),
    ],
)
def test_bytes_are_those_that_have_to_move(row: tuple[str, str, str, str], moved: int) -> None:
    work = work_of(kernels(row))
    assert work.moved.tolist() == [moved]
    assert bool(work.known[0]) == (moved > 0)


def test_many_different_cells_do_not_overflow_a_key() -> None:
    count = 70_000
    frame = kernels(*[("Add", f"{n + 1};1", f"FLOAT;{n}", f"{n + 1}") for n in range(count)])
    frame["type"] = pd.Categorical([f"Add{n}" for n in range(count)])
    work = work_of(frame)
    assert work.moved[work.of_kernel[4]] == 5 * 4 + 5 * 4  # the unknown dtype counts nothing


def test_a_known_chip_bounds_by_its_table() -> None:
    frame = kernels(
        ("MatMulV3", "4096,4096;4096,4096", "DT_BF16;DT_BF16", "4096,4096"),
        ("Add", "4096,4096;4096,4096", "DT_BF16;DT_BF16", "4096,4096"),
        ("Add", ";", "FLOAT;FLOAT", ""),
        ("MemSet", "", "", ""),
    )
    durations = np.array([900_000.0, 120_000.0, 1_500.0, 2_000.0])
    work = work_of(frame)
    rates = find_rates(work, durations, "Ascend910B3", ("A2",))
    bounds = compute_bounds(work, rates)
    (chip,) = find_chips("Ascend910B3")
    time = bounds.time_ns[work.of_kernel]
    assert time[0] == pytest.approx(2 * 4096**3 / (1000 * chip.tflops["bf16"]))
    assert time[1] == pytest.approx(3 * 2 * 4096**2 / (1000 * chip.tb_per_s))
    assert time[3] == 0
    limits = [LIMITS[at] for at in bounds.limit[work.of_kernel]]
    assert limits == ["compute", "memory", "launch", ""]
    assert rates.sources == (chip.source,)


def test_an_unknown_chip_bounds_by_what_its_kernels_reach() -> None:
    row = ("MatMulV3", "4096,4096;4096,4096", "DT_BF16;DT_BF16", "4096,4096")
    large = ("Add", "8192,16384;8192,16384", "FLOAT;FLOAT", "8192,16384")
    work = work_of(kernels(row, row, large))
    durations = np.array([900_000.0, 600_000.0, 2_000_000.0])
    rates = find_rates(work, durations, None, ())
    assert "not recorded" in rates.basis
    assert rates.operations[RATE_NAMES.index("bf16")] == pytest.approx(2 * 4096**3 / 600_000)
    time = compute_bounds(work, rates).time_ns[work.of_kernel]
    assert time.tolist() == pytest.approx([600_000, 600_000, 2_000_000])


def test_a_name_for_two_families_is_bound_by_the_quicker() -> None:
    frame = kernels(("MatMulV3", "4096,4096;4096,4096", "FLOAT16;FLOAT16", "4096,4096"))
    rates = find_rates(work_of(frame), np.array([1e6]), "Ascend910B", ("A2", "A3"))
    quickest = max(c.tflops["fp16"] for c in find_chips("Ascend910B", ("A2", "A3")))
    assert rates.operations[RATE_NAMES.index("fp16")] == 1000 * quickest


@pytest.mark.parametrize(
    ("recorded", "family"),
    [
        ("Ascend910A", "910A"),
        ("Ascend910B4-1", "A2"),
        ("Ascend910_9391", "A3"),
        ("Ascend310P3", "310P"),
        ("Ascend950PR_9589", "A5"),
        ("NVIDIA A100-SXM4-80GB", "A100"),
        ("NVIDIA A100-SXM4-40GB", "A100"),
        ("NVIDIA H100 80GB HBM3", "H100"),
        ("NVIDIA B200", "B200"),
        ("AMD Instinct MI300X", "MI300"),
    ],
)
def test_chips_are_found_by_their_recorded_names(recorded: str, family: str) -> None:
    (chip,) = find_chips(recorded)
    assert chip.family == family
    assert chip.source


def test_what_no_memory_can_move_shows_no_bandwidth() -> None:
    table = ("Lookup", "30000000,16;4096", "FLOAT;INT64", "4096,16")
    large = ("Add", "8192,16384;8192,16384", "FLOAT;FLOAT", "8192,16384")
    work = work_of(kernels(table, large))
    rates = find_rates(work, np.array([4_000.0, 2_000_000.0]), None, ())
    assert rates.bytes_per_ns == pytest.approx(3 * 4 * 8192 * 16384 / 2_000_000)


def test_kernels_without_shapes_are_bound_by_their_operators() -> None:
    rows = kernels(("MatMulV2", "", "", ""), ("TransData", "", "", ""), ("Conv2D", "", "", ""))
    ops = pd.DataFrame(
        {
            "name": ["aten::mm", "aten::conv2d"],
            "input_dims": ["4,8;8,2", "2,3,8,8;4,3,3,3;"],
            "input_types": ["c10::Half;c10::Half", "float;float;Scalar"],
        },
        index=[7, 9],
    )
    found = with_shapes(rows.assign(host_op=[7, 9, 9]), ops)
    assert found[["type", "input_shapes", "input_dtypes"]].to_numpy().tolist() == [
        ["aten::mm", "4,8;8,2", "FLOAT16;FLOAT16"], ["TransData", "", ""], ["Conv2D", "", ""],
    ]  # fmt: skip


def test_collectives_of_which_only_the_size_is_known_are_bound_by_the_quickest() -> None:
    payloads = _table(
        "payloads", {"name": "quick", "size_bytes": 20}, {"name": "slow", "size_bytes": 10}
    )
    rows = pd.DataFrame(
        {"name": ["slow", "quick"], "type": "hcom_allReduce_", "duration_ns": [900, 1_000]}
    )
    assert link_bounds(rows, Signals(payloads=payloads), None).tolist() == [500, 1_000]


def test_unknown_names_are_no_chip() -> None:
    assert find_chips("GeForce 9800", ()) == ()
    assert find_chips(None, ()) == ()
    assert link_rate("carrier pigeon") is None


def test_collectives_are_bound_by_the_quickest_of_their_group() -> None:
    signals = Signals(
        collectives=_table(
            "collectives",
            {"name": "quick", "group": "g", "elapse_ns": 1_000_000, "wait_ns": 0},
            {"name": "slow", "group": "g", "elapse_ns": 9_000_000, "wait_ns": 5_000_000},
        ),
        transports=_table(
            "transports",
            {"name": "quick", "transport": "HCCS", "size_bytes": 20_000_000},
            {"name": "quick", "transport": "SDMA", "size_bytes": 20_000_000},
            {"name": "slow", "transport": "HCCS", "size_bytes": 40_000_000},
        ),
    )
    rows = pd.DataFrame({"name": ["slow", "quick", "other"], "type": "hcom_allReduce_"})
    assert link_bounds(rows, signals, None).tolist() == [2_000_000, 1_000_000, 0]


def _table(name: str, *rows: dict[str, object]) -> pd.DataFrame:
    empty: dict[str, object] = {"category": "", "int64": 0, "float64": 0.0}
    schema = SCHEMAS[name]
    full = [
        {column: row.get(column, empty[kind]) for column, kind in schema.items()} for row in rows
    ]
    return pd.DataFrame(full).astype(dict(schema))
