"""The real torch_npu on a machine without NPU and without CANN.

The wheel's own C++ runs, with its checks, schemas and autograd formulas. The libraries of CANN
that it needs are generated; kernels that it launches are recorded, and computed by reference
kernels on the host. What this does not show: the numerics of the real kernels, checks that CANN
makes, time.

Read: ``wheel`` (which libraries there are and which must be made), ``chips``, ``recorder``,
``loading``, ``host_memory``, ``direct_launches``, ``runtime`` (what the functions of CANN do here),
``stubs`` (make the libraries), ``operators`` (what they compute), ``device`` (all of it together).

Only in a child process::

    subprocess.run([sys.executable, ...], env=environment(os.environ))

    with virtual_npu(chip="A2") as device:   # there
        model.to("npu")(x.to("npu")).sum().backward()
        device.launches()
"""

from npufix.rewriters.verification.virtual_npu.chips import SOC, of_profile, soc_name
from npufix.rewriters.verification.virtual_npu.device import (
    VirtualDevice,
    current_device,
    environment,
    virtual_npu,
)
from npufix.rewriters.verification.virtual_npu.recorder import Launch
from npufix.rewriters.verification.virtual_npu.stubs import prepare
from npufix.rewriters.verification.virtual_npu.wheel.errors import (
    ReferenceDisagreesError,
    UncoveredLaunchError,
    VirtualNpuError,
)
from npufix.rewriters.verification.virtual_npu.wheel.wheels import Wheels, find_wheels

__all__ = [
    "SOC",
    "Launch",
    "ReferenceDisagreesError",
    "UncoveredLaunchError",
    "VirtualDevice",
    "VirtualNpuError",
    "Wheels",
    "current_device",
    "environment",
    "find_wheels",
    "of_profile",
    "prepare",
    "soc_name",
    "virtual_npu",
]
