"""What the tests of outputs share: the example, scanned once, and the command line."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from npufix.advisor.commands.cli import cli
from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.patch.suggestions import with_report_changes
from npufix.advisor.project.configuration import EVERYTHING
from npufix.advisor.project.source_tree import SourceTree, read_source_tree

if TYPE_CHECKING:
    from collections.abc import Callable

    from npufix.advisor.diagnose.result import Diagnosis
    from npufix.reports.report import Report

ROOT = Path(__file__).parents[2]
EXAMPLE = ROOT / "examples" / "bert_like"


@pytest.fixture(scope="session")
def example_tree() -> SourceTree:
    return read_source_tree(EXAMPLE, EVERYTHING)


@pytest.fixture(scope="session")
def example_scan(example_tree: SourceTree) -> Diagnosis:
    """Return the findings of the example, with the text of their changes."""
    return scan(example_tree)


@pytest.fixture(scope="session")
def example_report(example_tree: SourceTree, example_scan: Diagnosis) -> Report:
    return with_report_changes(example_scan, example_tree)


@pytest.fixture
def npufix_in(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Result]:
    """Run the command line in this process, in a folder."""
    for name in ("FORCE_COLOR", "GITHUB_STEP_SUMMARY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("COLUMNS", "80")

    def run(folder: Path, *words: object) -> Result:
        monkeypatch.chdir(folder)
        return CliRunner().invoke(cli, list(map(str, words)), standalone_mode=False)

    return run
