"""What stands for the base class of Lightning, where its package is not installed.

``self.save_hyperparameters()`` and ``pl.seed_everything(1)`` of an ``__init__`` do what they do
there; what a method logs is kept, so that it is compared.
"""

from __future__ import annotations

import inspect
from typing import TYPE_CHECKING, Any

import torch

from npufix.rewriters.verification.inputs.objects.placeholders import ModuleOfFiles, StandInBase

if TYPE_CHECKING:
    import types
    from collections.abc import Iterable, Mapping

_PACKAGES = frozenset({"pytorch_lightning", "lightning"})
_NO_SETTINGS = frozenset({"self", "__class__"})


class _Settings(dict[str, object]):
    def __getattr__(self, name: str) -> object:
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class LightningModule(StandInBase):
    """A module that keeps its settings and what it has logged."""

    automatic_optimization = True
    current_epoch = global_step = 0
    trainer = logger = None

    def __init__(self, *given: object, **named: object) -> None:
        """Begin with no settings, and nothing logged."""
        super().__init__(*given, **named)
        self.hparams = _Settings()
        self.logged: dict[str, object] = {}

    @property
    def device(self) -> torch.device:
        """Where its weights are."""
        return next((w.device for w in self.parameters()), torch.device("cpu"))

    def save_hyperparameters(
        self, *names: object, ignore: str | Iterable[str] = (), **_named: object
    ) -> None:
        """Keep what the ``__init__`` that calls this was given, and those of what inherits it."""
        caller, found = inspect.currentframe(), dict[str, object]()
        while (caller := caller and caller.f_back) and caller.f_locals.get("self") is self:
            found |= {n: v for n, v in caller.f_locals.items() if n in _list_given(caller)}
        wanted = [n for n in names if isinstance(n, str)] or found.keys()
        left_out = {ignore} if isinstance(ignore, str) else set(ignore)
        self.hparams.update({n: found[n] for n in wanted if n in found and n not in left_out})
        for config in names:
            held = getattr(config, "__dict__", config)
            self.hparams.update(held if isinstance(held, dict) else {})

    def log(self, name: str, value: object, *_given: object, **_named: object) -> None:
        """Keep what is logged."""
        self.logged[name] = value

    def log_dict(self, values: Mapping[str, object], *_given: object, **_named: object) -> None:
        """Keep all that is logged."""
        self.logged.update(values)

    def manual_backward(self, loss: torch.Tensor, *given: Any, **named: Any) -> None:  # noqa: ANN401 - as they are given
        """Compute gradients."""
        torch.autograd.backward(loss, *given, **named)


def _list_given(frame: types.FrameType) -> set[str]:
    code = frame.f_code
    named = code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    return set(named) - _NO_SETTINGS if code.co_name == "__init__" else set()


def _seed(seed: int | None = None, *_given: object, **_named: object) -> int:
    torch.manual_seed(seed or 0)
    return seed or 0


_KNOWN = {"LightningModule": LightningModule, "seed_everything": _seed}


def find_lightning(module: str, name: str = "") -> object:
    """Return what stands for a name of a module, or for the module; None if it is another's.

    ``find_lightning("lightning.pytorch")`` has a ``LightningModule``, and placeholders.
    """
    if module.partition(".")[0] not in _PACKAGES:
        return None
    if name and name != "pytorch":
        return _KNOWN.get(name)
    return ModuleOfFiles(module, lambda inner: find_lightning(module, inner))
