"""``import npufix``: dumps, sources and functions in a program, a test, a notebook."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import npufix
from npufix.advisor.api.standing_alone import COMPARED, SourceLostError, standing_alone

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = pytest.mark.xdist_group("api")  # they share one dear fixture
ROOT = Path(__file__).parents[3]
DUMP, SOURCE = ROOT / "examples/dump", ROOT / "examples/bert_like"
EPS = 1e-6
TABLE = {"a": object()}


@pytest.fixture(scope="module")
def recording() -> npufix.Recording:
    return npufix.load(DUMP, SOURCE)


def test_a_folder_of_the_same_name_does_not_win(tmp_path: Path) -> None:
    (tmp_path / "npufix").mkdir()
    script = "import npufix, sys; print(npufix.__version__, 'pandas' in sys.modules)"
    for words in (["-c", script], ["-m", "npufix", "--version"]):
        done = subprocess.run(
            [sys.executable, *words], cwd=tmp_path, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr
        assert npufix.__version__ in done.stdout
        assert "True" not in done.stdout, "what is not asked for is not loaded"


def test_all_that_is_offered_is_there() -> None:
    assert {name for name in npufix.__all__ if getattr(npufix, name) is None} == set()
    assert set(dir(npufix)) == set(npufix.__all__)
    with pytest.raises(AttributeError, match="no attribute 'lod'"):
        npufix.lod  # type: ignore[attr-defined] - that is the point  # noqa: B018 - same


def test_the_tables_are_those_of_the_report(recording: npufix.Recording) -> None:
    report = recording.report
    assert list(recording.operators["type"]) == [hot.type for hot in report.hot_operators]
    assert recording.operators["total_us"].sum() * 1000 == pytest.approx(report.compute_ns)
    assert list(recording.findings["rule"]) == [found.rule for found in report.findings]
    assert list(recording.lines["line"]) == [hot.line for hot in report.hot_lines]
    assert report.split is not None
    assert recording.steps["total_us"].mean() * 1000 == pytest.approx(report.split.total_ns, abs=1)
    kernels = recording.kernels
    hottest = kernels[kernels["type"] == "IndexPutV2"]
    assert len(hottest) == recording.operators["calls"][0]
    assert "bert_like/masking.py" in set(hottest["path"])
    kernels["duration_ns"] = 0
    assert recording.kernels["duration_ns"].sum() > 0, "a copy is handed out"
    assert recording.modules.empty
    assert list(recording.collectives.columns[:2]) == ["name", "kind"]


def test_collectives_of_a_real_dump(real_dumps: Path) -> None:
    found = npufix.load(real_dumps / "alexnet_910b_2ranks" / "text").collectives
    assert found["total_us"].is_monotonic_decreasing
    parts = found[["moving_us", "waiting_us", "idle_us"]].sum(axis=1)
    assert (parts <= found["total_us"] * 1.001).all()
    first = found.iloc[0]
    assert (first["name"], first["calls"]) == ("hcom_allReduce__586_0_1", 1)


def test_a_change_is_predicted_again(recording: npufix.Recording) -> None:
    found = recording.what_if("npu201", "masked-assignment")
    assert str(found).startswith("What if npu201, masked-assignment: 26 ms -> ")
    assert repr(found) == f"<npufix.Predicted: {found}>"
    assert found.prediction is not None
    rest = recording.what_if("NPU201", without=True).prediction
    forecast = recording.report.forecast
    assert forecast is not None
    assert forecast.together is not None
    assert rest is not None
    assert forecast.together.step_ns < found.prediction.step_ns
    assert forecast.together.step_ns <= rest.step_ns < forecast.now_ns
    assert recording.what_if("NPU409").prediction is None
    assert "whose change can be replayed: NPU409" in str(recording.what_if("NPU409"))
    assert forecast.question is None, "the recording stays as it is"
    with pytest.raises(ValueError, match=r"no rule masked-assignmnt; .* mean masked-assignment"):
        recording.what_if("masked-assignmnt")
    with pytest.raises(ValueError, match="name at least one rule"):
        recording.what_if()


def test_it_says_itself(recording: npufix.Recording) -> None:
    assert repr(recording).startswith("<npufix.Recording: Assignment through a boolean mask takes")
    assert "of step  saves" in str(recording)
    page = recording._repr_html_()
    assert "masking.py:30" in page
    assert "<script" not in page
    same = recording.compare(recording)
    assert "no difference" in repr(same)
    assert same._repr_html_().startswith("<pre>")


def test_names_of_a_dump_are_text_in_a_cell(recording: npufix.Recording) -> None:
    from msgspec.structs import replace

    from npufix.reports.html.notebook import to_cell

    bad = "<script>alert(1)</script>"
    found = [replace(one, rule=bad, summary=bad, path=bad) for one in recording.report.findings]
    made = to_cell(replace(recording.report, headline=bad, dump=bad, findings=found))
    assert "<script" not in made
    assert "&lt;script&gt;" in made


def test_a_source_is_searched() -> None:
    found = npufix.scan(SOURCE)
    assert {"NPU101", "NPU201"} <= set(found.findings["rule"])
    assert "slow patterns in" in repr(found)


def halve(x):  # noqa: ANN001, ANN201 - as in a notebook
    return x / 2


def scaled(x):  # noqa: ANN001, ANN201 - same
    return halve(x) + EPS


def factorial(n):  # noqa: ANN001, ANN201 - same
    return n * factorial(n - 1) if n else 1


def looked_up(x):  # noqa: ANN001, ANN201 - same
    return TABLE[x]


def test_a_function_takes_along_what_it_uses() -> None:
    names: dict[str, Callable[[float], float]] = {}
    exec(standing_alone(scaled), names)  # noqa: S102 - our own text
    assert names[COMPARED](3.0) == scaled(3.0)
    exec(standing_alone(factorial), names)  # noqa: S102 - same
    assert names[COMPARED](4) == 24
    offset = 3

    def shifted(x: float) -> float:
        return json.loads(str(x)) + offset

    text = standing_alone(shifted)
    assert "import json as json" in text
    assert "offset = 3" in text


def test_what_no_text_says_is_an_error() -> None:
    with pytest.raises(SourceLostError, match="looked_up uses TABLE, a dict of this session"):
        standing_alone(looked_up)
    for lost in (lambda x: x, len, 3):
        with pytest.raises(SourceLostError):
            standing_alone(lost)  # type: ignore[arg-type] - 3 is none


def doubled(x):  # noqa: ANN001, ANN201 - same
    return x * 2


def added(x):  # noqa: ANN001, ANN201 - same
    return x + x


def magnitude(x):  # noqa: ANN001, ANN201 - same
    return x.abs()


def test_functions_are_compared(assert_equivalent: Callable[..., npufix.Verified]) -> None:
    pytest.importorskip("torch", reason="torch is needed to run functions")
    assert npufix.verify(doubled, doubled), "the same text needs no run"
    assert_equivalent(doubled, added, assume=["x: float[a, b]"])
    refuted = npufix.verify(doubled, magnitude, assume=["x: float[a, b]"])
    assert not refuted
    assert refuted.status == "refuted"
    assert refuted.verdict.counterexample
    assert "magnitude" in str(refuted)
    with pytest.raises(pytest.fail.Exception, match="refuted"):
        assert_equivalent(doubled, magnitude, assume=["x: float[a, b]"])


def test_in_the_kernel_of_a_notebook(tmp_path: Path) -> None:
    nbclient = pytest.importorskip("nbclient", reason="a notebook is run where there is nbclient")
    import nbformat

    cells = [
        f"import npufix\nrun = npufix.load({str(DUMP)!r})\nrun",
        "run.operators.head(3)",
        "def old(x):\n    return x.clamp(min=0)",
        "def new(x):\n    return x.clamp(min=0)  # the same",
        "bool(npufix.verify(old, new)), npufix.advisor.api.standing_alone.standing_alone(new)",
    ]
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    nbclient.NotebookClient(book, timeout=120, resources={"metadata": {"path": tmp_path}}).execute()
    shown = [cell["outputs"][0]["data"] for cell in book.cells if cell["outputs"]]
    assert "of step" in shown[0]["text/html"]
    assert "IndexPutV2" in shown[1]["text/html"]
    assert shown[2]["text/plain"].startswith("(True, ")
    assert "def compared(x)" in shown[2]["text/plain"]
