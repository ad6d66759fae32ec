"""What a db export itself says about the machine and the run."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from npufix.profiling_parsers.database.query import Query

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from npufix.profiling_parsers.database.tables import Database
    from npufix.profiling_parsers.profile import Environment

CHIPS, RANKS, METADATA = "NPU_INFO", "RANK_DEVICE_MAP", "META_DATA"
_RANKS = Query(RANKS, {"rank": ("rankId",), "device": ("deviceId",)}, required=("rank", "device"))
_METADATA = {"name": ("name",), "value": ("value",)}


def complete_environment(
    environment: Environment, database: Database, devices: NDArray[np.int32]
) -> Environment:
    """Add what the JSON files beside the database do not say; ``devices`` has one per kernel."""
    used = devices[devices >= 0]
    device = int(np.bincount(used).argmax()) if len(used) and used.max() < len(used) else -1
    device = int(used[0]) if device < 0 and len(used) else device
    stated = read_metadata(database)
    distributed = stated.get("distributed_args")
    world = distributed.get("world_size") if isinstance(distributed, dict) else None
    return replace(
        environment,
        rank=environment.rank if environment.rank is not None else _rank(database, device),
        world_size=environment.world_size or (world if type(world) is int else None),
        torch=environment.torch or _text(stated.get("torch_version")),
        torch_npu=environment.torch_npu or _text(stated.get("torch_npu_version")),
        cann=environment.cann or _text(stated.get("cann_version")),
        chip=environment.chip or _chip(database, device),
        variables=environment.variables or _variables(stated.get("ENV_VARIABLES")),
    )


def _chip(database: Database, device: int) -> str | None:
    """Return the name of the device, or that of all devices if they are alike."""
    names = database.texts(CHIPS, "name")
    alike = {name.strip() for name in names if name.strip()}
    return names[device].strip() or (alike.pop() if len(alike) == 1 else None)


def _rank(database: Database, device: int) -> int | None:
    """Return the rank of the device; a job of one process records -1."""
    ranks = database.columns(_RANKS)
    own = ranks["rank"][(ranks["device"] == device) | (len(ranks["rank"]) == 1)]
    return int(own[0]) if len(own) and own[0] >= 0 else None


def read_metadata(database: Database) -> Mapping[str, Any]:
    """Return the settings of the run, of which each is JSON or a bare text."""
    return {name: _parse(value) for name, value in database.values(METADATA, _METADATA, "TEXT")}


def _parse(value: str | None) -> object:
    try:
        return json.loads(value or "null")
    except (ValueError, RecursionError):
        return value


def _variables(stated: object) -> Mapping[str, str]:
    return {key: str(value) for key, value in stated.items()} if isinstance(stated, dict) else {}


def _text(stated: object) -> str | None:
    return stated if isinstance(stated, str) and stated else None
