"""Which frame of a call stack is the user's own."""

from __future__ import annotations

import pytest

from npufix.advisor.project.user_frames import UserFrame, is_user_code, user_frame, user_frames
from npufix.profiling_parsers.profile import CallSite

CONV = CallSite("/usr/lib/python3.10/site-packages/torch/nn/modules/conv.py", 459, "forward")
MODEL = CallSite("/home/me/job/model.py", 12, "forward")
TRAIN = CallSite("/home/me/job/train.py", 40, "main")


@pytest.mark.parametrize(
    ("path", "own"),
    [
        ("/home/me/job/model.py", True),
        ("C:\\job\\model.py", True),
        ("model.py", True),
        ("job/model.py", True),
        ("/opt/conda/lib/python3.9/threading.py", False),
        ("/x/site-packages/flash/attention.py", False),
        ("torch/nn/modules/conv.py", False),
        ("threading.py", False),
        ("runpy.py", False),
        ("<string>", False),
        ("/usr/local/bin/vllm", False),
        ("/home/me/bin/train.py", True),
    ],
)
def test_own_code_by_its_path(path: str, own: bool) -> None:  # noqa: FBT001 - a parameter
    assert is_user_code(CallSite(path, 1, "f")) is own


def test_the_deepest_own_frame_is_taken_and_what_it_called_kept() -> None:
    assert user_frame((CONV, MODEL, TRAIN), {}) == UserFrame(
        MODEL.path, 12, "forward", "conv.py:459 forward"
    )
    assert user_frame((MODEL, TRAIN), {}).via == ""
    assert user_frame((CONV,), {}) == UserFrame()


def test_a_frame_in_the_source_goes_before_a_deeper_one_that_only_looks_own() -> None:
    mapped = {TRAIN.path: "train.py", CONV.path: "vendored/conv.py"}
    assert user_frame((MODEL, TRAIN), mapped).path == "train.py"
    assert user_frame((CONV, MODEL), mapped).path == "vendored/conv.py"


def test_where_only_installed_code_runs_that_of_the_model_is_led_to() -> None:
    attention = CallSite("/x/site-packages/vllm_ascend/attention.py", 70, "forward")
    start = CallSite("/usr/local/bin/vllm", 8, "<module>")
    (server,) = user_frames([(CONV, attention, start)], {})
    assert (server.path, server.line) == (attention.path, 70)
    own, below = user_frames([(CONV, MODEL), (CONV, attention)], {})
    assert (own.path, below.path) == (MODEL.path, "")
