"""A fixture of pytest: two functions compared, with the counterexample in the failure."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.advisor.api.verifying import Verified


@pytest.fixture(scope="session")
def assert_equivalent() -> Callable[..., Verified]:
    """Return a function that takes two functions, and the options of ``npufix.verify``.

    It fails where they differ; where nothing can be told, the test is skipped with the reason.
    """
    from npufix.advisor.api.verifying import verify

    def compare(
        old: Callable[..., object],
        new: Callable[..., object],
        **options: Any,  # noqa: ANN401 - as verify takes them
    ) -> Verified:
        __tracebackhide__ = True
        found = verify(old, new, **options)
        if found.status == "not verified":
            pytest.skip(f"npufix cannot tell: {found.verdict.reason}")
        if not found:
            pytest.fail(str(found), pytrace=False)
        return found

    return compare
