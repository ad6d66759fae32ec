"""``Module Hierarchy``: the modules of a TorchScript program, which has no Python calls to show."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    import pandas as pd
    from numpy.typing import NDArray

    Rows = NDArray[np.int32]

_LINK = re.compile(r"(?<!\w)(?P<attribute>\w+)\((?P<type>[\w.]+)\)::")
_OUTERMOST, _SAME = "TOP", "SELF"


def find_hierarchies(
    operators: pd.DataFrame, modules: tuple[str, ...]
) -> tuple[Rows, tuple[str, ...]]:
    """Return the module of each operator by its own ``module`` text, -1 if none, and all modules.

    Those are ``modules`` and behind them what the texts add.
    """
    numbers = {path: number for number, path in enumerate(modules)}
    paths = [module_path(text) for text in operators["module"].cat.categories]
    known = [numbers.setdefault(path, len(numbers)) if path else -1 for path in paths]
    own = np.array([*known, -1], np.int32)[operators["module"].cat.codes]
    return own, tuple(numbers)


def module_path(hierarchy: str) -> str:
    """Return the path: ``TOP(Net)::forward.layer1(Block)::forward`` -> ``Net/layer1``."""
    links = (link.group("attribute", "type") for link in _LINK.finditer(hierarchy))
    return "/".join(
        kind if attribute == _OUTERMOST else attribute
        for attribute, kind in links
        if attribute != _SAME
    )
