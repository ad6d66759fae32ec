"""The real torch_npu on a machine without NPU and without CANN.

The wheel's own C++ runs, with its checks, schemas and autograd formulas. The libraries of CANN
that it needs are generated; kernels that it launches are recorded, and computed by reference
kernels on the host. What this does not show: the numerics of the real kernels, checks that CANN
makes, time.

Only in a child process::

    subprocess.run([sys.executable, ...], env=environment(os.environ))

    with virtual_npu(chip="A2") as device:   # there
        model.to("npu")(x.to("npu")).sum().backward()
        device.launches()
"""

from npufix.rewriters.verification.virtual_npu.chips import SOC, of_profile, soc_name
from npufix.rewriters.verification.virtual_npu.device import (
    VirtualDevice,
    environment,
    started,
    virtual_npu,
)
from npufix.rewriters.verification.virtual_npu.errors import (
    ReferenceDisagreesError,
    UncoveredLaunchError,
    VirtualNpuError,
)
from npufix.rewriters.verification.virtual_npu.recorder import Launch
from npufix.rewriters.verification.virtual_npu.stubs import prepare
from npufix.rewriters.verification.virtual_npu.wheel.wheels import Wheels, installed

__all__ = [
    "SOC",
    "Launch",
    "ReferenceDisagreesError",
    "UncoveredLaunchError",
    "VirtualDevice",
    "VirtualNpuError",
    "Wheels",
    "environment",
    "installed",
    "of_profile",
    "prepare",
    "soc_name",
    "started",
    "virtual_npu",
]
