"""Whole jobs: every right rewrite passes, every wrong one is refuted; and through the child."""

from __future__ import annotations

from dataclasses import replace as changed
from textwrap import dedent
from typing import TYPE_CHECKING

import pytest
from verification_snippets import ALL, COUNTS, LLAMA, OLMO, Snippet, verify_here

from npufix.rewriters.verification import Job, RecordedCall, verify
from npufix.rewriters.verification.verdict import Status, Verdict

if TYPE_CHECKING:
    from pathlib import Path

pytest.importorskip("torch")
pytestmark = pytest.mark.xdist_group("sites")  # they share one dear fixture

RIGHT = [(name, rewrite) for name, snippet in ALL.items() for rewrite in snippet.right]
WRONG = [(name, what) for name, snippet in ALL.items() for what in snippet.wrong]
EAGER_TEXT = dedent(LLAMA.eager).strip()
GUARDED = """
if hidden_states.device.type == "npu":
    return torch_npu.npu_rms_norm(hidden_states, self.weight, epsilon=self.variance_epsilon)[0]
"""


@pytest.fixture(scope="module")
def verdicts() -> dict[tuple[str, str], Verdict]:
    jobs = {key: ALL[key[0]].job(key[1]) for key in RIGHT}
    for key in (k for k in RIGHT if k[0] == "llama"):  # with the guarded text that is written
        jobs[key] = changed(jobs[key], portable=LLAMA.fill(GUARDED + EAGER_TEXT)[0])
    for key in (k for k in RIGHT if k[0] == "t5"):  # by the schema of the user's version
        jobs[key] = changed(jobs[key], torch_npu_version="2.1.0")
    jobs |= {key: ALL[key[0]].job(ALL[key[0]].wrong[key[1]]) for key in WRONG}
    return dict(zip(jobs, verify_here(list(jobs.values())), strict=True))


@pytest.mark.parametrize(("name", "rewrite"), RIGHT)
def test_a_right_rewrite_is_equivalent(
    verdicts: dict[tuple[str, str], Verdict], name: str, rewrite: str
) -> None:
    verdict = verdicts[name, rewrite]
    assert verdict.status is Status.EQUIVALENT, verdict
    assert verdict.cases > 10
    assert verdict.scope == ALL[name].qualname
    assert verdict.reason == verdict.counterexample == ""


@pytest.mark.parametrize(("name", "what"), WRONG)
def test_a_wrong_rewrite_is_refuted_with_a_counterexample(
    verdicts: dict[tuple[str, str], Verdict], name: str, what: str
) -> None:
    verdict = verdicts[name, what]
    assert verdict.status is Status.REFUTED, verdict
    assert verdict.counterexample
    assert "def prepared(module)" in verdict.script, verdict


def test_the_figures_are_measured_against_float64(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    verdict = verdicts["llama", LLAMA.right[0]]
    found = {(m.what, m.dtype): m for m in verdict.measures}
    low = found["result", "bfloat16"]
    assert 0.001 < low.error_patched <= low.error_original < 0.01
    assert ("gradient of self.weight", "float16") in found
    assert verdict.ground.startswith("torch ")
    assert "reference kernels: npu_rms_norm" in verdict.ground


def test_the_ground_names_no_kernel_that_did_not_run(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    assert "reference" not in verdicts["focal", ALL["focal"].right[0]].ground


def test_what_fails_beside_an_index_of_the_host_is_said(
    verdicts: dict[tuple[str, str], Verdict],
) -> None:
    picked = "labels = torch.where(masked, labels, -100)"  # ``masked`` is made on the host
    assert (
        "for tensors of the host alone: on every device" in verdicts["mask tokens", picked].ground
    )


def test_forgotten_eps_shows_on_tiny_rows(verdicts: dict[tuple[str, str], Verdict]) -> None:
    assert "tiny rows" in verdicts["llama", "no eps"].counterexample


def one(job: Job) -> Verdict:
    (verdict,) = verify_here([job])
    return verdict


def test_a_portable_text_must_be_the_original_bit_for_bit() -> None:
    wrong = GUARDED + EAGER_TEXT.replace("rsqrt(", "rsqrt(1e-7 + ")
    verdict = one(LLAMA.job(LLAMA.right[0], wrong))  # the right one is among the verdicts
    assert verdict.status is Status.REFUTED
    assert "portable" in verdict.reason


def test_recorded_shapes_come_first() -> None:
    snippet = Snippet(
        "f",
        """
        import torch

        def f(x):
            a, b, c, d, e, g = x.shape
            EAGER
        """,
        "return x * 2",
        ("return x + x",),
    )
    job = snippet.job(snippet.right[0])
    assert one(job).status is Status.NOT_VERIFIED
    shape = (2, 3, 1, 4096, 3, 64)
    recorded = (RecordedCall("aten::mul", (shape, None), ("float", "Scalar")),)
    job = changed(job, recorded=recorded)
    assert one(job).status is Status.EQUIVALENT


def test_mixed_precision_is_run_where_the_dump_shows_it() -> None:
    recorded = (RecordedCall("aten::mul", ((8,), (2, 3, 8)), ("float", "c10::BFloat16")),)
    for snippet, status in ((LLAMA, Status.REFUTED), (OLMO, Status.EQUIVALENT)):
        verdict = one(changed(snippet.job(snippet.right[0]), recorded=recorded))
        assert verdict.status is status, verdict
        assert ("float32 weights" in verdict.counterexample) == (status is Status.REFUTED)


def test_a_broken_init_of_the_patched_class_is_refuted() -> None:
    job = LLAMA.job(LLAMA.right[0])
    verdict = one(changed(job, patched=job.patched.replace("torch.ones(hid", "torch.one(hid")))
    assert verdict.status is Status.REFUTED
    assert "has no attribute 'one'" in verdict.counterexample


UNREACHED = Snippet(
    "f",
    """
    def f(x):
        if x is f:
            EAGER
        return x
    """,
    "return x * 2",
    ("return x + x",),
)
PATCHED_UNREACHED = Snippet(
    "f",
    """
    def f(x):
        EAGER
        return y
    """,
    "y = x * 2",
)


def test_what_cannot_be_verified_says_why() -> None:
    snippet = Snippet("f", "import missing_abc\ndef f(x):\n    EAGER", "return x * 2")
    absent = Snippet("g.h", "def f(x):\n    EAGER", "return x * 2")
    needs = Snippet("f", "from missing_abc import go\ndef f(x):\n    EAGER", "return go(x).y")
    first, second, third, fourth, fifth, sixth = verify_here(
        [
            UNREACHED.job("return x + x"),
            snippet.job("return x + x"),
            absent.job("return x + x"),
            needs.job("return go(x).z"),
            LLAMA.job("return torch_npu.npu_mish(hidden_states)"),
            PATCHED_UNREACHED.job("y = x * 2\nif x is f:\n    y = x + x"),
        ]
    )
    assert first.status is Status.NOT_VERIFIED
    assert "reach the rewritten lines" in first.reason
    assert second.status is Status.EQUIVALENT, "an import that f does not need"
    assert third.status is Status.NOT_VERIFIED
    assert "g is not defined" in third.reason
    assert "missing_abc" in fourth.reason or "go" in fourth.reason
    assert fifth.reason == "there is no reference kernel for torch_npu.npu_mish"
    assert sixth.status is Status.NOT_VERIFIED
    assert "never reached" in sixth.reason


def test_a_patched_text_that_does_not_compile_is_refuted() -> None:
    verdict = one(LLAMA.job("return (hidden_states"))
    assert verdict.status is Status.REFUTED
    assert "compile" in verdict.reason


def test_a_job_that_hangs_in_c_runs_into_the_time_limit() -> None:
    endless = "collections.deque(itertools.repeat(0), maxlen=0)"
    hang = f"import collections, itertools, signal; signal.pthread_sigmask(0, [14]); {endless}"
    text = f"def f(x):\n    {hang}\n    return x * 2\n"
    job = Job("/user/m.py", "/user", text, text.replace("x * 2", "x + x"), "f", (3,), (3,))
    (verdict,) = verify([job], timeout_s=2)
    assert verdict.status is Status.NOT_VERIFIED
    assert "2 s" in verdict.reason


def test_without_torch_nothing_is_verified(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda _name: None)
    (verdict,) = verify([LLAMA.job(LLAMA.right[0])])
    assert verdict.status is Status.NOT_VERIFIED
    assert "pip install npufix[verify]" in verdict.reason


def test_no_jobs_start_no_child(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("npufix.rewriters.verification.workers.parent.answer", None)
    assert verify([]) == []


def test_a_file_named_like_a_library_does_not_replace_it() -> None:
    job = COUNTS.job(COUNTS.right[0])
    first, second = verify([changed(job, path="/user/random.py"), job])
    assert first.status is second.status is Status.EQUIVALENT


def test_relative_imports_start_from_the_package_of_the_file(tmp_path: Path) -> None:
    package = tmp_path / "src" / "outer" / "inner"
    package.mkdir(parents=True)
    for folder in (package, package.parent):
        (folder / "__init__.py").touch()
    (package.parent / "factor.py").write_text("FACTOR = 3.0\n")
    snippet = Snippet(
        "scaled",
        """
        from __future__ import annotations
        from dataclasses import dataclass
        from ..factor import FACTOR

        @dataclass
        class Both:
            left: torch.Tensor
            right: torch.Tensor

        def scaled(x):
            EAGER
            return Both(y, x)
        """,
        "y = x * FACTOR",
        ("y = FACTOR * x",),
    )
    text = snippet.job(snippet.right[0])
    # A future import comes first in a file.
    lines = {
        "original": text.original.partition("\n")[2],
        "patched": text.patched.partition("\n")[2],
        "lines_original": (text.lines_original[0] - 1,),
        "lines_patched": (text.lines_patched[0] - 1,),
    }
    place = {"path": str(package / "model.py"), "root": str(tmp_path / "src")}
    right = changed(text, **place, **lines)
    wrong = changed(right, patched=right.patched.replace("FACTOR * x", "2.0 * x"))
    first, second = verify([right, wrong])
    assert first.status is Status.EQUIVALENT, first
    assert second.status is Status.REFUTED
    assert "result.left" in second.counterexample


def test_a_gain_that_only_fits_rows_of_width_one_is_refuted() -> None:
    snippet = Snippet(
        "ScaleNorm.forward",
        """
        import torch
        import torch.nn.functional as F
        from torch import nn

        class ScaleNorm(nn.Module):
            def __init__(self, dim):
                super().__init__()
                self.scale = dim**0.5
                self.g = nn.Parameter(torch.zeros(1))

            def forward(self, x):
                EAGER
        """,
        "return F.normalize(x, dim=-1) * self.scale * self.g",
    )
    verdict = one(
        snippet.job("return torch_npu.npu_rms_norm(x, self.g, epsilon=1e-24 / x.shape[-1])[0]")
    )
    assert verdict.status is Status.REFUTED
    assert "the patched code raises" in verdict.reason
