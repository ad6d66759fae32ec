"""The ground ``npu`` where there is none: what its child is told, and what its failures say."""

from __future__ import annotations

import pytest

from npufix.rewriters.verification.calls.device_failures import find_failure
from npufix.rewriters.verification.workers.backends import (
    Backend,
    child_environment,
    choose_backend,
)
from npufix.rewriters.verification.workers.machine import Machine

CANN = {
    "ASCEND_HOME_PATH": "/usr/local/Ascend/latest",
    "ASCEND_RT_VISIBLE_DEVICES": "3",
    "LD_LIBRARY_PATH": "/usr/local/Ascend/latest/lib64",
    "TBE_IMPL_PATH": "/usr/local/Ascend/tbe",
    "PYTORCH_NPU_ALLOC_CONF": "expandable_segments:True",
}
HOME = "/home/of/child"
OTHERS = {"HF_TOKEN": "x", "ASCEND_API_TOKEN": "x", "https_proxy": "x", "AWS_SECRET": "x"}


def test_the_child_knows_of_cann_and_of_no_secret() -> None:
    given = child_environment(Backend.NPU, {**CANN, **OTHERS}, HOME)
    assert CANN.items() <= given.items()
    assert not OTHERS.keys() & given.keys()
    assert given["TORCH_DEVICE_BACKEND_AUTOLOAD"] == "0"
    assert not CANN.keys() & child_environment(Backend.REFERENCE, CANN, HOME).keys() - {
        "LD_LIBRARY_PATH"
    }


def test_a_machine_with_a_device_verifies_on_it() -> None:
    machine = Machine(
        "3.11", "Linux x86_64", torch="2.7.1", torch_npu="2.7.1", cann="/c", cann_loaded=True
    )
    assert choose_backend(machine) is not Backend.NPU
    with_devices = Machine(
        "3.11",
        "Linux x86_64",
        torch="2.7.1",
        torch_npu="2.7.1",
        cann="/c",
        cann_loaded=True,
        devices=8,
    )
    assert choose_backend(with_devices) is Backend.NPU


@pytest.mark.parametrize(
    ("error", "what", "breaks"),
    [
        ("RuntimeError: NPU out of memory. Tried to allocate 20.00 GiB", "memory", False),
        ("NPU function error: aclrtSynchronizeStream, error code is 507015", "AI Core", True),
        ("The vector core exception, 507035", "AI Core", True),
        ("error code is 507018[Error]: aicpu exception", "AI CPU", True),
        ("aclrtSetDevice(device), error code is 207005", "busy", True),
        ("error code is 107001, Invalid device ID", "busy", True),
        ("error code is 507899, driver error:internal error", "driver", True),
    ],
)
def test_a_failure_of_the_device_has_a_remedy(error: str, what: str, breaks: bool) -> None:  # noqa: FBT001
    found = find_failure(error)
    assert found is not None
    assert what in found.what
    assert found.breaks is breaks
    assert found.remedy


@pytest.mark.parametrize(
    "error",
    [
        "RuntimeError: The size of tensor a (3) must match the size of tensor b (4)",
        "TypeError: npu_rms_norm() got an unexpected keyword argument 'eps'",
        "RuntimeError: call aclnnRmsNorm failed, error code is 161002",
    ],
)
def test_what_the_code_does_wrong_is_no_failure_of_the_device(error: str) -> None:
    assert find_failure(error) is None


def test_the_first_device_that_works_is_taken() -> None:
    pytest.importorskip("torch")
    from npufix.rewriters.verification.calls.device import NoDeviceError, _free_device

    class Busy:
        @staticmethod
        def device_count() -> int:
            return 2

        @staticmethod
        def set_device(index: int) -> None:
            raise RuntimeError(f"aclrtSetDevice({index}), error code is 207005")

    with pytest.raises(NoDeviceError, match="npu:1: the device is busy") as error:
        _free_device(Busy)
    assert "ASCEND_RT_VISIBLE_DEVICES" in str(error.value)
