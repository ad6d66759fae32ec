"""``npufix patch`` where packages are missing, its header, and an interrupt."""

from __future__ import annotations

import shutil
import subprocess
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from npufix.advisor.patch import patching
from npufix.advisor.patch.header import read_header
from npufix.rewriters.edit.job import Job
from npufix.rewriters.verification import Settings
from npufix.rewriters.verification.verdict import Status, Verdict
from npufix.rewriters.write.patch import FileChange

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    Npufix = Callable[..., subprocess.CompletedProcess[str]]

pytest.importorskip("torch", reason="torch is needed to verify changes")
# With one argument each, to try all that it may be takes less than the limit of the search.
HEAD = """\
import einops
import torch
from absent_framework import Base, HEADS


@HEADS.register_module()
class Head(Base):
    def __init__(self, channels: int):
        super().__init__(init_cfg=None)
        self.assigner = HEADS.build(channels)

    def targets(self, areas: torch.Tensor):
        inside = self.assigner.inside(areas)
        areas = areas.clone()
        areas[inside > 0] = 0.0
        return self.assigner.join(areas)

    def depths(self, rays: torch.Tensor):
        points = self.assigner.project(rays) @ rays
        behind = points[..., 2] < 1e-3
        points[..., 2][behind] = 1.0
        return self.assigner.join(points)
"""


def test_a_patch_of_code_whose_packages_are_missing(inside: Npufix, tmp_path: Path) -> None:
    source, patch = tmp_path / "src", tmp_path / "a.patch"
    source.mkdir()
    (source / "head.py").write_text(HEAD, encoding="utf-8")
    on = ("--on", "reference", "--no-cache")
    allowed = ("--assume", "dense-detection")
    done = inside("patch", "--source", source, "-o", patch, *allowed, *on)
    assert done.returncode == 0, done.stderr
    assert "absent_framework" in done.stderr
    assert "einops" not in done.stderr, "it runs, installed or not"
    text = patch.read_text(encoding="utf-8")
    assert "runs of the changed statements of Head.targets" in text
    # The rows of the mask are those of the column, which the statement alone does not show.
    assert "runs of the changed statements of Head.depths" in text
    (place, names), _ = read_header(text.encode()).items()
    assert place == ("head.py", "Head.targets")
    assert "is-tensor" in names or "boolean-mask" in names
    checked = inside("verify", "--patch", patch, "--source", source, *on)
    assert checked.returncode == 0, checked.stdout
    wrong = tmp_path / "wrong.patch"
    assert ", 0.0" in text
    wrong.write_text(text.replace(", 0.0", ", 1.0"), encoding="utf-8")
    asked = ("verify", "--patch", wrong, "--source", source, *on)
    assert inside(*asked).returncode == 3, "not equivalent, however it is headed"
    git = shutil.which("git")
    assert git
    subprocess.run([git, "init", "-q", source], check=True)
    subprocess.run([git, "-C", source, "apply", "--check", patch], check=True)


def test_an_interrupt_leaves_the_verdicts_there_are(monkeypatch: pytest.MonkeyPatch) -> None:
    jobs = [Job("m.py", ".", "", str(n), "f", (), ()) for n in range(3)]
    stopped = KeyboardInterrupt()
    told = []

    def verify(asked: Sequence[Job], settings: Settings) -> list[Verdict]:
        settings.decided(asked[1], Verdict(Status.EQUIVALENT, "here", "f"), len(asked))
        raise stopped

    monkeypatch.setattr(patching, "verify", verify)
    settings = replace(Settings(), decided=lambda job, *_: told.append(job))
    found, interrupted = patching._verify(jobs, settings)
    assert interrupted is stopped
    assert [v and v.status for v in found] == [None, Status.EQUIVALENT, None]
    assert told == [jobs[1]]


@dataclass(frozen=True, eq=False)
class Place:
    """Stands in for a finding."""

    file: object
    site: str


def test_changes_that_python_refuses_together_are_not_written(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    given = {"relative": "m.py", "text": "x = 1\n", "neighbour": None, "line_width": 100}
    file = SimpleNamespace(**given, path="m.py", data=b"", encode=str.encode)
    item = cast("Any", Place(file, "a site"))
    late = "x = 2\nfrom __future__ import annotations\n"
    for text, written in ((late, 0), ("x = 2\n", 1)):
        monkeypatch.setattr(patching, "apply_in_order", lambda *_, text=text: (text, set()))
        changes, failed = patching._compose([item], portable=False)
        assert (len(changes), len(failed)) == (written, 1 - written)


@pytest.mark.parametrize(
    ("before", "after", "reason"),
    [
        ("x = 1\n", "x = 1\ny = nothing\n", "NameError: name 'nothing' is not defined"),
        ("x = 1\n", "try:\n    import torch_npu\nexcept ImportError:\n    pass\nx = 1\n", ""),
        ("import not_here\n", "import not_here\ny = nothing\n", ""),  # neither can be imported
        ("def f():\n    return 1\n", "def f():\n    return nothing\n", ""),  # runs later
    ],
)
def test_a_file_that_all_changes_together_break_is_left_out(
    tmp_path: Path, before: str, after: str, reason: str
) -> None:
    path = tmp_path / "m.py"
    path.write_text(before, encoding="utf-8")
    file = SimpleNamespace(path=path, text=before, encoding="utf-8")
    item = cast("Any", Place(file, "a site"))
    change = FileChange(path, "m.py", before.encode(), after.encode())
    tree = cast("Any", SimpleNamespace(root=tmp_path))
    left, failed, _ = patching._leave_out_broken([change], [item], tree, Settings())
    said = f"the file with all its changes cannot be imported: {reason}"
    assert (left, failed) == (([], {item: said}) if reason else ([change], {}))


def test_an_interrupt_leaves_out_files_not_imported_yet(monkeypatch: pytest.MonkeyPatch) -> None:
    stopped = KeyboardInterrupt()
    path = Path("m.py")
    item = cast("Any", Place(SimpleNamespace(path=path, text="", encoding="utf-8"), "a site"))
    change = FileChange(path, "m.py", b"", b"import torch_npu\n")
    tree = cast("Any", SimpleNamespace(root=path.parent))

    def verify(*_: object) -> list[Verdict]:
        raise stopped

    monkeypatch.setattr(patching, "verify", verify)
    found = patching._leave_out_broken([change], [item], tree, Settings())
    assert found == ([], {item: "interrupted before it was verified"}, stopped)
