"""Which rules the versions of a run allow; unknown versions forbid nothing."""

from __future__ import annotations

import pytest

from npufix.profiling_parsers.profile import Environment
from npufix.rules.shared.recording.versions import chip_families, unmet


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
        ("torch_npu>=2.1; CANN>=8.5", "2.7.1.post1", "8.5.0", True),
    ],
)
def test_what_a_run_allows(
    requires: str, torch_npu: str | None, cann: str | None, *, allowed: bool
) -> None:
    why = unmet(requires, Environment(torch_npu=torch_npu, cann=cann))
    assert (why == "") is allowed
    assert allowed or "the run had" in why


@pytest.mark.parametrize(
    "requires",
    ["torch_npu", "numpy>=1", "torch_npu>=2.1 CANN>=8", "chip", "chip A2 A9", "chip A2, A3"],
)
def test_what_is_no_requirement_is_refused(requires: str) -> None:
    with pytest.raises(ValueError, match="not a requirement"):
        unmet(requires, Environment())


@pytest.mark.parametrize(
    ("chip", "cores", "families"),
    [
        ("Ascend910B3", (), ("A2",)),
        ("Ascend910B4-1", (), ("A2",)),
        ("Ascend910_9362", ("AI_CORE",), ("A3",)),
        ("Ascend910B", (), ("A2", "A3")),
        ("Ascend950", (), ("A5",)),
        ("Ascend910A", ("AI_CORE",), ("910A",)),
        ("Ascend910ProB", (), ("910A",)),
        ("Ascend310P3", ("AI_VECTOR_CORE",), ("310P",)),
        ("Ascend310", (), ("310",)),
        (None, ("AI_CORE", "MIX_AIC"), ("A2", "A3", "A5")),
        ("AscendX", ("MIX_AIV",), ("A2", "A3", "A5")),
        (None, ("AI_CORE", "AI_VECTOR_CORE", "AI_CPU"), ()),
        ("NVIDIA A100-SXM4-40GB", (), ()),
    ],
)
def test_the_families_of_a_chip(
    chip: str | None, cores: tuple[str, ...], families: tuple[str, ...]
) -> None:
    assert chip_families(Environment(chip=chip), cores) == families


@pytest.mark.parametrize(
    ("requires", "chip", "cores", "why"),
    [
        ("chip A2 A3", "Ascend910B3", (), ""),
        ("chip A3", "Ascend910B", (), ""),
        ("chip A2 A3", "Ascend310P3", (), "needs a chip of A2 or A3, the run had Ascend310P3"),
        ("chip A2", None, (), ""),
        ("chip A2", None, ("AI_CORE",), ""),
        (
            "chip 910A",
            None,
            ("MIX_AIC",),
            "needs a chip of 910A, the run had kernels that only A2, A3 or A5 has",
        ),
        (
            "torch_npu>=2.1; chip 910A 310P",
            "Ascend910_9391",
            (),
            "needs a chip of 910A or 310P, the run had Ascend910_9391",
        ),
    ],
)
def test_what_a_chip_allows(
    requires: str, chip: str | None, cores: tuple[str, ...], why: str
) -> None:
    assert unmet(requires, Environment(chip=chip), cores) == why


def test_every_part_that_is_not_met_is_named() -> None:
    run = Environment(torch_npu="2.0.1", cann="7.0.0", chip="Ascend910A")
    why = unmet("torch_npu>=2.1; CANN>=8.0; chip A2", run)
    assert [part.split(",")[0] for part in why.split("; ")] == [
        "needs torch_npu>=2.1",
        "needs CANN>=8.0",
        "needs a chip of A2",
    ]
