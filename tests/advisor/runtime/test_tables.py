"""Tables of cosines are read once, not at all where nobody may, and not for ever in vain."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from npufix.advisor.runtime.calls import at_run_time, tables
from npufix.advisor.runtime.calls.questions import NEW_EACH_TIME, NOT_READ_HERE, WITHIN_ONE
from npufix.advisor.runtime.calls.tables import MOST_READS, CosineTables

if TYPE_CHECKING:
    from collections.abc import Iterator

    Made = tuple[torch.Tensor, torch.Tensor]


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found: list[int] = []
    read = tables._read

    def counting(cos: torch.Tensor, sin: torch.Tensor) -> bool:
        found.append(1)
        return read(cos, sin)

    monkeypatch.setattr(tables, "_read", counting)
    return found


def made(scale: float = 1.0, dtype: torch.dtype = torch.float32) -> Made:
    angles = torch.arange(24.0).reshape(1, 6, 4)
    return (angles.cos() * scale).to(dtype), (angles.sin() * scale).to(dtype)


def test_all_layers_of_a_forward_share_one_read(reads: list[int]) -> None:
    known, (cos, sin) = CosineTables(), made()
    for _ in range(4 * MOST_READS):  # a view of its own in every layer
        assert known.within_one("q", cos.unsqueeze(1), sin.unsqueeze(1)) == ""
        assert known.within_one("k", cos.unsqueeze(1), sin.unsqueeze(1)) == ""
    assert len(reads) == 1
    for _ in range(3 * MOST_READS):  # new tables in every forward
        cos, sin = made()
        assert [known.within_one("q", cos, sin) for _ in range(2)] == ["", ""]
    assert len(reads) == 1 + 3 * MOST_READS


def test_what_is_written_into_a_table_is_seen(reads: list[int]) -> None:
    known, (cos, sin) = CosineTables(), made()
    assert known.within_one("q", cos[None], sin[None]) == ""
    sin.mul_(1.2)
    assert known.within_one("q", cos[None], sin[None]) == WITHIN_ONE
    assert len(reads) == 2


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize(("scale", "within"), [(1.0, True), (0.9, True), (1.07, False)])
def test_a_scale_is_found_in_each_dtype(scale: float, dtype: torch.dtype, *, within: bool) -> None:
    assert CosineTables().within_one("q", *made(scale, dtype)) == ("" if within else WITHIN_ONE)
    cos, sin = made()
    assert CosineTables().within_one("q", cos, sin * float("nan")) == WITHIN_ONE
    assert CosineTables().within_one("q", cos[:0], sin[:0]) == ""


def test_tables_that_are_new_each_time_are_not_read_for_ever(reads: list[int]) -> None:
    known = CosineTables()
    said = [known.within_one("q", *made()) for _ in range(2 * MOST_READS)]
    assert said == [""] * MOST_READS + [NEW_EACH_TIME] * MOST_READS
    scaled = [known.within_one("k", *made(1.2)) for _ in range(2 * MOST_READS)]
    assert set(scaled) == {WITHIN_ONE}
    assert len(reads) == 2 * MOST_READS
    known.try_again()
    assert known.within_one("q", *made()) == ""


def test_what_is_computed_again_for_its_gradients_is_done_the_same_way() -> None:
    known = CosineTables()
    said: list[str] = []

    def layer(x: torch.Tensor) -> torch.Tensor:
        said.append(known.within_one("q", *made()))
        return x.exp() if said[-1] else x.sin().exp()

    x = torch.ones(2, requires_grad=True)
    y = x
    for _ in range(MOST_READS + 1):
        y = checkpoint(layer, y, use_reentrant=False)
    torch.autograd.backward(y.sum())  # raises where another number of tensors is saved
    assert set(said) == {""}
    for _ in range(2):
        with torch.no_grad():
            layer(x)
    assert said[-1] == NEW_EACH_TIME


def test_tensors_without_a_version_are_read_each_time(reads: list[int]) -> None:
    with torch.inference_mode():
        cos, sin = made()
        known = CosineTables()
        assert [known.within_one("q", cos, sin) for _ in range(2)] == ["", ""]
    assert len(reads) == 2


class _Npu:
    @staticmethod
    def is_current_stream_capturing() -> bool:
        return True


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_nothing_is_read_where_nobody_may(
    reads: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    known, (cos, sin) = CosineTables(), made()
    from torch._subclasses.fake_tensor import FakeTensorMode

    with FakeTensorMode(allow_non_fake_inputs=True):
        assert known.within_one("q", cos, sin) == NOT_READ_HERE
    traced: list[str] = []

    def function(x: torch.Tensor) -> torch.Tensor:
        traced.append(known.within_one("q", x, x))
        return x

    torch.jit.trace(function, cos, check_trace=False)  # type: ignore[no-untyped-call, unused-ignore]
    assert traced == [NOT_READ_HERE]
    monkeypatch.setattr(torch, "npu", _Npu, raising=False)
    assert known.within_one("q", cos, sin) == NOT_READ_HERE
    assert not reads
    monkeypatch.undo()
    assert known.within_one("q", cos, sin) == ""
    monkeypatch.setattr(torch, "npu", _Npu, raising=False)
    assert known.within_one("q", cos, sin) == ""  # known before: nothing is read


def test_threads(reads: list[int]) -> None:
    known, shared = CosineTables(), made()
    said: list[str] = []

    def ask() -> None:
        for _ in range(200):
            said.append(known.within_one("q", *(t[None] for t in shared)))
            known.within_one("k", *made(1.2))

    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert set(said) == {""}
    assert len(reads) <= 4 + MOST_READS + 4  # at worst each thread once


@pytest.fixture
def as_on_npu(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(at_run_time, "must_stay", lambda *_: False)
    tables.TABLES.clear()
    yield
    at_run_time.taken.clear()
    at_run_time.refused.clear()
    tables.TABLES.clear()


@pytest.mark.usefixtures("as_on_npu")
def test_a_call_asks_about_what_the_function_was_given(reads: list[int]) -> None:
    def holds(*, cos: object, sin: object, **given: object) -> bool:
        return at_run_time.holds("here", (WITHIN_ONE,), shared[0], cos=cos, sin=sin, **given)

    shared = made()
    for _ in range(3 * MOST_READS):  # in every layer some rows of them, brought into shape
        cos, sin = (table[:, [0, 2]].float() * 1 for table in shared)
        assert holds(cos=cos, sin=sin, given_cos=shared[0], given_sin=shared[1])
    assert len(reads) == 1
    assert not holds(cos=1.0, sin=1.0)
    assert not holds(cos=shared[0].long(), sin=shared[1].long())
    assert at_run_time.refused["here", WITHIN_ONE] == 2
