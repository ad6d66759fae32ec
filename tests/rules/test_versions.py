"""Which rules the versions of a run allow; unknown versions forbid nothing."""

from __future__ import annotations

import pytest

from npufix.profiling_parsers.profile import Environment
from npufix.rules.registry import every_rule
from npufix.rules.versions import unmet


@pytest.mark.parametrize(
    ("requires", "torch_npu", "cann", "allowed"),
    [
        ("torch_npu>=2.1", "2.7.1", None, True),
        ("torch_npu>=2.1", "2.0.1.post4", None, False),
        ("torch_npu>=2.1,<2.6", "2.6.0", None, False),
        ("torch_npu>=2.1; CANN>=8.0", "2.7.1", "8.3.RC1", True),
        ("torch_npu>=2.1; CANN>=8.5", "2.7.1", "8.3.RC1", False),
        ("torch_npu>=2.1", None, None, True),
        ("torch_npu>=2.1", "unreadable", None, True),
        ("CANN>=8.0", None, "V100R001C21", True),
        ("", "1.11", "6.0", True),
    ],
)
def test_what_a_run_allows(
    requires: str, torch_npu: str | None, cann: str | None, *, allowed: bool
) -> None:
    why = unmet(requires, Environment(torch_npu=torch_npu, cann=cann))
    assert (why == "") is allowed
    assert allowed or "the run had" in why


@pytest.mark.parametrize("requires", ["torch_npu", "numpy>=1", "torch_npu>=2.1 CANN>=8"])
def test_what_is_no_requirement_is_refused(requires: str) -> None:
    with pytest.raises(ValueError, match="not a requirement"):
        unmet(requires, Environment())


def test_every_rule_says_what_it_requires_in_that_way() -> None:
    for rule in every_rule():
        assert unmet(rule.requires, Environment()) == ""
