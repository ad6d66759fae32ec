"""What comes out of a process of the user's code is data, the same on both sides."""

from __future__ import annotations

import enum
import functools
import math
import os
from collections import Counter
from http import HTTPStatus

import pytest

torch = pytest.importorskip("torch")

import msgspec  # noqa: E402 - after the skip

from npufix.rewriters.verification.calls.observe import CallRecord  # noqa: E402 - same
from npufix.rewriters.verification.calls.values import (  # noqa: E402 - same
    MadeArgument,
    Tensor,
    Value,
)
from npufix.rewriters.verification.inputs.target import Assignment, CallCase  # noqa: E402 - same
from npufix.rewriters.verification.sandbox import remote  # noqa: E402 - same
from npufix.rewriters.verification.sandbox.transport import (  # noqa: E402 - same
    ClosedError,
    Named,
    Opaque,
    Packing,
    TransportError,
    Unpacking,
)
from npufix.rewriters.verification.verdict import NotVerifiedError  # noqa: E402 - same


def sent(value: object, *, opens: bool = False) -> object:
    """Return what the other side gets of a value."""
    data = msgspec.msgpack.encode(Packing(closes=not opens).pack(value))
    return Unpacking(opens=opens).unpack(msgspec.msgpack.decode(data))


@pytest.mark.parametrize(
    "value",
    [
        None,
        True,
        -(1 << 80),
        1.5,
        "\n\0",
        b"\xff",
        (1, [2, {"a": {3}}], frozenset({4})),
        Counter("aab"),
        1 + 2j,
        torch.bfloat16,
        {(1, 2): None},
    ],
)
def test_plain_values_arrive(value: object) -> None:
    assert sent(value) == value
    assert type(sent(value)) is type(value)


@pytest.mark.parametrize(
    "value",
    [
        torch.randn(2, 3),
        torch.randn(2, 3).bfloat16().T,
        torch.randn(4, 6)[::2, ::3],
        torch.ones(()).expand(3, 2),
        torch.empty(0, 5, dtype=torch.int8),
        torch.ones((), dtype=torch.bool),
        torch.tensor([math.nan, -0.0, math.inf], dtype=torch.float16),
        torch.randn(3, dtype=torch.complex64).conj(),
        torch.eye(3).to_sparse(),
        torch.randn(2, 3, 4, 4).to(memory_format=torch.channels_last),
        torch.randn(3).to(torch.float8_e4m3fn),
        torch.nn.Parameter(torch.randn(3)),
    ],
)
def test_tensors_arrive_bit_for_bit(value: torch.Tensor) -> None:
    found = sent(value)
    assert type(found) is torch.Tensor
    assert (found.dtype, found.shape, found.layout) == (value.dtype, value.shape, value.layout)
    dense, other = (t.detach().to_dense().resolve_conj().contiguous() for t in (value, found))
    assert torch.equal(dense.view(-1).view(torch.uint8), other.view(-1).view(torch.uint8))
    if value.layout == torch.strided and value.clone().stride() == value.stride():
        assert found.stride() == value.stride()


def test_a_float_of_many_digits_is_the_same_float() -> None:
    values = [5e-324, 0.1 + 0.2, -0.0, math.inf]
    assert list(map(repr, sent(values))) == list(map(repr, values))  # type: ignore[call-overload]
    assert math.isnan(sent(math.nan))  # type: ignore[arg-type]


class Colour(str, enum.Enum):
    """A text of a class of its own."""

    RED = "red"


class Config:
    """No data."""

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("the judge has called the user's code")

    __hash__ = None  # type: ignore[assignment]


def test_objects_stay_closed_where_nothing_of_the_user_runs() -> None:
    found = sent([Colour.RED, Config(), test_plain_values_arrive])
    assert isinstance(found, list)
    assert found[0] == Named(f"{__name__}.Colour", "red")
    assert all(type(one) is Opaque for one in found[1:])
    # On to the process of the other version, which opens them.
    assert sent(found[0], opens=True) is Colour.RED
    assert type(sent(found[1], opens=True)) is Config


def test_a_call_is_made_anew_from_what_is_sent_of_it() -> None:
    scale = 3
    made = MadeArgument(lambda: scale * 2, "six")
    case = CallCase(Assignment(None, {"x": Tensor((2, 3)), "c": made, "n": Value(7)}), seed=4)
    judged = sent(case)
    assert isinstance(judged, CallCase)
    assert (str(judged), judged.size) == (str(case), case.size)
    there = sent(judged, opens=True)
    assert isinstance(there, CallCase)
    argument = there.assignment.specs["c"]
    assert isinstance(argument, MadeArgument)
    assert argument.make() == 6


@pytest.mark.parametrize(
    ("value", "shared"),
    [
        ((1, "a", 0.5), True),
        ([1], False),
        (({"a": 1},), False),
        ({1}, False),
        (torch.ones(2), False),
        (HTTPStatus.OK, False),
    ],
)
def test_arguments_are_packed_once_and_shared_if_no_call_can_change_them(
    value: object, *, shared: bool
) -> None:
    plain = Assignment(None, {"x": Tensor((2, 3), "float"), "n": Value(value)})
    packing, unpacking = Packing(closes=False), Unpacking(opens=True)
    messages = [packing.pack((CallCase(plain, seed=n), n)) for n in range(2)]
    assert messages[0][1][0][2]["assignment"][1] is messages[1][1][0][2]["assignment"][1]  # type: ignore[index] # of a record
    first, second = (unpacking.unpack(message)[0] for message in messages)
    assert (first.seed, second.seed) == (0, 1)
    assert (first.assignment is second.assignment) == shared
    assert first.assignment.specs.keys() == plain.specs.keys()
    with pytest.raises(TransportError):
        Unpacking(opens=False).unpack(messages[0])


def test_an_argument_that_cannot_be_made_again_says_so() -> None:
    handle = (n for n in range(3))
    closed = sent(Value(handle))
    with pytest.raises(ClosedError, match="cannot be made for both"):
        sent(closed, opens=True)
    unused = sent(sent(Value(handle, given=False)), opens=True)
    assert isinstance(unused, Value)


@pytest.mark.parametrize(
    "data",
    [
        ["function", "npufix.rewriters.verification.sandbox.remote:serve"],
        ["partial", ["function", "os:system"], ["tuple", []], ["dict", []]],
        ["handle", [0, False]],
        ["made", "npufix.rewriters.verification.calls.coverage:LinesToCover", []],
        ["record", "subprocess:Popen", []],
        ["record", "npufix.rewriters.verification.inputs.target:Target", []],
        ["tensor", "float32", [1 << 40], [1], "strided", b""],
        ["tensor", "load", [1], [1], "strided", b"1234"],
        ["tensor", "float32", [2], [1], "strided", b"1234"],
        ["dtype", "save"],
        ["trusted", "npufix.rewriters.verification.sandbox.remote:serve"],
        ["unpack"],
        [],
        [["list"]],
        ["dict", [1]],
    ],
)
def test_what_no_honest_process_sends_is_refused(data: list[object]) -> None:
    with pytest.raises(TransportError):
        Unpacking(opens=False).unpack(data)


def test_a_record_of_a_call_arrives_whole() -> None:
    seen = CallRecord(tensors={"result": torch.ones(2), "gradient of x": None}, idle={"self.a"})
    seen.plain["requires_grad of result"] = True
    found = sent(seen)
    assert isinstance(found, CallRecord)
    assert found.plain == seen.plain
    assert found.idle == seen.idle
    assert torch.equal(found.tensors["result"], torch.ones(2))  # type: ignore[arg-type]
    assert sent(functools.partial(int, "3"), opens=True)() == 3  # type: ignore[operator]


def test_a_question_that_fails_ends_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mistake of ours is said of the one call; the next question is answered."""

    def fail(divisor: int) -> float:
        return 1 / divisor

    monkeypatch.setitem(remote._FUNCTIONS, "fail", fail)
    asked, answered = os.pipe(), os.pipe()
    token = b"a token of enough bytes"
    here, there = (
        remote.Pipe(answered[0], asked[1], token),
        remote.Pipe(asked[0], answered[1], token),
    )
    child = os.fork()
    if not child:
        os.close(asked[1])
        remote.serve(there)
        os._exit(0)
    worker = remote.Worker(child, here)
    with pytest.raises(NotVerifiedError, match="npufix failed: ZeroDivisionError"):
        worker.call("fail", (0,), {})
    assert worker.call("fail", (2,), {}) == 0.5
    for end in (*asked, *answered):
        os.close(end)
    os.waitpid(child, 0)


def test_what_is_closed_is_called_by_its_name() -> None:
    known = [torch.tanh, len, torch.nn.SiLU, torch.nn.functional.silu]
    assert [repr(Opaque(repr(one))) for one in known] == ["tanh", "len", "SiLU", "silu"]
    assert repr(Opaque("<object object at 0x7>")) == "<object object at 0x7>"
