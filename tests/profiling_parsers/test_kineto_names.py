from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.kineto.names import operator_dims, short_name, tensor_shapes
from npufix.profiling_parsers.kineto.timeline import ThreadTimeline


@pytest.mark.parametrize(
    ("kernel", "short"),
    [
        ("void at::native::fill_kernel<4, at::native::F<float>>(int, F<float>)", "fill_kernel"),
        ("void (anonymous namespace)::softmax_warp<float>(float*)", "softmax_warp"),
        ("at::cuda::(anonymous namespace)::spin_kernel(long)", "spin_kernel"),
        ("void cutlass::Kernel<cutlass_80_s1688gemm_nn>(cutlass_80_s1688gemm_nn::Params)",
         "cutlass_80_s1688gemm_nn"),
        ("_ZN2at6native13reduce_kernelILi512ELi1EEEvT1_.kd", "reduce_kernel"),
        ("_ZN7ck_tile6kentryILi2ENS_12FmhaPagedKVKINS_4TileIDF16bE", "FmhaPagedKVK"),
        ("_ZN7ck_tile6kentryILi2EE", "kentry"),
        ("ampere_sgemm_128x64_tn", "ampere_sgemm_128x64_tn"),
        ("Memcpy HtoD (Pageable -> Device)", "Memcpy HtoD"),
        ("Memset (Device)", "Memset"),
        ("", ""),
    ],
)  # fmt: skip
def test_short_names(kernel: str, short: str) -> None:
    assert short_name(kernel) == short


@given(st.text(alphabet="_ZN19a:<>(){} ,void"))
def test_any_kernel_has_a_name(kernel: str) -> None:
    assert bool(short_name(kernel)) == bool(kernel)


def test_shapes() -> None:
    assert operator_dims(b"[[4, 128], [128], []]") == "4,128;128;"
    assert operator_dims(b"[[[2, 3], [4]], []]") == "2,3 4;"
    assert operator_dims(b"") == operator_dims(b"{}") == operator_dims(b"[[") == ""
    assert tensor_shapes(b"[[], []]", b'["float", "Scalar"]') == ("", "FLOAT")
    assert tensor_shapes(b"[[[2, 3], [4]], []]", b'["TensorList", ""]') == ("2,3;4", ";")
    assert tensor_shapes(b"[[7], [], [5]]", b"[]") == ("7;5", ";")
    assert tensor_shapes(b"", b"") == ("", "")


intervals = st.lists(
    st.tuples(st.integers(0, 2), st.integers(0, 15), st.integers(0, 9)), max_size=12
)


@given(intervals)
def test_the_innermost_interval_is_the_last_that_started(rows: list[tuple[int, int, int]]) -> None:
    threads, starts, durations = np.array(rows, np.int64).reshape(-1, 3).T
    timeline = ThreadTimeline(threads, starts, durations)
    total = np.zeros(len(rows), np.int64)
    for thread in range(3):
        for moment in range(-1, 27):
            is_open = (
                (threads == thread) & (starts <= moment) & (moment < starts + durations.clip(1))
            )
            found = int(timeline.at(np.array([thread]), np.array([moment]))[0])
            assert (found >= 0) == is_open.any()
            if found >= 0:
                order = [(starts[row], -durations[row]) for row in np.flatnonzero(is_open)]
                assert (starts[found], -durations[found]) == max(order)
                total[found] += 1
    assert timeline.innermost_ns(len(rows)).tolist() == total.tolist()
