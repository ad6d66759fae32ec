"""Whole jobs on the ground ``virtual-npu``, where torch_npu is installed; the choice of it."""

from __future__ import annotations

from dataclasses import replace as changed

import pytest
from verification_snippets import ALL, LLAMA, REPEAT

from npufix.rewriters.verification import Job, Settings, verify
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.verification.virtual_npu import VirtualNpuError, find_wheels
from npufix.rewriters.verification.workers.backends import Backend, BackendError, prepare_backend
from npufix.rewriters.verification.workers.machine import survey

MADE_ON_THE_HOST = ("mask tokens",)
"""A right rewrite on the host only: what it puts together is on two devices."""
MIXES_DEVICES = "valid lens"
"""The original itself does not run on an NPU."""
EVERY = [(name, rewrite) for name, snippet in ALL.items() for rewrite in snippet.right]
RIGHT = [key for key in EVERY if key[0] not in {*MADE_ON_THE_HOST, MIXES_DEVICES}]
ALIKE = ("t5", "olmo")
"""Wrong as ``llama`` is: what refutes them needs no device."""
_FEW = 3
"""Wrong rewrites of a function: all of them are refuted without a device too."""
WRONG = [
    (name, what)
    for name, snippet in ALL.items()
    if name not in {MIXES_DEVICES, *ALIKE}
    for what in list(snippet.wrong)[:: -(-len(snippet.wrong) // _FEW) or 1]
]
NO_REFERENCE = """
npu = hidden_states.device
at, x = torch.zeros(4, dtype=torch.int64, device=npu), torch.randn(4, 16, device=npu)
return torch_npu.npu_mrope(at, x, x, torch.randn(10, 16, device=npu), 16)[0] * hidden_states
"""


def on_virtual_npu(jobs: list[Job], settings: Settings | None = None) -> list[Verdict]:
    try:
        find_wheels()
    except VirtualNpuError as reason:
        pytest.skip(str(reason))
    return verify(jobs, settings or Settings(Backend.VIRTUAL_NPU))


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], Verdict]:
    jobs = {key: ALL[key[0]].job(key[1]) for key in EVERY}
    jobs |= {key: ALL[key[0]].job(ALL[key[0]].wrong[key[1]]) for key in WRONG}
    jobs["repeat", "unchanged"] = REPEAT.job(REPEAT.eager)
    jobs["repeat", "on the host"] = changed(REPEAT.job(REPEAT.right[0]), on_host=True)
    jobs["llama", "crash"] = LLAMA.job("import os; os.abort()")
    return dict(zip(jobs, on_virtual_npu(list(jobs.values())), strict=True))


@pytest.mark.parametrize(("name", "rewrite"), RIGHT)
def test_a_right_rewrite_is_equivalent(
    verdicts: dict[tuple[str, str], Verdict], name: str, rewrite: str
) -> None:
    verdict = verdicts[name, rewrite]
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.on == "virtual-npu"
    assert "on a virtual A2" in verdict.ground
    assert verdict.launches is not None


@pytest.mark.parametrize(("name", "what"), WRONG)
def test_a_wrong_rewrite_is_refuted_with_a_counterexample(
    verdicts: dict[tuple[str, str], Verdict], name: str, what: str
) -> None:
    verdict = verdicts[name, what]
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.on == "virtual-npu"
    assert "def prepared(module)" in verdict.script


def test_the_launches_before_and_after_are_evidence(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    launches = verdicts["llama", LLAMA.right[0]].launches
    assert launches is not None
    assert launches.patched == ("aclnnRmsNorm",)
    assert launches.patched_backward[0] == "aclnnRmsNormGrad"
    assert len(launches.original) > 5
    assert launches.saved > 10


@pytest.mark.parametrize("name", MADE_ON_THE_HOST)
def test_a_tensor_on_the_wrong_device_is_refuted(
    verdicts: dict[tuple[str, str], Verdict], name: str
) -> None:
    verdict = verdicts[next(key for key in EVERY if key[0] == name)]
    assert verdict.status is Status.REFUTED
    assert "device" in verdict.reason
    assert "PID" not in verdict.reason


def test_an_original_that_does_not_run_on_the_device_falls_back(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    verdict = verdicts[next(key for key in EVERY if key[0] == MIXES_DEVICES)]
    assert verdict.limit
    assert verdict.reason.startswith("the device does not run the original")


def test_the_original_itself_saves_nothing(verdicts: dict[tuple[str, str], Verdict]) -> None:
    launches = verdicts["repeat", "unchanged"].launches
    assert launches is not None
    assert launches.saved == 0


def test_what_has_no_reference_falls_back_and_says_so() -> None:
    settings = Settings(Backend.VIRTUAL_NPU, fallback=Backend.REFERENCE)
    (verdict,) = on_virtual_npu([LLAMA.job(NO_REFERENCE)], settings)
    assert verdict.status is not Status.EQUIVALENT
    assert verdict.on == "reference"
    assert "; not on virtual-npu: " in verdict.ground
    assert "npu_mrope" in verdict.ground


def test_lines_for_other_devices_run_on_the_host(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    verdict = verdicts["repeat", "on the host"]
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.launches is None


def test_a_crash_is_a_limit_of_the_ground(verdicts: dict[tuple[str, str], Verdict]) -> None:
    verdict = verdicts["llama", "crash"]
    assert verdict.status is Status.NOT_VERIFIED
    assert verdict.limit
    assert "SIGABRT" in verdict.reason


def test_without_the_wheel_it_is_refused_in_one_line() -> None:
    if not survey().no_virtual_npu:
        pytest.skip("torch_npu is installed")
    assert prepare_backend(Backend.VIRTUAL_NPU, "auto", "A2") == (Backend.VIRTUAL_NPU, "")
    (verdict,) = verify(
        [REPEAT.job(REPEAT.right[0])], Settings(Backend.VIRTUAL_NPU, fallback=Backend.REFERENCE)
    )
    assert verdict.on == "reference"
    assert "not on virtual-npu: torch_npu is not installed" in verdict.ground
    with pytest.raises(BackendError, match="--on virtual-npu: torch_npu is not installed") as error:
        prepare_backend(Backend.VIRTUAL_NPU, "virtual-npu", "A2")
    assert "\n" not in error.value.message


def test_what_divides_by_no_rows_does_not_end_the_process() -> None:
    text = """import torch

def f(x: torch.Tensor, y: torch.Tensor):
    return torch.nn.functional.conv1d(x, y.unsqueeze(1), groups=x.shape[0])
"""
    new = text.replace("nn.functional.conv1d", "conv1d")
    job = Job("/user/m.py", "/user", text, new, "f", (4,), (4,), by_hand=True)
    (found,) = on_virtual_npu([job])
    assert found.status is Status.EQUIVALENT, found.reason
