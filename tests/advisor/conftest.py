"""What the command-line tests share: the installed command, the example, the real dumps."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.commands.cli import main
from npufix.advisor.patch import patching
from npufix.rewriters.verification.verdict import Status, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from npufix.rewriters.verification import Job, Settings

ROOT = Path(__file__).parents[2]
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session", autouse=True)
def cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Keep verdicts for the time of the tests, away from the user's own."""
    folder = tmp_path_factory.mktemp("cache")
    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("XDG_CACHE_HOME", str(folder))
        patched.setenv("XDG_STATE_HOME", str(folder / "state"))
        yield folder / "npufix" / "verdicts"


@pytest.fixture(scope="session")
def npufix() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the installed command as a user does, 80 columns, no terminal."""
    command = Path(sys.executable).parent / "npufix"
    environment = {k: v for k, v in os.environ.items() if k not in {"FORCE_COLOR", "NO_COLOR"}}

    def run(*args: object, cwd: Path = ROOT) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [command, *map(str, args)],
            capture_output=True,
            check=False,
            cwd=cwd,
            encoding="utf-8",
            env={**environment, "COLUMNS": "80"},
            stdin=subprocess.DEVNULL,
            timeout=1800,
        )

    return run


@pytest.fixture(scope="session")
def inside() -> Callable[..., subprocess.CompletedProcess[str]]:
    """Run the command line in this process: the same answers without a second of imports."""

    def run(*args: object, width: int = 80) -> subprocess.CompletedProcess[str]:
        words = list(map(str, args))
        out, errors, status = _Output(), _Output(), 0
        with pytest.MonkeyPatch.context() as patched:
            patched.chdir(ROOT)
            patched.setenv("COLUMNS", str(width))
            patched.delenv("FORCE_COLOR", raising=False)
            patched.setattr(sys, "stdout", out)
            patched.setattr(sys, "stderr", errors)
            patched.setattr(sys, "argv", ["npufix", *words])
            try:
                main()
            except SystemExit as end:
                status = int(end.code or 0)
        return subprocess.CompletedProcess(words, status, out.text(), errors.text())

    return run


class _Output(io.TextIOWrapper):
    """A stream that keeps what is written to it, bytes included."""

    def __init__(self) -> None:
        self.kept = io.BytesIO()
        super().__init__(self.kept, encoding="utf-8", write_through=True)

    def text(self) -> str:
        return self.kept.getvalue().decode("utf-8")


@pytest.fixture
def proven(monkeypatch: pytest.MonkeyPatch) -> None:
    """Call every change equivalent without a run: what becomes of proven ones is tested."""

    def verify(jobs: Sequence[Job], settings: Settings) -> list[Verdict]:
        verdicts = [Verdict(Status.EQUIVALENT, "nothing ran", job.qualname) for job in jobs]
        for job, verdict in zip(jobs, verdicts, strict=True):
            settings.decided(job, verdict, len(jobs))
        return verdicts

    monkeypatch.setattr(patching, "verify", verify)


@pytest.fixture
def example(cache: Path) -> Path:
    """Return a copy of the example's source, always at one place: a verdict holds for a file."""
    copy = cache.parents[1] / "source" / "bert_like"
    shutil.rmtree(copy.parent, ignore_errors=True)
    ignored = shutil.ignore_patterns("__pycache__")
    shutil.copytree(ROOT / "examples" / "bert_like", copy, ignore=ignored)
    return copy


@pytest.fixture
def dump(tmp_path: Path) -> Path:
    """Return a copy of the example's dump: the folder *_ascend_pt."""
    copy = tmp_path / "dump"
    shutil.copytree(ROOT / "examples" / "dump", copy)
    return next(copy.glob("*_ascend_pt"))


@pytest.fixture(scope="session")
def real_dumps() -> Path:
    """Return the folder of the real dumps."""
    folder = SHARED / "dumps"
    if not folder.is_dir():
        pytest.skip("the real dumps are not on this machine")
    return folder
