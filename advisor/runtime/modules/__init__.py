"""Putting fused operators into a model that is built already, and taking them out again."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from npufix.advisor.runtime.modules.outcome import Changed
    from npufix.advisor.runtime.switches import Switches


def apply_to_model(model: object, said: Switches, on: str = "auto") -> Changed:
    """Replace in place what matches a rule in a model; ``undo`` of the result takes it back.

    Raises:
        UnusableModelError: the model is compiled, or it is no ``torch.nn.Module``.
        SwitchError: a switch means nothing, or an NPU was asked for and there is none.

    """
    from npufix.advisor.runtime.applying import missing, selected
    from npufix.advisor.runtime.modules.applying import change, check
    from npufix.advisor.runtime.modules.outcome import Changed
    from npufix.advisor.runtime.switches import from_environment

    checked = check(model)
    off = said.off or from_environment().off
    why_not = "it is switched off" if off else missing(on)
    return Changed(why_not) if why_not else change(checked, selected(said, Path.cwd()))
