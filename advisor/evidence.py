"""What the profile says about each line of the user's source."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import pandas as pd

from npufix.rewriters.recorded_facts import RecordedCall

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from npufix.profiling_parsers.profile import CallSite, Profile

_NOT_TENSORS = frozenset({"", "None", "Scalar", "ScalarList", "TensorList", "Device", "str"})
# Folders of code that the user did not write.
_LIBRARY_MARKS = ("/site-packages/", "/dist-packages/", "/lib/python", "<")


@dataclass(frozen=True)
class Evidence:
    """Kernels and operator calls of a profile with the line of the user that asked for them."""

    kernels: pd.DataFrame
    """The compute kernels, with ``path`` (str, "" unknown), ``line`` (int64), ``function``."""
    calls: pd.DataFrame
    """One row per distinct (path, line, name, input_dims, input_types), with ``count``."""
    steps: int
    """Number of steps that the kernels belong to, at least one."""

    def recorded(self, path: str) -> dict[int, list[RecordedCall]]:
        """Return the operator calls of a file by line."""
        found: dict[int, list[RecordedCall]] = {}
        rows = self.calls[self.calls["path"] == path]
        for line, name, dims, types in zip(
            rows["line"], rows["name"], rows["input_dims"], rows["input_types"], strict=True
        ):
            found.setdefault(int(line), []).append(_call(str(name), str(dims), str(types)))
        return found

    def at(self, path: str, lines: frozenset[int]) -> pd.DataFrame:
        """Return the compute kernels that these lines asked for."""
        frame = self.kernels
        return frame[(frame["path"] == path) & frame["line"].isin(list(lines))]

    def executions(self, path: str, line: int, lines: frozenset[int], names: set[str]) -> int:
        """Return how often a place ran: the calls of its operator over all recorded steps."""
        rows = self.calls[(self.calls["path"] == path) & self.calls["name"].isin(list(names))]
        exact = int(rows.loc[rows["line"] == line, "count"].sum())
        return exact or int(rows.loc[rows["line"].isin(list(lines)), "count"].sum())


def gather_evidence(profile: Profile, locate: Callable[[CallSite], str | None]) -> Evidence:
    """Lead kernels and calls to the innermost frame that ``locate`` knows a path for."""
    sites = [_user_frame(stack, locate) for stack in profile.stacks]
    paths = np.array(["", *(path for path, _, _ in sites)], dtype=object)
    lines = np.array([0, *(line for _, line, _ in sites)], dtype=np.int64)
    functions = np.array(["", *(function for _, _, function in sites)], dtype=object)
    kernels = profile.kernels[~profile.kernels["communication"].to_numpy(dtype=bool)]
    where = kernels["stack"].to_numpy() + 1
    kernels = kernels.assign(path=paths[where], line=lines[where], function=functions[where])
    ops = profile.host_ops
    at = ops["stack"].to_numpy() + 1 if len(ops) else np.zeros(0, dtype=np.int64)
    calls = pd.DataFrame(
        {
            "path": paths[at],
            "line": lines[at],
            "name": ops["name"].astype(str).to_numpy(),
            "input_dims": ops["input_dims"].astype(str).to_numpy(),
            "input_types": ops["input_types"].astype(str).to_numpy(),
        }
    )
    calls = calls[calls["path"] != ""]
    keys = ["path", "line", "name", "input_dims", "input_types"]
    grouped = calls.groupby(keys, sort=True, observed=True).size().rename("count").reset_index()
    return Evidence(kernels, grouped, max(1, int(profile.kernels["step"].nunique())))


def is_user_code(site: CallSite) -> bool:
    """Tell whether a frame looks like the user's own code, for want of the source."""
    path = site.path.replace("\\", "/")
    return not path.startswith("<") and not any(mark in path for mark in _LIBRARY_MARKS)


def _user_frame(
    stack: tuple[CallSite, ...], locate: Callable[[CallSite], str | None]
) -> tuple[str, int, str]:
    for site in stack:
        path = locate(site)
        if path is not None:
            return path, site.line, site.function
    return "", 0, ""


def locator(mapped: Mapping[str, str]) -> Callable[[CallSite], str | None]:
    """Return a function from a frame to a file of the source tree."""
    return lambda site: mapped.get(site.path)


def user_path(site: CallSite) -> str | None:
    """Return the recorded path of a frame of the user, ``None`` for a library."""
    return site.path if is_user_code(site) else None


def _call(name: str, dims: str, types: str) -> RecordedCall:
    kinds = tuple(part.strip() for part in types.split(";"))
    shapes = [part.strip() for part in dims.split(";")]
    shapes += [""] * (len(kinds) - len(shapes))
    return RecordedCall(
        name,
        tuple(
            None if kind in _NOT_TENSORS else _dims(shape)
            for kind, shape in zip(kinds, shapes, strict=False)
        ),
        kinds,
    )


def _dims(text: str) -> tuple[int, ...] | None:
    try:
        return tuple(int(part) for part in text.split(",")) if text else ()
    except ValueError:
        return None
