"""The reference of the configuration: keys and defaults from the code, one sentence from here."""

from __future__ import annotations

from typing import TYPE_CHECKING

from site_blocks import BlockError, table

from npufix.advisor.project import configuration as code
from npufix.advisor.project import gate_settings as settings
from npufix.advisor.project import units

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_TOP = {
    "select": "Ids or names of rules: only these. Default: all.",
    "ignore": "Ids or names of rules that are not wanted.",
    "exclude": "Patterns of files and folders to leave out, relative to the configuration file.",
    "allow": "Names of conditions that the project vouches for, as `--allow` takes them.",
    "per-file-ignores": "A table from patterns of files to the rules that are not wanted there.",
    "gate": "A table: what `npufix gate` decides by, below.",
    "findings": "A table: which findings `npufix gate` fails on, below.",
}
_GATE = {
    "baseline": "The baseline file, relative to the configuration file.",
    "tolerance": "A change up to this share of the baseline does not matter.",
    "floor": "Nor does a change below this much a step.",
    "alpha": "The chance of a false alarm of the whole gate: tests over runs are corrected for "
    "their number (Holm).",
    "min-runs": "So many runs on either side are wanted; with fewer, only large changes fail.",
    "fail-on": "What fails.",
    "on-missing-baseline": "`fail` is the exit status 3, `pass` is 0.",
    "on-different-environment": "`fail` is the exit status 3, `warn` compares all the same.",
    "metrics": "A table from metrics to a level, or to a table of level, tolerance, floor and "
    "budget (for `hot-ops`: `top`, how many).",
    "accept": "Known changes for the worse, with a date: a list of tables `metric` and `increase`, "
    "or `finding`; with `until` and `reason`.",
    "findings.fail-on": "Beginnings of ids, or names, of rules. Default: rules about code, not "
    "those about the run.",
    "findings.only-new": "Whether findings that the baseline holds do not fail.",
}
_METRICS = {
    "step-time": "The median of the steady steps.",
    "compute": "Time in which the device computes.",
    "exposed-communication": "Communication that no computation hides.",
    "peak-memory": "The most device memory that was reserved.",
    "launches": "Kernels a step.",
    "free-time": "Time in which the device does nothing.",
    "hot-ops": "The time of each of the hottest operators, by Type and shapes.",
}


def configuration() -> str:
    """Return the keys of ``[tool.npufix]``."""
    known = (*code._LISTS, *code._TABLES)  # noqa: SLF001 - what the code accepts
    _same("keys of [tool.npufix]", known, _TOP)
    return table(["Key", ""], [(f"`{name}`", _TOP[name]) for name in known])


def gate() -> str:
    """Return the keys of ``[tool.npufix.gate]`` and ``[tool.npufix.findings]``."""
    known = [
        *settings._KEYS,  # noqa: SLF001 - what the code accepts
        *(f"findings.{name}" for name in settings._FINDINGS_KEYS),  # noqa: SLF001 - same
    ]
    _same("keys of the gate", known, _GATE)
    plain = settings.GateSettings()
    defaults = {
        "tolerance": f'"{_percent(plain.tolerance)}"',
        "floor": f'"{_amount(plain.floor, "ns")}"',
        "alpha": str(plain.alpha),
        "min-runs": str(plain.min_runs),
        "fail-on": str(list(settings.FAILURES)).replace("'", '"'),
        "on-missing-baseline": f'"{plain.on_missing_baseline}"',
        "on-different-environment": f'"{plain.on_different_environment}"',
        "findings.only-new": str(plain.only_new).lower(),
    }
    rows = [
        (f"`{_where(name)}`", f"`{defaults[name]}`" if name in defaults else "", _GATE[name])
        for name in known
    ]
    return table(["Key", "Default", ""], rows)


def _where(name: str) -> str:
    return name if "." in name else f"gate.{name}"


def metrics() -> str:
    """Return the metrics of the gate with their levels."""
    _same("metrics", settings.METRICS, _METRICS)
    plain = settings.GateSettings()
    rows = [
        (
            f"`{name}`",
            _METRICS[name],
            plain.metrics[name].level,
            _percent(plain.tolerance_of(name)),
            _amount(plain.floor_of(name), unit),
        )
        for name, (unit, _) in settings.METRICS.items()
    ]
    return table(["Metric", "", "Level", "Tolerance", "Floor"], rows)


def _percent(part: float) -> str:
    return units.percent(part).replace(".0%", "%")


def _amount(value: float, unit: str) -> str:
    return units.format_amount(value, unit).replace(".0 ", " ")


def _same(what: str, known: Iterable[str], said: Mapping[str, str]) -> None:
    differ = set(known) ^ set(said)
    if differ:
        raise BlockError(f"docs/site_build/site_settings.py: {what}: {', '.join(sorted(differ))}")
