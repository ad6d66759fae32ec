"""Whether the versions and the chip of a recorded run allow a rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from collections.abc import Collection

    from npufix.profiling_parsers.profile import Environment

_REQUIREMENT = re.compile(r"\s*(torch_npu|torch|CANN)\s*((?:[<>=!~]=?\s*[\w.]+\s*,?\s*)+)")
_CHIPS = re.compile(r"\s*chip((?:\s+\w+)+)\s*")

# The generation of a chip by its recorded name. Raw data of msprof name A2 and A3 alike, without
# the number of the variant.
_FAMILIES = (
    (r"Ascend910B", ("A2", "A3")),
    (r"Ascend910B[0-9][\w-]*", ("A2",)),
    (r"Ascend910_93\w*", ("A3",)),
    (r"Ascend(950\w*|910_95\w*)", ("A5",)),
    (r"Ascend910(A|Pro\w*|Premium\w*)?", ("910A",)),
    (r"Ascend310P\w*", ("310P",)),
    (r"Ascend310B\w*", ("310B",)),
    (r"Ascend310", ("310",)),
)
CHIPS = ("310", "310B", "310P", "910A", "A2", "A3", "A5")
"""What ``requires`` may name: Atlas A2 and A3, A5 (950), the training series 910A before them."""
_MIXED_CORES = frozenset({"MIX_AIC", "MIX_AIV"})
_WITH_MIXED_CORES = ("A2", "A3", "A5")


def unmet(requires: str, environment: Environment, cores: Collection[str] = ()) -> str:
    """Return why a run does not allow what ``requires`` says, "" if it does or is unknown.

    ``requires`` reads ``torch_npu>=2.1`` or ``torch_npu>=2.1,<2.6; CANN>=8.0; chip A2 A3``;
    ``cores`` are the values of ``core`` in ``Profile.kernels``, which tell more about the chip.

    Raises:
        ValueError: ``requires`` is not written like that.

    """
    found = (_unmet(part, environment, cores) for part in filter(str.strip, requires.split(";")))
    return "; ".join(why for why in list(found) if why)


def chip_families(environment: Environment, cores: Collection[str] = ()) -> tuple[str, ...]:
    """Return the generations that the chip of a run may be of, none if nothing tells.

    Kernels that use the cube and the vector cores at once exist only where these are apart, from
    Atlas A2 on. ``AI_VECTOR_CORE`` alone does not tell, a 310P has such cores too, and ``AI_CORE``
    is every chip.
    """
    for pattern, families in _FAMILIES:
        if environment.chip is not None and re.fullmatch(pattern, environment.chip.strip()):
            return families
    return _WITH_MIXED_CORES if _MIXED_CORES.intersection(cores) else ()


def _unmet(part: str, environment: Environment, cores: Collection[str]) -> str:
    chips = _CHIPS.fullmatch(part)
    if chips is not None:
        return _other_chip(chips[1].split(), environment, cores)
    found = _REQUIREMENT.fullmatch(part)
    if found is None:
        raise ValueError(f"not a requirement: {part!r}")
    name, specifier = found.groups()
    try:
        allowed = SpecifierSet(specifier)
    except InvalidSpecifier as error:
        raise ValueError(f"not a requirement: {part!r}") from error
    recorded = {
        "torch_npu": environment.torch_npu,
        "torch": environment.torch,
        "CANN": environment.cann,
    }[name]
    version = _release(recorded)
    if version is None or allowed.contains(version, prereleases=True):
        return ""
    return f"needs {part.strip()}, the run had {name} {recorded}"


def _other_chip(wanted: list[str], environment: Environment, cores: Collection[str]) -> str:
    unknown = sorted(set(wanted) - set(CHIPS))
    if unknown:
        raise ValueError(f"not a requirement: no chip is called {unknown[0]!r}")
    own = chip_families(environment, cores)
    if not own or set(own) & set(wanted):
        return ""
    had = environment.chip or f"kernels that only {_format_versions(own)} has"
    return f"needs a chip of {_format_versions(wanted)}, the run had {had}"


def _format_versions(names: Collection[str]) -> str:
    *others, last = names
    return f"{', '.join(others)} or {last}" if others else last


def _release(recorded: str | None) -> Version | None:
    """Return the release that a recorded version belongs to: 8.3 for CANN's "8.3.RC1"."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", recorded or "")
    try:
        return Version(found[1]) if found else None
    except InvalidVersion:
        return None
