from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from npufix.profiling_parsers.attribution.call_stack import intern_stacks, parse_call_stack
from npufix.profiling_parsers.profile import CallSite


@pytest.mark.parametrize(
    ("text", "frames"),
    [
        ("", ()),
        ("torch::autograd::Engine", ()),
        ("/a/b.py(): f", ()),
        ("/a/b.py(12): f", (CallSite("/a/b.py", 12, "f"),)),
        ("/a/b.py(12): f;", (CallSite("/a/b.py", 12, "f"),)),
        ("<string>(1): <module>", (CallSite("<string>", 1, "<module>"),)),
        (r"C:\work\a (1)\b.py(3): f", (CallSite(r"C:\work\a (1)\b.py", 3, "f"),)),
        ("/a(1)/b.py(10): <lambda>(2): x", (CallSite("/a(1)/b.py", 10, "<lambda>(2): x"),)),
        ("/a.py(1): f;\r\n/b.py(2): g", (CallSite("/a.py", 1, "f"), CallSite("/b.py", 2, "g"))),
        ("/a.py(1): f;\n/b.py(2): g\n", (CallSite("/a.py", 1, "f"), CallSite("/b.py", 2, "g"))),
        (
            "/a.py(1): f;\r\n???;\r\n/b.py(2): g",
            (CallSite("/a.py", 1, "f"), CallSite("/b.py", 2, "g")),
        ),
        ("/目录/模型.py(5): 前向", (CallSite("/目录/模型.py", 5, "前向"),)),
        ("/a.py(99999999999999999999): f", ()),
    ],
)
def test_frames(text: str, frames: tuple[CallSite, ...]) -> None:
    assert parse_call_stack(text) == frames


paths = st.from_regex(re.compile(r"(/[\w (),.+-]{1,8}){1,3}\.py", re.ASCII), fullmatch=True)
names = st.from_regex(re.compile(r"<?[\w.]+>?", re.ASCII), fullmatch=True)
frames = st.builds(CallSite, paths, st.integers(0, 10**9 - 1), names)


@given(st.lists(frames), st.sampled_from([";\r\n", ";\n"]))
def test_what_the_profiler_writes_comes_back(stack: list[CallSite], separator: str) -> None:
    text = separator.join(f"{frame.path}({frame.line}): {frame.function}" for frame in stack)
    assert parse_call_stack(text) == tuple(stack)


@given(st.text(st.sampled_from("ab/(): ;\r\n12.<>\0\\")) | st.text())
def test_any_text_gives_frames_that_stand_in_it(text: str) -> None:
    for frame in parse_call_stack(text):
        assert re.search(rf"{re.escape(frame.path)}\(0*{frame.line}\):", text)
        assert frame.function in text


def test_equal_stacks_are_one_and_no_frames_are_none() -> None:
    stacks, indices = intern_stacks(["", "/a.py(1): f;\r\n", "junk", "/a.py(1): f", "/b.py(1): f"])
    assert indices.tolist() == [-1, 0, -1, 0, 1]
    assert stacks == ((CallSite("/a.py", 1, "f"),), (CallSite("/b.py", 1, "f"),))


def test_frames_are_shared_between_stacks() -> None:
    stacks, _ = intern_stacks(["/a.py(1): f;\n/m.py(9): g", "/b.py(1): f;\n/m.py(9): g"])
    assert stacks[0][1] is stacks[1][1]
