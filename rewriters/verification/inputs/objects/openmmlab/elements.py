"""The data of images as ``mmengine.structures`` holds them: fields, and what is known beside."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


class BaseDataElement:
    """Fields that are attributes, ``gt.bboxes``, and such of the image: ``sample.img_shape``."""

    def __init__(self, *, metainfo: Mapping[str, object] | None = None, **held: object) -> None:
        """Hold what is given."""
        self._known: tuple[str, ...] = ()
        self.set_metainfo(metainfo or {})
        self.__dict__.update(held)

    def set_metainfo(self, metainfo: Mapping[str, object]) -> None:
        """Hold what is known of the image."""
        self._known = tuple(dict.fromkeys([*self._known, *metainfo]))
        self.__dict__.update(metainfo)

    def set_field(self, value: object, name: str, **_named: object) -> None:
        """Hold one more field."""
        self.__dict__[name] = value

    def set_data(self, held: Mapping[str, object]) -> None:
        """Hold more fields."""
        self.__dict__.update(held)

    @property
    def metainfo(self) -> dict[str, object]:
        """What is known of the image."""
        return {name: self.__dict__[name] for name in self._known}

    def metainfo_keys(self) -> list[str]:
        """Return the names of what is known of the image."""
        return list(self._known)

    def keys(self) -> list[str]:
        """Return the names of the fields."""
        return [n for n in self.__dict__ if n not in {"_known", *self._known}]

    def all_keys(self) -> list[str]:
        """Return the names of all that is held."""
        return [*self._known, *self.keys()]

    def values(self) -> list[Any]:
        """Return the fields."""
        return [self.__dict__[name] for name in self.keys()]

    def items(self) -> Iterable[tuple[str, Any]]:
        """Return the fields with their names."""
        return [*zip(self.keys(), self.values(), strict=True)]

    def get(self, name: str, default: object = None) -> Any:  # noqa: ANN401 - whatever is held
        """Return what is held under a name, if anything is."""
        return self.__dict__.get(name, default)

    def pop(self, name: str, *default: object) -> Any:  # noqa: ANN401 - same
        """Return what is held under a name, and hold it no longer."""
        self._known = tuple(n for n in self._known if n != name)
        return self.__dict__.pop(name, *default)

    def __contains__(self, name: object) -> bool:
        return name in self.all_keys()

    def new(self, **named: Any) -> BaseDataElement:  # noqa: ANN401 - same
        """Return another that holds the same."""
        return type(self)(metainfo=self.metainfo, **dict(self.items()) | named)

    clone = new

    def to(self, *given: Any, **named: Any) -> BaseDataElement:  # noqa: ANN401 - as of tensors
        """Return another whose tensors are elsewhere, or of another type."""
        return self._with(lambda value: value.to(*given, **named))

    def cpu(self) -> BaseDataElement:
        """Return another on the host."""
        return self.new()

    def detach(self) -> BaseDataElement:
        """Return another that takes no part in gradients."""
        return self._with(torch.Tensor.detach)

    def _with(self, change: Any) -> BaseDataElement:  # noqa: ANN401 - a function of tensors
        held = ((n, v, hasattr(v, "detach")) for n, v in self.items())
        return self.new(**{n: change(v) if can else v for n, v, can in held})


class InstanceData(BaseDataElement):
    """Fields with one row for each instance: selected, split and joined together."""

    def __len__(self) -> int:
        return len(self.values()[0]) if self.keys() else 0

    def __getitem__(self, at: Any) -> Any:  # noqa: ANN401 - a name, or whatever selects rows
        """Return a field, or another that holds the selected rows."""
        if isinstance(at, str):
            return self.__dict__[at]
        if isinstance(at, int):
            at = slice(at, at + 1 or None)
        return self.new(**{name: _select(value, at) for name, value in self.items()})

    @staticmethod
    def cat(several: list[InstanceData]) -> Any:  # noqa: ANN401 - of a class that inherits, maybe
        """Return the rows of all of them."""
        first = several[0]
        parts = {name: [one.__dict__[name] for one in several] for name, _ in first.items()}
        return first.new(**{n: _join(p) for n, p in parts.items()}) if several[1:] else first


def _select(value: Any, at: Any) -> Any:  # noqa: ANN401 - a tensor or a list, and any index
    if isinstance(value, torch.Tensor) or isinstance(at, slice):
        return value[at]
    numbers = at.nonzero().flatten() if getattr(at, "dtype", None) == torch.bool else at
    return [value[int(n)] for n in numbers]


def _join(parts: list[Any]) -> object:
    if isinstance(parts[0], torch.Tensor):
        return torch.cat(parts)
    return [item for part in parts for item in part]


class PixelData(BaseDataElement):
    """Fields with a number for each pixel of an image, by channels."""

    @property
    def shape(self) -> tuple[int, ...] | None:
        """How high and wide the image is."""
        return tuple(self.values()[0].shape[-2:]) if self.keys() else None


class LabelData(BaseDataElement):
    """Fields of a whole image: its class, scores of all of them."""
