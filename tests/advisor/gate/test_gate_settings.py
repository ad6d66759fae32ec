"""What a project asks of the gate is understood, or refused with file, key and what is allowed."""

from __future__ import annotations

import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from npufix.advisor.project.configuration import read_configuration
from npufix.advisor.project.gate_settings import GateSettings, with_command_line
from npufix.advisor.project.known_names import ConfigurationError
from npufix.advisor.project.units import AmountError, amount, share

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

ALL = """
[gate]
baseline = "perf/baseline.json"
tolerance = "4%"
floor = "0.1 ms"
alpha = 0.05
fail-on = ["regression"]
on-missing-baseline = "pass"
on-different-environment = "warn"
[gate.metrics]
step-time = { level = "error", tolerance = "3%", budget = "850 ms" }
peak-memory = { budget = "58 GiB", floor = "1 GiB" }
launches = "off"
hot-ops = { level = "error", top = 5 }
[[gate.accept]]
metric = "step-time"
increase = "6%"
until = 2027-01-31
reason = "rolled back, #123"
[[gate.accept]]
finding = "NPU104:model/mlp.py"
until = "2027-01-31"
reason = "known"
[findings]
fail-on = ["NPU1", "eager-rms-norm"]
only-new = false
"""


def settings_of(folder: Path, text: str) -> GateSettings:
    (folder / "npufix.toml").write_text(text, encoding="utf-8")
    settings = read_configuration(folder).gate
    assert settings is not None
    return settings


def test_every_key_is_read(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, ALL)
    assert settings.baseline == tmp_path / "perf/baseline.json"
    assert (settings.tolerance, settings.floor, settings.alpha) == (0.04, 100_000, 0.05)
    assert settings.tolerance_of("step-time") == 0.03
    assert settings.tolerance_of("compute") == 0.04
    assert settings.metrics["step-time"].budget == 850e6
    assert settings.floor_of("peak-memory") == 2**30
    assert settings.metrics["launches"].level == "off"
    assert settings.metrics["hot-ops"].top == 5
    assert [entry.what for entry in settings.accept] == ["step-time", "NPU104:model/mlp.py"]
    assert settings.accept[1].until == dt.date(2027, 1, 31)
    assert settings.findings_fail_on == ("npu1", "eager-rms-norm")
    assert not settings.only_new


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('[gate]\ntolerence = "5%"', "unknown key gate.tolerence -- did you mean tolerance?"),
        ("[gate]\ntolerance = 5", "gate.tolerance is 5, not a percentage"),
        ('[gate]\nfloor = "50 MiB"', "gate.floor is '50 MiB', not an amount like"),
        ("[gate]\nalpha = 2", "gate.alpha is 2, not between 0 and 1"),
        ('[gate]\nfail-on = ["regresion"]', "did you mean regression?"),
        ('[gate.metrics]\nstep-tim = "off"', "did you mean step-time?"),
        ('[gate.metrics]\nstep-time = "eror"', "gate.metrics.step-time.level is 'eror' -- did"),
        ('[gate.metrics.peak-memory]\nbudget = "850 ms"', "gate.metrics.peak-memory.budget is"),
        ("[gate.metrics.step-time]\ntop = 5", "unknown key gate.metrics.step-time.top"),
        ('[[gate.accept]]\nreason = "x"', "gate.accept[0] names no metric and no finding"),
        (
            '[[gate.accept]]\nmetric = "compute"\nincrease = "6%"\nreason = "x"',
            "gate.accept[0].until is missing -- write until = 2027-01-31",
        ),
        (
            '[[gate.accept]]\nmetric = "compute"\nuntil = 2027-01-31\nreason = "x"',
            "gate.accept[0] has no increase",
        ),
        ('[findings]\nfail-on = ["NPX"]', "findings.fail-on names no rule NPX"),
        ("gate = 3", "gate is 3, not a table -- write [tool.npufix.gate]"),
    ],
)
def test_what_has_no_meaning_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(ConfigurationError) as error:
        settings_of(tmp_path, text)
    full = f"{error.value.message} -- {error.value.remedy}"
    assert full.startswith(f"{tmp_path / 'npufix.toml'}: ")
    assert said in full


def test_the_command_line_wins(tmp_path: Path) -> None:
    settings = settings_of(tmp_path, ALL)
    typed = with_command_line(settings, {}, "7%", "2 ms", ["free-time=9 ms"])
    assert typed.tolerance_of("step-time") == 0.07
    assert typed.floor_of("compute") == 2e6
    assert (typed.metrics["free-time"].budget, typed.metrics["free-time"].level) == (9e6, "error")
    with pytest.raises(ConfigurationError) as error:
        with_command_line(settings, {}, None, None, ["step_time=9 ms"])
    assert "did you mean step-time?" in error.value.remedy


@settings(max_examples=40)
@given(number=st.integers(0, 10**6), unit=st.sampled_from(["ns", "us", "ms", "s"]))
def test_an_amount_is_what_it_says(number: int, unit: str) -> None:
    factor = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9}[unit]
    assert amount(f"{number} {unit}", "ns") == amount(f" {number}{unit} ", "ns") == number * factor
    with pytest.raises(AmountError):
        amount(f"{number} {unit}", "bytes")


@settings(max_examples=40)
@given(text=st.text(max_size=8), read=st.sampled_from([share, lambda t: amount(t, "bytes")]))
def test_any_text_is_an_amount_or_refused(text: str, read: Callable[[str], float]) -> None:
    with contextlib.suppress(AmountError):
        assert read(text) >= 0
