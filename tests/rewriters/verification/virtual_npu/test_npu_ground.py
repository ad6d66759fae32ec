"""The ground ``npu``: its own code, on the virtual NPU in place of a device."""

from __future__ import annotations

from dataclasses import replace as changed
from pathlib import Path

import pytest
from verification_snippets import LLAMA

from npufix.rewriters.verification import Job, RecordedCall, Settings, verify
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels, prepare
from npufix.rewriters.verification.workers import pool, process
from npufix.rewriters.verification.workers.backends import Backend

RECORDED = RecordedCall("aten::pow", ((2, 33, 64), ()), ("c10::BFloat16", "Scalar"))
CRASHES = """
if hidden_states.device.type == "npu":
    raise RuntimeError("NPU function error: aclrtSynchronizeStream, error code is 507015")
return hidden_states
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[str, Verdict]:
    right = changed(LLAMA.job(LLAMA.right[0]), recorded=(RECORDED,))
    jobs = {
        "crash": LLAMA.job(CRASHES),
        "right": right,
        "wrong": LLAMA.job(LLAMA.wrong["no eps"]),
    }
    return dict(zip(jobs, on_npu(list(jobs.values())), strict=True))


def on_npu(jobs: list[Job]) -> list[Verdict]:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(pool._Kept, "pools", None)
        patch.setattr(process, "_CHILD", "npu_stand_in")
        patch.syspath_prepend(Path(__file__).parent)
        return verify(jobs, Settings(Backend.NPU, stubs=str(prepare(find_wheels()))))


def test_a_right_change_is_equivalent_and_both_versions_are_timed(
    verdicts: dict[str, Verdict],
) -> None:
    verdict = verdicts["right"]
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.on == "npu"
    assert "npu:0; launches are not recorded there" in verdict.ground
    assert "virtual" not in verdict.ground
    assert verdict.launches is None
    times = verdict.times
    assert times is not None
    assert times.repetitions == 20
    assert times.with_backward
    # The sizes of the dump, the weight of the object with them.
    assert times.case.startswith("hidden_states=float[2, 33, 64]")
    assert "hidden_size=64 in bfloat16" in times.case
    assert 0 < times.original.low_us <= times.original.median_us <= times.original.high_us


def test_a_wrong_change_is_refuted_with_a_program(verdicts: dict[str, Verdict]) -> None:
    verdict = verdicts["wrong"]
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.on == "npu"
    assert "def prepared(module)" in verdict.script
    assert verdict.times is None


def test_a_kernel_that_crashes_is_a_limit_with_a_remedy_and_the_next_job_runs(
    verdicts: dict[str, Verdict],
) -> None:
    verdict = verdicts["crash"]
    assert verdict.status is Status.NOT_VERIFIED
    assert verdict.limit
    assert verdict.reason.startswith("a kernel crashed on the device (AI Core exception); the logs")
