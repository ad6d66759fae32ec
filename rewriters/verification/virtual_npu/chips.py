"""The chips that a virtual NPU may pretend to be."""

from __future__ import annotations

from types import MappingProxyType

from npufix.rewriters.verification.virtual_npu.wheel.errors import VirtualNpuError

SOC = MappingProxyType(
    {
        "A2": "Ascend910B2",
        "A3": "Ascend910_9391",
        "A5": "Ascend950PR_9589",
        "910A": "Ascend910ProB",
        "310P": "Ascend310P3",
        "310B": "Ascend310B4",
    }
)
"""What CANN calls a typical chip of each family. The keys are the names that rules use."""


_RECORDED = MappingProxyType(
    {
        "Ascend910A": "910A",
        "Ascend310P": "310P",
        "Ascend910B": "A2",
        "Ascend310B": "310B",
        "Ascend950": "A5",
    }
)
"""The platforms that a profile names."""
_FAMILIES = MappingProxyType(
    {
        "Ascend950": "A5",
        "Ascend910_93": "A3",
        "Ascend910B": "A2",
        "Ascend910": "910A",
        "Ascend310P": "310P",
        "Ascend310B": "310B",
    }
)
"""How CANN's names of the chips of each family begin, the longer ones first."""


def of_profile(platform: str | None) -> str:
    """Return the chip that a profile was recorded on; A2 if it says nothing."""
    return _RECORDED.get(platform or "", "A2")


def family(chip: str) -> str:
    """Return the name that rules use for a chip."""
    for start, name in _FAMILIES.items():
        if chip.startswith(start):
            return name
    return chip


def soc_name(chip: str) -> str:
    """Return CANN's name for a chip; one of its own names stays what it is.

    Raises:
        VirtualNpuError: no chip is called that.

    """
    if chip.startswith("Ascend"):
        return chip
    if chip not in SOC:
        known = ", ".join(SOC)
        raise VirtualNpuError(f"no chip is called {chip}", "", f"known are {known} and Ascend...")
    return SOC[chip]
