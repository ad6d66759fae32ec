"""``npufix verify``: right changes pass, wrong ones are refuted by programs that run."""

from __future__ import annotations

import difflib
import json
import runpy
import shutil
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest
from wrong_changes import MODEL, WRONG, wrong_model

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("torch", reason="torch is needed to verify changes")
pytestmark = pytest.mark.xdist_group("verify command")  # they share one dear fixture
GIT = shutil.which("git") or ""
SCALED = (
    MODEL[MODEL.index("import torch\n") : MODEL.index("class RMSNorm")]
    + """\
def scaled(x: torch.Tensor) -> torch.Tensor:
    return x * 3.0
"""
)
GATED = """\
import torch
import torch.nn.functional as F


def {name}(x: torch.Tensor) -> torch.Tensor:
    a, b = x.chunk(2, -1)
    return F.silu(a) * b
"""
GUARDED = """\
    if x.device.type == "npu":
        import torch_npu

        return torch_npu.npu_swiglu(x, dim=-1)
    a, b = x.chunk"""


def diff(before: str, after: str, name: str = "model.py") -> bytes:
    lines = (text.splitlines(keepends=True) for text in (before, after))
    return "".join(difflib.unified_diff(*lines, f"a/{name}", f"b/{name}")).encode()


@pytest.fixture(scope="module")
def refuted(inside: Npufix, tmp_path_factory: pytest.TempPathFactory) -> tuple[dict, list[Path]]:
    folder = tmp_path_factory.mktemp("wrong")
    (folder / "model.py").write_text(MODEL, encoding="utf-8")
    (folder / "change.diff").write_bytes(diff(MODEL, wrong_model()))
    change = ("--patch", folder / "change.diff", "--source", folder)
    done = inside("verify", *change, "--counterexample", folder / "wrong.py", "--json")
    assert done.returncode == 1, done.stderr
    assert done.stderr.count(f"Wrote {folder / 'wrong'}") == len(WRONG)
    found = {f["function"]: f["verdict"] for f in json.loads(done.stdout)["functions"]}
    return found, sorted(folder.glob("wrong*.py"))


@pytest.mark.parametrize("what", WRONG)
def test_a_mistake_is_refuted_and_said(refuted: tuple[dict, list[Path]], what: str) -> None:
    wrong = WRONG[what]
    verdict = refuted[0][wrong.function]
    assert verdict["status"] == "refuted", verdict
    assert wrong.says in verdict["counterexample"]
    assert verdict["on"] == "reference"


def test_every_counterexample_is_small_and_shows_the_difference(
    refuted: tuple[dict, list[Path]],
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    scripts = refuted[1]
    assert len(scripts) == len(WRONG)
    for script in scripts:
        monkeypatch.setattr(sys, "path", sys.path[:])
        with pytest.raises(SystemExit) as end:
            runpy.run_path(str(script), run_name="__main__")
        assert end.value.code == 1, script
        shown = capsys.readouterr().out
        assert "original:" in shown
        assert "changed:" in shown
        assert len(shown) < 700, shown
    right = scripts[-1].read_text(encoding="utf-8")
    right = (
        right[: right.index("CHANGED = ")]
        + "CHANGED = ORIGINAL\n\n"
        + right[right.index("\ndef load") :]
    )
    scripts[-1].write_text(right, encoding="utf-8")
    with pytest.raises(SystemExit) as end:
        runpy.run_path(str(scripts[-1]), run_name="__main__")
    assert end.value.code == 0
    assert "agree" in capsys.readouterr().out


def test_a_counterexample_needs_nothing_but_torch(refuted: tuple[dict, list[Path]]) -> None:
    script = next(s for s in refuted[1] if "def rotate_half" in s.read_text(encoding="utf-8"))
    done = subprocess.run(
        [sys.executable, "-S", "-c", _WITHOUT_US, *filter(None, sys.path), str(script)],
        capture_output=True,
        check=False,
        encoding="utf-8",
    )
    assert done.returncode == 1, done.stderr
    assert "they differ by up to" in done.stdout
    assert not done.stderr


_WITHOUT_US = """
import runpy, sys
*sys.path[1:], script = sys.argv[1:]
sys.modules["npufix"] = None
runpy.run_path(script, run_name="__main__")
"""


def test_right_changes_are_equivalent_and_the_second_run_is_instant(
    inside: Npufix, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = SCALED + MODEL[MODEL.index("def rotate_half") : MODEL.index("def hide")]
    after = before.replace("x * 3.0", "3.0 * x")
    after = after.replace("torch.cat((-x2, x1), dim=-1)", "torch.concat([x2.neg(), x1], -1)")
    (tmp_path / "old.py").write_text(before, encoding="utf-8")
    (tmp_path / "new.py").write_text(after, encoding="utf-8")
    asked = ("verify", tmp_path / "new.py", "--against", tmp_path / "old.py")
    done = inside(*asked)
    assert done.returncode == 0, done.stdout
    assert done.stdout.startswith("2 changed functions: 2 equivalent.\nCompared with ")
    assert all(len(line) <= 80 for line in done.stdout.splitlines() if str(tmp_path) not in line)
    assert "\x1b" not in done.stdout
    monkeypatch.setattr("npufix.rewriters.verification.workers.parent.answer", None)
    assert inside(*asked).stdout == done.stdout


def test_code_for_an_npu_is_run_as_there_and_as_elsewhere(inside: Npufix, tmp_path: Path) -> None:
    names = ("right", "elsewhere", "there")
    before = "\n\n".join(GATED.format(name=name) for name in names)
    right, elsewhere, there = (
        GATED.format(name=name).replace("    a, b = x.chunk", GUARDED) for name in names
    )
    elsewhere = elsewhere.replace("silu(a) * b", "silu(b) * a")
    there = there.replace("npu_swiglu(x, dim=-1)", "npu_swiglu(x.flip(-1), dim=-1)")
    (tmp_path / "model.py").write_text(before, encoding="utf-8")
    (tmp_path / "change.diff").write_bytes(diff(before, f"{right}\n\n{elsewhere}\n\n{there}"))
    change = ("--patch", tmp_path / "change.diff", "--source", tmp_path)
    done = inside("verify", *change, "--json")
    found = {f["function"]: f["verdict"] for f in json.loads(done.stdout)["functions"]}
    assert found["right"]["status"] == "equivalent"
    assert "npu_swiglu" in found["right"]["ground"]
    assert found["right"]["ground"].endswith("on other devices as well")
    assert found["elsewhere"]["status"] == "refuted"
    assert found["elsewhere"]["reason"].startswith("on other devices: ")
    assert found["there"]["reason"].startswith("as on an NPU: ")


def test_each_version_imports_its_own_version_of_the_other_files(
    inside: Npufix, tmp_path: Path
) -> None:
    package = tmp_path / "src" / "pkg"
    package.mkdir(parents=True)
    for name in ("__init__", "between"):
        (package / f"{name}.py").write_text("from pkg.ops import *\n" if name[0] == "b" else "")
    ops = "def scaled(x, by):\n    return x - by\n"
    model = (
        "import torch\nfrom pkg.ops import scaled\nfrom .between import scaled as same\n\n\n"
        "def f(x: torch.Tensor):\n    return scaled(x, 2.0)\n\n\n"
        "def g(x: torch.Tensor):\n    return same(x, 2.0)\n"
    )
    turned = ops.replace("x, by):", "by, x):")
    new = "def added(x):\n    return x + 0.0\n"
    called = model.replace("same(x, 2.0)", "same(3.0, x)")
    called = called.replace("scaled(x, 2.0)", "scaled(2.0, added(x))")
    called += "\n\nfrom pkg.fresh import added\n"
    parts = ((ops, turned, "pkg/ops.py"), (model, called, "pkg/model.py"))
    change = b"".join(diff(*part) for part in parts)
    change += diff("", new, "pkg/fresh.py").replace(b"--- a/pkg/fresh.py", b"--- /dev/null")
    (tmp_path / "change.diff").write_bytes(change)
    for before in (True, False):
        for old, now, name in parts:
            (tmp_path / "src" / name).write_text(old if before else now)
        options = ("--patch", tmp_path / "change.diff", "--source", tmp_path / "src", "--json")
        found = json.loads(inside("verify", *options).stdout)
        said = {f["function"]: f["verdict"]["status"] for f in found["functions"]}
        assert said == {"scaled": "refuted", "f": "equivalent", "g": "refuted"}, found
        assert found["new_files"] == ["pkg/fresh.py"]


@pytest.mark.skipif(not GIT, reason="git is not installed")
def test_the_working_tree_is_compared_with_a_revision(npufix: Npufix, tmp_path: Path) -> None:
    def git(*words: str) -> None:
        who = ("-c", "user.name=a", "-c", "user.email=a@b.c")
        subprocess.run([GIT, "-C", tmp_path, *who, *words], check=True, capture_output=True)

    git("init", "-q")
    (tmp_path / "old.py").write_text(SCALED, encoding="utf-8")
    (tmp_path / "other.py").write_text("EPS = 1\n", encoding="utf-8")
    git("add", ".")
    git("commit", "-qm", "first")
    assert npufix("verify", cwd=tmp_path).stdout.startswith("No function has changed.")
    git("mv", "old.py", "new.py")
    later = SCALED.replace("x * 3.0", "3.0 * x")
    (tmp_path / "new.py").write_text(later, encoding="utf-8")
    (tmp_path / "added.py").write_text("def f(x):\n    return x\n", encoding="utf-8")
    git("add", ".")
    done = npufix("verify", "--json", cwd=tmp_path)
    found = json.loads(done.stdout)
    assert done.returncode == 0, done.stdout
    assert [(f["path"], f["function"]) for f in found["functions"]] == [("new.py", "scaled")]
    assert found["new_files"] == ["added.py"]
    assert npufix("verify", "other.py", cwd=tmp_path).returncode == 0


def test_what_cannot_be_run_is_inconclusive(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "old.py").write_text("def f(x):\n    return go(x)\n", encoding="utf-8")
    (tmp_path / "new.py").write_text("def f(x):\n    return go(x) + 0\n", encoding="utf-8")
    done = inside("verify", tmp_path / "new.py", "--against", tmp_path / "old.py")
    assert done.returncode == 3
    assert "not verified" in done.stdout
    assert "'go' is not defined" in done.stdout


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("nowhere.py",), "no file nowhere.py"),
        (("--patch", "nowhere.diff"), "nowhere.diff: No such file"),
        (("README.md", "--patch", "x.diff"), "--patch names the whole change"),
        (("--patch", "README.md"), "no unified diff"),
        (("--against", "no-such-revision", "benchmarks"), "git diff: "),
        (("--against", "v1..v2"), "git diff v1..v2 | npufix verify --patch -"),
        (("README.md",), "README.md is no Python file"),
        (("--rank", "3"), "give --dump as well"),
        (("--allow", "everything"), "no condition everything"),
        (("--against", "README.md"), "name one FILE"),
        (("--on", "npu", "benchmarks"), "--on npu: no NPU"),
        (("--on", "gpu"), "'gpu' is not one of"),
    ],
)
def test_wrong_usage_is_one_line_and_status_2(
    inside: Npufix, words: tuple[str, ...], said: str
) -> None:
    if "no-such-revision" in words and not GIT:
        pytest.skip("git is not installed")
    done = inside("verify", *words)
    assert done.returncode == 2, done.stdout
    assert said in done.stderr
    assert not done.stdout


def test_a_diff_that_does_not_apply_is_one_line(inside: Npufix, tmp_path: Path) -> None:
    (tmp_path / "model.py").write_text("x = 1\n", encoding="utf-8")
    (tmp_path / "change.diff").write_bytes(diff(MODEL, wrong_model()))
    done = inside("verify", "--patch", tmp_path / "change.diff", "--source", tmp_path)
    assert done.returncode == 2
    assert "does not apply to" in done.stderr
    assert done.stderr.count("\n") == 1
