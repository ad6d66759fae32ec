"""profiler_info*.json, profiler_metadata.json and PROF_*/info.json*: the run and its machine."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from npufix.profiling_parsers.profile import Environment, Problem
from npufix.profiling_parsers.special_files import kind_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

_METADATA = "profiler_metadata.json"
_INFO = "profiler_info*.json"
_RAW_FOLDERS = ("device_*", "host")
_RAW_NAME = re.compile(r"info\.json(\.[0-9]{1,9})?")
_LARGEST_INFO = 1 << 24
_UNKNOWN = frozenset({"", "N/A", "not known", "unknown"})
_LARGEST = 2**31

# platform_version of info.json, as msprof names it in NPU_INFO of its own database.
_CHIPS: Mapping[int, str] = {
    0: "Ascend310",
    1: "Ascend910A",
    4: "Ascend310P",
    5: "Ascend910B",
    7: "Ascend310B",
    15: "Ascend950",
}

_Value = TypeVar("_Value", str, int)


@dataclass(frozen=True)
class _Device:
    """What the raw data of msprof says about the machine."""

    chip: str | None = None
    cann: str | None = None
    rank: int | None = None


def read_environment(dump: Path) -> tuple[Environment, list[Problem]]:
    """Return what the dump says about the run; a file that is missing or broken says nothing."""
    problems: list[Problem] = []
    metadata_path = dump / _METADATA
    metadata = _json_object(metadata_path, problems) if metadata_path.exists() else {}
    distributed = _object(metadata.get("distributed_args"))
    device = _device(dump, problems)
    said = _first(_rank(distributed.get("rank")), _rank_of_folder(dump), device.rank)
    paths = _info_paths(dump, said, problems)
    info = _json_object(paths[0], problems) if paths else {}
    common = _object(_object(info.get("config")).get("common_config"))
    experimental = _object(_object(info.get("config")).get("experimental_config"))
    recorded = _first(_rank(info.get("rank_id")), _rank_of_file(paths[0]) if paths else None)
    torch_npu = _text(info.get("torch_npu_version"))
    environment = Environment(
        rank=_first(recorded, said) if len(paths) <= 1 else None,
        world_size=_integer(distributed.get("world_size")),
        torch=_torch(torch_npu),
        torch_npu=torch_npu,
        cann=_text(info.get("cann_version")) or device.cann,
        chip=device.chip,
        profiler_level=_text(experimental.get("_profiler_level")),
        with_stack=_flag(common.get("with_stack")),
        record_shapes=_flag(common.get("record_shapes")),
        variables=_texts(metadata.get("ENV_VARIABLES")),
        source_sha256=_texts(metadata.get("source_sha256")),
        simulated=_text(metadata.get("simulated")),
    )
    return environment, problems


def _info_paths(dump: Path, rank: int | None, problems: list[Problem]) -> list[Path]:
    """Return the settings of this rank, or of all whose files were copied into its folder."""
    paths = sorted(dump.glob(_INFO))
    of_rank = [path for path in paths if rank is not None and _rank_of_file(path) == rank]
    if not of_rank and len(paths) > 1:
        what = f"is of one of {len(paths)} ranks; of which this dump is, is unknown"
        remedy = "keep only the profiler_info_*.json of this rank in the folder"
        problems.append(Problem(paths[0].name, what, remedy))
    return of_rank or paths


def _device(dump: Path, problems: list[Problem]) -> _Device:
    """Read the raw data beside the analysed files, or that of ``dump`` if it is a ``PROF_*``."""
    roots = [dump, *sorted(dump.glob("PROF_*"))]
    found = [
        _json_object(path, problems)
        for root in roots
        for folder in _RAW_FOLDERS
        for path in sorted(root.glob(f"{folder}/info.json*"))
        if _RAW_NAME.fullmatch(path.name)
    ]
    return _Device(
        chip=_common([_chip(info.get("platform_version")) for info in found]),
        cann=_common([_text(info.get("cannVersion")) for info in found]),
        rank=_common([_rank(info.get("rank_id")) for info in found]),
    )


def _json_object(path: Path, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        if kind := kind_of(path):
            raise OSError(f"it is {kind}, no file")  # noqa: TRY301 - told as any other
        with path.open("rb") as file:
            content = json.loads(file.read(_LARGEST_INFO))
    except (OSError, ValueError, RecursionError) as error:
        what = f"cannot be read ({error}), so the settings of the run are unknown"
        remedy = "copy the file again from the profiled machine"
        problems.append(Problem(path.name, what, remedy, damaged=True))
        return {}
    return _object(content)


def _chip(platform: object) -> str | None:
    number = _integer(platform)
    return None if number is None else _CHIPS.get(number)


def _torch(torch_npu: str | None) -> str | None:
    """Return the PyTorch that a torch_npu is made for: their versions begin alike."""
    version = re.match(r"[0-9]+\.[0-9]+\.[0-9]+", torch_npu or "")
    return version[0] if version is not None else None


def _rank(recorded: object) -> int | None:
    """Return the rank; a job of one process records -1 or none."""
    rank = _integer(recorded)
    return rank if rank is not None and rank >= 0 else None


def _rank_of_file(path: Path) -> int | None:
    found = re.search(r"_([0-9]{1,9})\.json$", path.name)
    return int(found[1]) if found is not None else None


def _rank_of_folder(dump: Path) -> int | None:
    """Return the rank by which a person named the folder: ``rank_3_ascend_pt``."""
    found = re.search(r"(?<![a-z])rank_?([0-9]{1,9})(?![0-9])", dump.name, re.IGNORECASE)
    return int(found[1]) if found is not None else None


def _first(*values: int | None) -> int | None:
    return next((value for value in values if value is not None), None)


def _common(values: Sequence[_Value | None]) -> _Value | None:
    """Return what all who say something agree on."""
    said = {value for value in values if value is not None}
    return said.pop() if len(said) == 1 else None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    scalars = (str, int, float)
    return {key: str(text) for key, text in _object(value).items() if isinstance(text, scalars)}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value.strip() not in _UNKNOWN else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    """Return an integer that was written as a number or, by some versions, as text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    if not isinstance(value, int) or isinstance(value, bool):
        return None
    return value if abs(value) < _LARGEST else None
