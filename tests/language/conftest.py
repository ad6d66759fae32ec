"""Whatever a test puts out in Chinese, the next one starts in English."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.reports import language

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(autouse=True)
def _english_afterwards() -> Iterator[None]:
    yield
    language.use("en")


@pytest.fixture
def chinese() -> None:
    language.use("zh")
