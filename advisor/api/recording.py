"""A profiling dump in a program or a notebook."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.advisor.api.showing import Shown, frame

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pandas as pd

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.advisor.project.source_tree import SourceTree
    from npufix.reports.comparison import Comparison
    from npufix.reports.data.tables import Table
    from npufix.reports.prediction import Forecast, Prediction
    from npufix.reports.report import Report


class Recording(Shown):
    """A diagnosed dump: tables of what a step spends its time on, and findings.

    Columns ``*_us`` are microseconds, ``share*`` are 0..1. Calls and totals are over all recorded
    steps. A table is empty where the dump holds nothing of the kind.
    """

    def __init__(self, dump: Path, diagnosis: Diagnosis, tree: SourceTree | None) -> None:
        """``load`` makes one."""
        self._dump, self._diagnosis, self._tree = dump, diagnosis, tree
        self._result = diagnosis.report

    @property
    def report(self) -> Report:
        """The whole report, as ``npufix diagnose --json`` writes it."""
        return self._diagnosis.report

    @cached_property
    def _tables(self) -> list[Table]:
        from npufix.advisor.diagnose.step_rows import step_rows
        from npufix.reports.data.tables import tables_of

        return tables_of(self.report, step_rows(self._diagnosis))

    @property
    def steps(self) -> pd.DataFrame:
        """One row a step: how long it computes, communicates and idles."""
        return frame(self._tables, "steps")

    @property
    def operators(self) -> pd.DataFrame:
        """One row a Type of kernel, the one that takes most time first."""
        return frame(self._tables, "operators")

    @property
    def shapes(self) -> pd.DataFrame:
        """One row a Type with the shapes of its inputs."""
        return frame(self._tables, "shapes")

    @property
    def lines(self) -> pd.DataFrame:
        """One row a line of the program, with the time of the kernels that it asked for."""
        return frame(self._tables, "lines")

    @property
    def modules(self) -> pd.DataFrame:
        """One row an nn.Module."""
        return frame(self._tables, "modules")

    @property
    def collectives(self) -> pd.DataFrame:
        """One row a collective: how long it moves data, waits for other ranks, and idles."""
        return frame(self._tables, "collectives")

    @property
    def ranks(self) -> pd.DataFrame:
        """One row a rank, where the dump holds several."""
        return frame(self._tables, "ranks")

    @property
    def findings(self) -> pd.DataFrame:
        """One row a finding, numbered as on the terminal."""
        return frame(self._tables, "findings")

    @property
    def kernels(self) -> pd.DataFrame:
        """One row a kernel and collective, with the line that asked for it.

        Here times are exact: ``start_ns`` (since the epoch), ``duration_ns``.
        """
        evidence = self._diagnosis.evidence
        if evidence is None:
            raise ValueError("a recording has kernels")
        return evidence.kernels.copy()

    def what_if(self, *rules: str, without: bool = False) -> Predicted:
        """Predict the step with the changes of some rules: ``run.what_if("NPU101", "NPU103")``.

        With ``without``, of all findings but theirs.

        Raises:
            ValueError: no rule is named, or there is none of that id or name.

        """
        from npufix.advisor.predict.what_if import Asked
        from npufix.advisor.project.known_names import likely_rule, rule_names

        for name in rules:
            if name.lower() not in rule_names():
                hint = likely_rule(name)
                raise ValueError(f"no rule {name}; see npufix rules.{hint}")
        ask = self._diagnosis.ask
        if not rules or ask is None:
            raise ValueError("name at least one rule: what_if('NPU101')")
        return Predicted(ask(asked=Asked(rules, without)).forecast)

    def compare(self, after: Recording) -> Compared:
        """Say what makes another run differ from this one, ``after`` being the newer."""
        from npufix.advisor.compare.comparison import compare
        from npufix.advisor.compare.side import run_of_dump

        runs = (run_of_dump(one._dump, one._diagnosis, one._tree) for one in (self, after))  # noqa: SLF001 - of the same class
        return Compared(compare(*runs))

    def _repr_html_(self) -> str:
        """Return the first screen for a notebook."""
        from npufix.reports.html.notebook import to_cell

        return to_cell(self.report)


class Predicted(Shown):
    """The step after some changes, as replaying the recording predicts it."""

    def __init__(self, forecast: Forecast | None) -> None:
        """``Recording.what_if`` makes one."""
        self._result = forecast

    @property
    def prediction(self) -> Prediction | None:
        """The step in nanoseconds and its interval; ``None`` where nothing can be predicted."""
        question = self._result.question if self._result else None
        return question.answer if question else None

    def __str__(self) -> str:
        """Return the sentence that answers."""
        from npufix.reports.language import tr
        from npufix.reports.wording.prediction import forecast_summary

        said = [*forecast_summary(self._result)]
        return "\n".join(map(tr, said or ["nothing can be predicted from this recording"]))

    def _headline(self) -> str:
        return " ".join(str(self).splitlines())


class Compared(Shown):
    """What differs between two runs."""

    def __init__(self, report: Comparison) -> None:
        """``Recording.compare`` makes one."""
        self._result = report

    @property
    def report(self) -> Comparison:
        """The whole comparison, as ``npufix compare --json`` writes it."""
        report: Comparison = self._result
        return report


def load(
    dump: str | Path,
    source: str | Path | None = None,
    *,
    rank: int | None = None,
    path_map: Mapping[str, str] | None = None,
) -> Recording:
    """Read a profiling dump and diagnose it.

    ``dump`` is what ``npufix diagnose`` takes: a folder ``*_ascend_pt``, ``PROF_*`` or one above
    it, a trace. With ``source``, the folder of the program, findings name lines in it and what to
    write instead. Of several ranks ``rank`` is read, else the slowest. ``path_map`` says where
    folders of the profiled machine are here.

    Raises:
        DumpError: there is nothing to diagnose.
        RankError: there is no dump of the wanted rank.
        SourceError: the source cannot be read.

    """
    from npufix.advisor.diagnose.diagnosis import Options, diagnose
    from npufix.advisor.project.configuration import read_configuration
    from npufix.advisor.project.source_tree import read_source_tree
    from npufix.reports.formats import ALL_ROWS

    root = Path(source) if source is not None else None
    configuration = read_configuration(root or Path())
    tree = read_source_tree(root, configuration) if root is not None else None
    maps = tuple((path_map or {}).items())
    options = Options(ALL_ROWS, rank, maps, configuration, headroom=True)
    return Recording(Path(dump), diagnose(Path(dump), tree, options), tree)
