"""profiler_info*.json and profiler_metadata.json: the settings and the machine of the run."""

from __future__ import annotations

import json
import re
from typing import TYPE_CHECKING, Any

from npufix.profiling_parsers.profile import Environment, Problem

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

_METADATA = "profiler_metadata.json"


def read_environment(dump: Path) -> tuple[Environment, list[Problem]]:
    """Return what the dump says about the run; a file that is missing or broken says nothing."""
    problems: list[Problem] = []
    infos = sorted(dump.glob("profiler_info*.json"))
    info = _json_object(infos[0], problems) if infos else {}
    metadata_path = dump / _METADATA
    metadata = _json_object(metadata_path, problems) if metadata_path.exists() else {}
    common = _object(_object(info.get("config")).get("common_config"))
    experimental = _object(_object(info.get("config")).get("experimental_config"))
    distributed = _object(metadata.get("distributed_args"))
    environment = Environment(
        rank=_rank(info.get("rank_id"), infos[0].name if infos else ""),
        world_size=_integer(distributed.get("world_size")),
        torch_npu=_text(info.get("torch_npu_version")),
        cann=_text(info.get("cann_version")),
        profiler_level=_text(experimental.get("_profiler_level")),
        with_stack=_flag(common.get("with_stack")),
        record_shapes=_flag(common.get("record_shapes")),
        variables=_texts(metadata.get("ENV_VARIABLES")),
        source_sha256=_texts(metadata.get("source_sha256")),
        simulated=_text(metadata.get("simulated")),
    )
    return environment, problems


def _json_object(path: Path, problems: list[Problem]) -> Mapping[str, Any]:
    try:
        content = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as error:
        what = f"cannot be read ({error}), so the settings of the run are unknown"
        remedy = "copy the file again from the profiled machine"
        problems.append(Problem(path.name, what, remedy, damaged=True))
        return {}
    return _object(content)


def _rank(recorded: object, file_name: str) -> int | None:
    """Return the rank; a job of one process records -1 or none."""
    in_name = re.search(r"_([0-9]{1,9})\.json$", file_name)
    rank = _integer(recorded)
    if rank is None and in_name is not None:
        rank = int(in_name[1])
    return rank if rank is not None and rank >= 0 else None


def _object(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _texts(value: object) -> dict[str, str]:
    return {key: str(text) for key, text in _object(value).items()}


def _text(value: object) -> str | None:
    return value if isinstance(value, str) and value else None


def _flag(value: object) -> bool | None:
    return value if isinstance(value, bool) else None


def _integer(value: object) -> int | None:
    """Return an integer that was written as a number or, by some versions, as text."""
    if isinstance(value, str) and re.fullmatch(r"-?[0-9]{1,9}", value):
        return int(value)
    return value if isinstance(value, int) and not isinstance(value, bool) else None
