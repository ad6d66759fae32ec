"""Whether the versions of a recorded run allow a rule."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.version import InvalidVersion, Version

if TYPE_CHECKING:
    from npufix.profiling_parsers.profile import Environment

_REQUIREMENT = re.compile(r"\s*(torch_npu|torch|CANN)\s*((?:[<>=!~]=?\s*[\w.]+\s*,?\s*)+)")


def unmet(requires: str, environment: Environment) -> str:
    """Return why a run does not allow what ``requires`` says, "" if it does or is unknown.

    ``requires`` reads ``torch_npu>=2.1`` or ``torch_npu>=2.1,<2.6; CANN>=8.0``.

    Raises:
        ValueError: ``requires`` is not written like that.

    """
    recorded = {
        "torch_npu": environment.torch_npu,
        "torch": environment.torch,
        "CANN": environment.cann,
    }
    for part in filter(str.strip, requires.split(";")):
        found = _REQUIREMENT.fullmatch(part)
        if found is None:
            raise ValueError(f"not a requirement: {part!r}")
        name, specifier = found.groups()
        try:
            allowed = SpecifierSet(specifier)
        except InvalidSpecifier as error:
            raise ValueError(f"not a requirement: {part!r}") from error
        version = _release(recorded[name])
        if version is not None and not allowed.contains(version, prereleases=True):
            return f"needs {part.strip()}, the run had {name} {recorded[name]}"
    return ""


def _release(recorded: str | None) -> Version | None:
    """Return the release that a recorded version belongs to: 8.3 for CANN's "8.3.RC1"."""
    found = re.match(r"\s*v?(\d+(?:\.\d+)*)", recorded or "")
    try:
        return Version(found[1]) if found else None
    except InvalidVersion:
        return None
