"""Models as users write them: decorators, super(), private and static methods, helpers."""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F  # noqa: N812 - the field's name

WIDTH = 8


def scaled(factor: float) -> Any:
    def decorate(method: Any) -> Any:
        @functools.wraps(method)
        def wrapper(self: nn.Module, *args: Any) -> Any:
            return method(self, *args) * factor

        return wrapper

    return decorate


class Opaque:
    """A decorator that does not show what it calls."""

    def __init__(self, method: Any) -> None:
        self.method = method

    def __get__(self, owner: Any, cls: type) -> Any:
        return functools.partial(self.method, owner)

    def __call__(self, owner: nn.Module, x: torch.Tensor) -> torch.Tensor:
        return self.method(owner, x)


class Norm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH) + 0.5)
        self.eps = 1e-6

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.eps)
        return self.weight * wide.to(x.dtype)


class Decorated(Norm):
    @scaled(2.0)
    @torch.no_grad()
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.eps)
        return self.weight * wide.to(x.dtype)


class Hidden(Norm):
    @Opaque
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        wide = x.to(torch.float32)
        variance = wide.pow(2).mean(-1, keepdim=True)
        wide = wide * torch.rsqrt(variance + self.eps)
        return self.weight * wide.to(x.dtype)


class Derived(Norm):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) + x


def swiglu(x: torch.Tensor) -> torch.Tensor:
    gate, up = x.chunk(2, dim=-1)
    return F.silu(gate) * up


class Mixed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.rand(WIDTH))

    def __twice(self, x: torch.Tensor) -> torch.Tensor:
        return x * 2

    @staticmethod
    def gated(x: torch.Tensor) -> torch.Tensor:
        gate, up = x.chunk(2, dim=-1)
        return F.silu(gate) * up

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        super().train(self.training)
        parts = [swiglu(x), self.gated(x)]
        return self.__twice(torch.cat(parts, dim=-1)) * self.weight


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = Norm(), Norm()
        self.decorated, self.hidden, self.derived = Decorated(), Hidden(), Derived()
        self.mixed = Mixed()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.mixed(self.second(self.first(x))) + self.decorated(x)
        return self.derived(self.hidden(x))


class Tables(nn.Module):
    def __init__(self, scaling: float) -> None:
        super().__init__()
        self.scaling = scaling
        angles = torch.arange(6.0)[:, None] * torch.rand(1, WIDTH)
        self.register_buffer("cos_kept", angles.cos())
        self.register_buffer("sin_kept", angles.sin())

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        length = x.shape[-2]
        return self.cos_kept[:length] * self.scaling, self.sin_kept[:length] * self.scaling


class Rotated(nn.Module):
    def __init__(self, scaling: float = 1.0) -> None:
        super().__init__()
        self.tables = Tables(scaling)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        cos, sin = self.tables(x)
        return rotate(x, cos, sin)


def rotate(x: torch.Tensor, cos: torch.Tensor, sin: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin
