"""What a program calls: ``from npufix.advisor import apply_fused_kernels``."""

from __future__ import annotations

import atexit
import os
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from npufix.advisor.runtime.process import applying
from npufix.advisor.runtime.process.switches import Switches, from_values
from npufix.reports import language

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from torch import nn

_SILENT: set[int] = set()
"""Reports that are going to be printed already."""


def apply_fused_kernels(  # noqa: PLR0913 - one parameter a switch
    model: nn.Module | None = None,
    *,
    use_npu_fusion_attention: bool | None = None,
    use_fused_rms_norm: bool | None = None,
    use_fused_rope: bool | None = None,
    use_fused_swiglu: bool | None = None,
    disable_fused_options: bool = False,
    rules: Sequence[str] = (),
    disable: Sequence[str] = (),
    allow: Sequence[str] = (),
    on: str = "auto",
    report: bool = True,
    **by_rule: bool,
) -> Any:  # noqa: ANN401 - of a model it is another object
    """Run on fused operators what matches a rule: in modules imported earlier and from now on.

    Rules whose conditions hold are used. A switch that is ``True``, and ``rules``, vouch for what
    the rules they name leave open; ``allow`` does for single conditions, of all rules
    (``same-dtype``) or one (``NPU104:no-fully-masked-row``). Each rule can be switched by its id or
    name (``NPU201=False``, ``eager_rms_norm=False``). With ``model`` only that model changes.
    Without an NPU nothing changes, unless ``on="virtual-npu"`` says that this is one.

    What is returned has ``report()`` and ``undo()``; the report is also printed at exit.

    Raises:
        SwitchError: a switch or a condition does not exist.

    """
    switches = {
        "use_npu_fusion_attention": use_npu_fusion_attention,
        "use_fused_rms_norm": use_fused_rms_norm,
        "use_fused_rope": use_fused_rope,
        "use_fused_swiglu": use_fused_swiglu,
    }
    values: dict[str, object] = {
        **{name: value for name, value in switches.items() if value is not None},
        "disable_fused_options": disable_fused_options,
        "rules": rules,
        "disable": disable,
        "allow": allow,
        **by_rule,
    }
    said = from_values(values, "apply_fused_kernels")
    if model is not None:
        return _to_model(model, said, on)
    applied = applying.apply(said, on, project=Path.cwd())
    if report and applied.hook is not None:
        language.use(language.from_environment())
        print_at_exit(applied)
    return applied


@contextmanager
def fused_kernels(model: nn.Module, **switches: Any) -> Iterator[Any]:  # noqa: ANN401 - see there
    """Run a model on fused operators inside the block; takes what ``apply_fused_kernels`` takes."""
    applied = apply_fused_kernels(model, **switches)
    try:
        yield applied
    finally:
        applied.undo()


def _to_model(model: nn.Module, said: Switches, on: str) -> object:
    from npufix.advisor.runtime.modules.applying import apply_to_model

    return apply_to_model(model, said, on)


def print_at_exit(
    applied: applying.Applied, json_file: Path | None = None, *, quiet: bool = False
) -> None:
    """Print the report when the program ends, once, and in one of its processes."""
    if id(applied) in _SILENT or is_one_of_many():
        return
    _SILENT.add(id(applied))
    owner = os.getpid()

    def print_it() -> None:
        if os.getpid() != owner:  # a fork that ends by itself
            return
        if json_file is not None:
            _write(applied, json_file.resolve())
        if not quiet and sys.stderr is not None:
            from npufix.advisor.runtime.process.reporting import translate

            with suppress(OSError, ValueError):  # whoever reads it may have gone
                sys.stdout.flush()
            sys.stderr.write(translate(applied.report()))

    atexit.register(print_it)


def _write(applied: applying.Applied, path: Path) -> None:
    from npufix.advisor.runtime.process.reporting import to_json

    try:
        path.write_bytes(to_json(applied.summary()))
    except OSError as error:
        sys.stderr.write(f"npufix: {path}: {error.strerror}\n")


def is_one_of_many() -> bool:
    """Tell whether another process of the same job says what there is to say."""
    rank = os.environ.get("RANK") or os.environ.get("LOCAL_RANK") or "0"
    return rank != "0"
