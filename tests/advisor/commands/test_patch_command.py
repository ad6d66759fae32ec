"""``npufix patch``: what is written, what is not, and that the program stays the same."""

from __future__ import annotations

import json
import os
import re
import runpy
import shutil
import subprocess
import sys
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from npufix.advisor.patch import patching
from npufix.advisor.patch.patching import _job

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from npufix.rewriters.verification import Job

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

DUMP = "examples/dump"
pytest.importorskip("torch", reason="torch is needed to verify changes")


RULE_OF = {
    "focal_loss.py": "NPU202",
    "lengths.py": "NPU203",
    "masking.py": "NPU201",
    "mlp.py": "NPU204",
    "norm.py": "NPU101",
}


def changed(example: Path, file: str, old: str, new: str) -> None:
    path = example / "bert_like" / file
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_text(text.replace(old, new, 1), encoding="utf-8")


def added(done: subprocess.CompletedProcess[str]) -> str:
    lines = done.stdout.splitlines()
    return "\n".join(s for s in lines if s.startswith("+") and not s.startswith("+++"))


def test_the_patch_applies_and_the_program_trains_to_the_same_losses(
    inside: Npufix,
    example: Path,
    tmp_path: Path,
    train: Callable[..., str],
) -> None:
    steps = (example, "--steps", "2", "--seed", "0")
    before = train(*steps)
    report, page = tmp_path / "report.json", tmp_path / "report.html"
    out = ("-o", tmp_path / "npufix.patch", "--report", report, "--report", page)
    done = inside("patch", DUMP, "--source", example, *out)
    assert done.returncode == 0
    every = json.loads(report.read_text(encoding="utf-8"))["findings"]
    findings = [f for f in every if f["kind"] == "code"]
    numbers = [n for n, f in enumerate(every, 1) if f["verdict"]]
    assert len(every) > len(findings), "numbered as by diagnose, those about the run too"
    assert not [f["rule"] for f in findings if f["verdict"] and f["verdict"]["status"] == "refuted"]
    written = [f for f in findings if f["verdict"]]
    assert {f["safety"] for f in written} == {"safe"}
    summary = f"{len(written)} of {len(findings)} findings in the patch, each proven equivalent"
    assert done.stdout.startswith(summary)
    rows = re.findall(r"^ ?(\d+)  (\S+) .* equivalent$", done.stdout, re.MULTILINE)
    assert rows == [
        (str(n), f"{f['path']}:{f['line']}") for n, f in zip(numbers, written, strict=True)
    ]
    assert len(done.stdout.splitlines()) < 25, "verdicts, not the findings again"
    assert {f["verdict"]["status"] for f in written} == {"equivalent"}
    assert all(f["verdict"]["cases"] > 0 and f["verdict"]["measures"] for f in written)
    norm = next(f for f in written if f["rule"] == "NPU101")
    assert "npu_rms_norm" in norm["verdict"]["ground"]
    assert page.read_text(encoding="utf-8").count('class="verdict equivalent"') == len(written)
    git = shutil.which("git")
    assert git
    subprocess.run([git, "init", "-q", example], check=True)
    subprocess.run([git, "-C", example, "apply", tmp_path / "npufix.patch"], check=True)
    assert "npu_rms_norm" in (example / "bert_like" / "norm.py").read_text(encoding="utf-8")
    assert train(*steps) == before
    assert inside("patch", "--source", example).stdout == ""


def test_write_changes_the_files_that_the_diff_names(
    inside: Npufix, example: Path, tmp_path: Path
) -> None:
    patch = tmp_path / "a.patch"
    before = {p: p.read_bytes() for p in example.rglob("*.py")}
    asked = ("patch", DUMP, "--source", example, "--write", "--rule", "NPU202", "-o", patch)
    assert inside(*asked, "--report", "html=/dev/full").returncode == 2
    assert {p: p.read_bytes() for p in example.rglob("*.py")} == before
    done = inside(*asked)
    assert done.returncode == 0
    assert "+++ b/bert_like/focal_loss.py" in patch.read_text(encoding="utf-8"), (
        "both were asked for"
    )
    touched = {p.name for p, data in before.items() if p.read_bytes() != data}
    assert touched == {"focal_loss.py"}
    assert "Changed bert_like/focal_loss.py" in done.stdout


@pytest.mark.usefixtures("proven")
def test_npu_only_removes_the_old_code(inside: Npufix, example: Path) -> None:
    done = inside("patch", DUMP, "--source", example, "--npu-only", "--rule", "NPU101")
    assert "-        variance = hidden_states.pow(2).mean(-1, keepdim=True)" in done.stdout
    assert "+import torch_npu" in done.stdout
    assert "device.type" not in done.stdout


@pytest.mark.usefixtures("proven")
@pytest.mark.parametrize(
    ("file", "old", "new", "forbidden"),
    [
        pytest.param(
            "mlp.py",
            "indices = torch.topk(scores, self.top_k, dim=-1).indices",
            "indices = torch.randint(0, self.num_experts, (scores.size(0), self.top_k))",
            "scatter_(",
            id="duplicate indices are not set but counted",
        ),
        pytest.param(
            "focal_loss.py",
            "target.view(-1, 1)",
            "target.view(-1, 2)",
            "torch.arange",
            id="an index of two columns is no row lookup",
        ),
        pytest.param(
            "norm.py",
            "variance = hidden_states.pow(2)",
            "hidden_states = hidden_states - hidden_states.mean(-1, keepdim=True)\n"
            "        variance = hidden_states.pow(2)",
            "npu_rms_norm",
            id="a mean is subtracted",
        ),
        pytest.param(
            "norm.py",
            "torch.rsqrt(variance + self.variance_epsilon)",
            "(torch.rsqrt(variance) + self.variance_epsilon)",
            "npu_rms_norm",
            id="eps outside of the root",
        ),
        pytest.param(
            "masking.py",
            "hidden[pad] = 0.0",
            "hidden[pad] *= 0.0",
            "hidden.masked_fill",
            id="NaN under the mask stays NaN",
        ),
        pytest.param(
            "masking.py",
            "pad = padding.unsqueeze(-1).expand(hidden.shape)",
            "pad = padding",
            "hidden.masked_fill_(pad, 0.0)",
            id="a mask over rows",
        ),
        pytest.param(
            "lengths.py",
            "repeat_interleave(valid_lens, shape[1])",
            "repeat_interleave(valid_lens, torch.full_like(valid_lens, shape[1]))",
            "expand",
            id="repeats that are a tensor",
        ),
        pytest.param(
            "mlp.py",
            "self.num_experts).sum(dim=1)",
            "self.num_experts).sum(dim=0)",
            "scatter",
            id="a histogram per position",
        ),
    ],
)
def test_one_changed_line_makes_the_rewrite_wrong(  # noqa: PLR0913, PLR0917 - what and where
    inside: Npufix, example: Path, file: str, old: str, new: str, forbidden: str
) -> None:
    changed(example, file, old, new)
    rules = ("--rule", RULE_OF[file], "--rule", "NPU203" if file == "masking.py" else "NPU201")
    done = inside("patch", DUMP, "--source", example, *rules)
    assert done.returncode == 0
    assert forbidden not in added(done)
    assert added(done)  # the other changes are still there


def test_a_changed_source_is_not_proven_by_the_dump(inside: Npufix, example: Path) -> None:
    changed(example, "config.py", "from", "# edited\nfrom")
    report = json.loads(inside("diagnose", DUMP, "--source", example, "--json").stdout)
    bases = {c["basis"] for f in report["findings"] for c in f["conditions"]}
    assert "profile" not in bases
    assert any("differs from the profiled one" in p["what"] for p in report["problems"])


@pytest.mark.usefixtures("proven")
def test_conditions_are_written_only_by_name(inside: Npufix, example: Path) -> None:
    only = ("patch", "--source", example, "--rule", "NPU101")
    assert "npu_rms_norm" not in inside(*only).stdout
    allowed = inside(*only, "--allow", "same-dtype")
    assert "npu_rms_norm" in allowed.stdout


def test_what_cannot_be_verified_is_left_out_and_said(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text(
        "import torch\nimport not_installed_anywhere\n\n\n"
        "class A(torch.nn.Module):\n"
        "    def forward(self, x: torch.Tensor, wrap):\n"
        "        y = not_installed_anywhere.prepare(x).float()\n"
        "        y[y < self.least()] = 0\n        return wrap(y)\n",
        encoding="utf-8",
    )
    done = inside("patch", "--source", tmp_path)
    assert done.stdout == ""
    assert "not verified" in done.stderr


def test_a_file_with_windows_line_ends_keeps_them(inside: Npufix, tmp_path: Path) -> None:
    text = "import torch\n\n\ndef f(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n"
    path = tmp_path / "model.py"
    path.write_bytes(text.replace("\n", "\r\n").encode())
    inside("patch", "--source", tmp_path, "--write")
    data = path.read_bytes()
    assert b"masked_fill_(x < 0, 0)\r\n" in data
    assert data.count(b"\n") == data.count(b"\r\n")


@pytest.mark.usefixtures("proven")
def test_every_site_of_a_file_keeps_its_fallback(inside: Npufix, tmp_path: Path) -> None:
    norm = (
        "\n\nclass {name}(nn.Module):\n"
        "    def __init__(self, dim: int, eps: float = 1e-6):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(dim))\n"
        "        self.eps = eps\n\n"
        "    def forward(self, x: torch.Tensor):\n"
        "        v = x.float().pow(2).mean(-1, keepdim=True)\n"
        "        y = (x.float() * torch.rsqrt(v + self.eps)).to(x.dtype)\n"
        "        return self.weight * y\n"
    )
    text = "import torch\nfrom torch import nn\n" + norm.format(name="A") + norm.format(name="B")
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    done = inside("patch", "--source", tmp_path, "--allow", "same-dtype", "-o", "-")
    assert done.stdout.count('+        if x.device.type == "npu":') == 2
    assert not [s for s in done.stdout.splitlines() if s.startswith("-") and s[1:2] != "-"]


@pytest.mark.usefixtures("proven")
def test_two_sites_of_one_function_are_written_in_one_patch(inside: Npufix, tmp_path: Path) -> None:
    norm = (
        "        v_{x} = {x}.float().pow(2).mean(-1, keepdim=True)\n"
        "        {x} = self.weight * ({x}.float() * torch.rsqrt(v_{x} + self.eps)).to({x}.dtype)\n"
    )
    text = (
        "import torch\nfrom torch import nn\n\n\nclass A(nn.Module):\n"
        "    def __init__(self, dim: int, eps: float = 1e-6):\n"
        "        super().__init__()\n"
        "        self.weight = nn.Parameter(torch.ones(dim))\n"
        "        self.eps = eps\n\n"
        "    def forward(self, q: torch.Tensor, k: torch.Tensor):\n"
        f"{norm.format(x='q')}{norm.format(x='k')}        return q, k\n"
    )
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    only = ("--rule", "NPU101", "--allow", "same-dtype")
    for portable in ((), ("--npu-only",)):
        done = inside("patch", "--source", tmp_path, *only, *portable)
        for name in "qk":
            assert f"npu_rms_norm({name}, self.weight" in added(done), done.stderr
        assert added(done).count("import torch_npu") == 1


def test_of_two_sites_of_one_function_each_is_proven(inside: Npufix, tmp_path: Path) -> None:
    lines = "    x[x < 0] = 0\n    x[x > 1] = 1\n    return x\n"
    text = f"import torch\n\n\ndef f(x: torch.Tensor):\n{lines}"
    (tmp_path / "model.py").write_text(text, encoding="utf-8")
    done = inside("patch", "--source", tmp_path, "--rule", "NPU201")
    assert added(done).count("masked_fill_(") == 2, done.stderr


def test_a_refuted_change_comes_as_a_program(
    inside: Npufix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def wrong(*given: Any, **portable: bool) -> Job:
        job = _job(*given, **portable)
        text = job.patched.replace("masked_fill_(x < 0, 0)", "masked_fill_(x < 0, 1)")
        assert text != job.patched
        return replace(job, patched=text)

    monkeypatch.setattr(patching, "_job", wrong)
    source, program = tmp_path / "model.py", tmp_path / "wrong.py"
    source.write_text(
        "import torch\n\n\ndef f(x: torch.Tensor):\n    x[x < 0] = 0\n    return x\n",
        encoding="utf-8",
    )
    done = inside("patch", "--source", source, "--counterexample", program)
    assert done.stdout == ""
    assert "refuted" in done.stderr
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(program), run_name="__main__")
    assert end.value.code == 1


@pytest.mark.skipif(sys.platform != "linux", reason="file names are texts there")
def test_a_file_name_that_is_no_text_is_patched(inside: Npufix, tmp_path: Path) -> None:
    source, out = tmp_path / "src", tmp_path / "npufix.patch"
    source.mkdir()
    file = source / os.fsdecode(b"silu\xff.py")
    file.write_text("import torch\n\n\ndef f(x: torch.Tensor):\n    return x * torch.sigmoid(x)\n")
    done = inside("patch", "--source", source, "-o", out)
    assert done.returncode == 0, done.stderr
    git = shutil.which("git") or "git"
    subprocess.run([git, "apply", out], cwd=source, check=True)
    assert "silu(x)" in file.read_text()
