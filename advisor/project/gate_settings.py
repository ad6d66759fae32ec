"""What a project asks of the gate: ``[tool.npufix.gate]`` and ``[tool.npufix.findings]``."""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TYPE_CHECKING, Any

from npufix.advisor.project.known_names import ConfigurationError, rule_names
from npufix.advisor.project.units import AmountError, amount, share

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

LEVELS = ("error", "warn", "off")
METRICS: Mapping[str, tuple[str, str]] = {
    "step-time": ("ns", "error"),
    "compute": ("ns", "error"),
    "exposed-communication": ("ns", "error"),
    "peak-memory": ("bytes", "error"),
    "launches": ("count", "warn"),
    "free-time": ("ns", "off"),
    "hot-ops": ("ns", "warn"),
}
"""Unit and level. Few are ``error``: every further one would make a false alarm likelier."""
FLOORS = {"ns": 50_000.0, "bytes": 32.0 * 2**20, "count": 1.0}
FAILURES = ("regression", "budget", "new-finding")
_TOP = 20
_HOT_TOLERANCE = 0.10
_KEYS = (
    "baseline", "tolerance", "floor", "alpha", "fail-on", "on-missing-baseline",
    "on-different-environment", "metrics", "accept",
)  # fmt: skip
_METRIC_KEYS = ("level", "tolerance", "floor", "budget")
_ACCEPT_KEYS = ("metric", "finding", "increase", "until", "reason")
_FINDINGS_KEYS = ("fail-on", "only-new")


@dataclass(frozen=True, slots=True)
class MetricSettings:
    """What holds for one metric; None: what holds for all."""

    level: str
    tolerance: float | None = None
    floor: float | None = None
    budget: float | None = None
    top: int = _TOP
    """How many hot operators."""
    required: bool = False
    """It must have been recorded: the project names it, or nothing means much without it."""


@dataclass(frozen=True, slots=True)
class Acceptance:
    """A change for the worse that the project knows of."""

    until: dt.date
    """The last day."""
    reason: str
    metric: str = ""
    increase: float = 0.0
    finding: str = ""
    """A fingerprint, a rule, or ``RULE:path``."""

    @property
    def what(self) -> str:
        """Return how to name it."""
        return self.metric or self.finding


def _metrics() -> dict[str, MetricSettings]:
    made = {name: MetricSettings(level) for name, (_, level) in METRICS.items()}
    made["step-time"] = replace(made["step-time"], required=True)
    made["hot-ops"] = MetricSettings("warn", _HOT_TOLERANCE)
    return made


@dataclass(frozen=True, slots=True)
class GateSettings:
    """What a gate is to decide by."""

    baseline: Path | None = None
    tolerance: float = 0.05
    floor: float = FLOORS["ns"]
    alpha: float = 0.02
    fail_on: frozenset[str] = frozenset(FAILURES)
    on_missing_baseline: str = "fail"
    on_different_environment: str = "fail"
    metrics: Mapping[str, MetricSettings] = field(default_factory=_metrics)
    accept: tuple[Acceptance, ...] = ()
    findings_fail_on: tuple[str, ...] | None = None
    """Beginnings of ids and names of rules; None: those found in code, not those about a run."""
    only_new: bool = True
    where: str = ""
    """The file, for messages."""

    def tolerance_of(self, name: str) -> float:
        """Return the relative change that does not matter."""
        own = self.metrics[name].tolerance
        return self.tolerance if own is None else own

    def floor_of(self, name: str) -> float:
        """Return the absolute change that does not matter."""
        own, unit = self.metrics[name].floor, METRICS[name][0]
        return own if own is not None else self.floor if unit == "ns" else FLOORS[unit]


def read_settings(path: Path, table: Mapping[str, Any]) -> GateSettings:
    """Check the tables ``gate`` and ``findings`` of a configuration file.

    Raises:
        ConfigurationError: something in them has no meaning.

    """
    reader = _Reader(path)
    gate = reader.table("gate", table.get("gate", {}), _KEYS)
    findings = reader.table("findings", table.get("findings", {}), _FINDINGS_KEYS)
    plain = GateSettings()
    baseline = reader.text("gate.baseline", gate.get("baseline"))
    tolerance = reader.amount("gate.tolerance", gate.get("tolerance"), share)
    floor = reader.amount("gate.floor", gate.get("floor"), _times)
    return GateSettings(
        baseline=path.parent / baseline if baseline else None,
        tolerance=plain.tolerance if tolerance is None else tolerance,
        floor=plain.floor if floor is None else floor,
        alpha=reader.probability("gate.alpha", gate.get("alpha", plain.alpha)),
        fail_on=frozenset(reader.choices("gate.fail-on", gate.get("fail-on", FAILURES), FAILURES)),
        on_missing_baseline=reader.choice(
            "gate.on-missing-baseline", gate.get("on-missing-baseline", "fail"), ("fail", "pass")
        ),
        on_different_environment=reader.choice(
            "gate.on-different-environment",
            gate.get("on-different-environment", "fail"),
            ("fail", "warn"),
        ),
        metrics=reader.metrics(gate.get("metrics", {})),
        accept=reader.accepted(gate.get("accept", [])),
        findings_fail_on=reader.rules("findings.fail-on", findings.get("fail-on")),
        only_new=reader.flag("findings.only-new", findings.get("only-new", True)),
        where=str(path),
    )


def _times(value: object) -> float:
    return amount(value, "ns")


def _date(value: object) -> object:
    """Return a date that is written in quotes, too."""
    with contextlib.suppress(ValueError):
        return dt.date.fromisoformat(value) if isinstance(value, str) else value
    return value


def closest(name: str, known: Iterable[str]) -> str:
    """Return what the user may have meant, as the end of a remedy."""
    listed = list(known)
    near = difflib.get_close_matches(name, listed, 1)
    guess = f"did you mean {near[0]}? " if near else ""
    return f"{guess}there are {', '.join(listed)}"


def with_command_line(
    settings: GateSettings,
    plain: Mapping[str, Any],
    tolerance: str | None,
    floor: str | None,
    budgets: Sequence[str],
) -> GateSettings:
    """Return the settings with what the user typed, which wins.

    Raises:
        ConfigurationError: an amount has no meaning.

    """
    given = {name: value for name, value in plain.items() if value is not None}
    reader = _Reader("command line")
    metrics = dict(settings.metrics)
    if tolerance is not None:
        given["tolerance"] = reader.amount("--tolerance", tolerance, share)
        metrics = {
            name: own if name == "hot-ops" else replace(own, tolerance=None)
            for name, own in metrics.items()
        }
    if floor is not None:
        given["floor"] = reader.amount("--floor", floor, _times)
        metrics = {
            name: replace(own, floor=None) if METRICS[name][0] == "ns" else own
            for name, own in metrics.items()
        }
    for text in budgets:
        name, sign, value = text.partition("=")
        name = name.strip()
        known = [each for each in METRICS if each != "hot-ops"]
        if not sign:
            what = f"is {text!r}, not METRIC=AMOUNT"
            raise reader.wrong("--budget", what, 'write "step-time=850 ms", say')
        reader.choice("--budget", name, tuple(known))
        limit = reader.amount(f"--budget {name}", value, partial(amount, unit=METRICS[name][0]))
        metrics[name] = replace(metrics[name], budget=limit, level="error")
    return replace(settings, **given, metrics=metrics)


class _Reader:
    """Reads values of a file; what is wrong is named with file and key."""

    def __init__(self, path: Path | str) -> None:
        self._path = path

    def wrong(self, key: str, what: str, remedy: str) -> ConfigurationError:
        return ConfigurationError(f"{self._path}: {key} {what}", remedy)

    def table(self, key: str, value: object, known: Iterable[str]) -> Mapping[str, Any]:
        known = tuple(known)
        if not isinstance(value, Mapping):
            raise self.wrong(key, f"is {value!r}, not a table", f"write [tool.npufix.{key}]")
        for name in value:
            if name not in known:
                raise ConfigurationError(
                    f"{self._path}: unknown key {key}.{name}", closest(name, known)
                )
        return value

    def text(self, key: str, value: object) -> str:
        if value is not None and (not isinstance(value, str) or not value.strip()):
            raise self.wrong(key, f"is {value!r}, not a text", "write it in quotes")
        return value or ""

    def flag(self, key: str, value: object) -> bool:
        if not isinstance(value, bool):
            raise self.wrong(key, f"is {value!r}, not true or false", "write true or false")
        return value

    def count(self, key: str, value: object) -> int:
        if not isinstance(value, int) or isinstance(value, bool) or value < 1:
            raise self.wrong(key, f"is {value!r}, not a number from 1", "write 1 or more")
        return value

    def probability(self, key: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value < 1:
            raise self.wrong(key, f"is {value!r}, not between 0 and 1", "write 0.01, say")
        return float(value)

    def choice(self, key: str, value: object, known: tuple[str, ...]) -> str:
        if not isinstance(value, str) or value not in known:
            raise self.wrong(key, f"is {value!r}", closest(str(value), known))
        return value

    def choices(self, key: str, value: object, known: tuple[str, ...]) -> list[str]:
        if not isinstance(value, (list, tuple)):
            raise self.wrong(key, f"is {value!r}, not a list", f"list some of {', '.join(known)}")
        return [self.choice(key, item, known) for item in value]

    def amount(self, key: str, value: object, read: Callable[[object], float]) -> float | None:
        if value is None:
            return None
        try:
            return read(value)
        except AmountError as error:
            raise self.wrong(key, str(error), "write it so") from error

    def rules(self, key: str, value: object) -> tuple[str, ...] | None:
        if value is None:
            return None
        if not isinstance(value, list) or not all(isinstance(v, str) and v for v in value):
            raise self.wrong(key, f"is {value!r}, not a list of rules", 'write ["NPU1"], say')
        for name in value:
            if not any(known.startswith(name.lower()) for known in rule_names()):
                raise self.wrong(key, f"names no rule {name}", "see npufix rules")
        return tuple(name.lower() for name in value)

    def metrics(self, value: object) -> dict[str, MetricSettings]:
        made = _metrics()
        for name, given in self.table("gate.metrics", value, METRICS).items():
            made[name] = self._metric(name, given, made[name])
        return made

    def _metric(self, name: str, given: object, plain: MetricSettings) -> MetricSettings:
        key, unit = f"gate.metrics.{name}", METRICS[name][0]
        if isinstance(given, str):
            given = {"level": given}
        own = ("level", "top", "tolerance", "floor") if name == "hot-ops" else _METRIC_KEYS
        table = self.table(key, given, own)
        tolerance = self.amount(f"{key}.tolerance", table.get("tolerance"), share)
        read = partial(amount, unit=unit)
        level = self.choice(f"{key}.level", table.get("level", plain.level), LEVELS)
        return MetricSettings(
            level=level,
            required=level == "error" and (plain.required or "level" in table),
            tolerance=plain.tolerance if tolerance is None else tolerance,
            floor=self.amount(f"{key}.floor", table.get("floor"), read),
            budget=self.amount(f"{key}.budget", table.get("budget"), read),
            top=self.count(f"{key}.top", table.get("top", plain.top)),
        )

    def accepted(self, value: object) -> tuple[Acceptance, ...]:
        if not isinstance(value, list):
            remedy = "write [[tool.npufix.gate.accept]]"
            raise self.wrong("gate.accept", f"is {value!r}, not a list of tables", remedy)
        return tuple(self._acceptance(f"gate.accept[{n}]", item) for n, item in enumerate(value))

    def _acceptance(self, key: str, value: object) -> Acceptance:
        table = self.table(key, value, _ACCEPT_KEYS)
        metric = self.text(f"{key}.metric", table.get("metric"))
        finding = self.text(f"{key}.finding", table.get("finding"))
        if bool(metric) == bool(finding):
            raise self.wrong(key, "names no metric and no finding, or both", "name one of them")
        if metric:
            self.choice(f"{key}.metric", metric, tuple(METRICS))
        increase = self.amount(f"{key}.increase", table.get("increase"), share)
        if metric and not increase:
            raise self.wrong(key, "has no increase", 'write increase = "6%", say')
        if finding and increase is not None:
            raise self.wrong(key, "has an increase of a finding", "leave it out")
        until = _date(table.get("until"))
        if isinstance(until, dt.datetime) or not isinstance(until, dt.date):
            what = f"is {until!r}, not a date" if until is not None else "is missing"
            raise self.wrong(f"{key}.until", what, "write until = 2027-01-31, say")
        reason = self.text(f"{key}.reason", table.get("reason"))
        if not reason:
            raise self.wrong(f"{key}.reason", "is missing", "say why it is accepted")
        return Acceptance(until, reason, metric, increase or 0.0, finding)
