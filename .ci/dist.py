"""Make the source distribution and the wheel twice, and keep them if both are the same bytes.

    python .ci/dist.py [--once] [FOLDER]

The two are made in different folders, with other permissions, time zone, language, hash seed and
order of files. The date in them is SOURCE_DATE_EPOCH, or that of the last commit. The wheel is made
from the source distribution, so that nothing else in the working tree gets into it. With --once
they are made once, and nothing is compared.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import shutil
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
_BACKEND = "from setuptools import build_meta as b; import sys; b.{}(sys.argv[1])"
_MACHINES = (
    ("here", 0o022, {"TZ": "UTC0", "LC_ALL": "C", "PYTHONHASHSEED": "1"}),
    ("another/place", 0o077, {"TZ": "CST-8", "LC_ALL": "C.UTF-8", "PYTHONHASHSEED": "2"}),
)


def main(arguments: list[str]) -> int:
    """Make both, twice; return the exit status."""
    once = arguments[:1] == ["--once"]
    folder = Path([*arguments, ROOT / "dist"][once])
    machines = _MACHINES[:1] if once else _MACHINES
    try:
        epoch, files = _epoch(), _files()
        with tempfile.TemporaryDirectory() as scratch:
            made = [_distributions(Path(scratch), machine, files, epoch) for machine in machines]
            return _keep(made, folder)
    except subprocess.CalledProcessError as error:
        print(error.stderr or error, file=sys.stderr)
        return error.returncode
    except (OSError, ValueError) as error:
        print(f"dist: {error}", file=sys.stderr)
        return 2


def _keep(made: list[list[Path]], folder: Path) -> int:
    """Compare what was made, and copy it to ``folder`` with its hashes."""
    sums = []
    for first, second in zip(made[0], made[-1], strict=True):
        if first.name != second.name or first.read_bytes() != second.read_bytes():
            print(f"dist: {first.name} differs from {second.name} made elsewhere", file=sys.stderr)
            return 1
        sums.append(f"{hashlib.sha256(first.read_bytes()).hexdigest()}  {first.name}")
    folder.mkdir(parents=True, exist_ok=True)
    for path in made[0]:
        shutil.copyfile(path, folder / path.name)
    text = "\n".join(sums) + "\n"
    (folder / "SHA256SUMS").write_text(text, encoding="utf-8")
    compared = "made twice, the same bytes" if len(made) > 1 else "made once"
    print(f"{text}{compared}; in {folder}")
    return 0


def _distributions(
    scratch: Path,
    machine: tuple[str, int, dict[str, str]],
    files: list[str],
    epoch: int,
) -> list[Path]:
    """Return the source distribution and the wheel, made on what looks like another machine."""
    place, umask, environment = machine
    work = scratch / place
    tree = work / "npufix"
    for name in files if place == "here" else reversed(files):
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, tree / name, follow_symlinks=False)
        if not (tree / name).is_symlink():
            (tree / name).chmod(0o666 & ~umask)
    environment = {**os.environ, **environment, "SOURCE_DATE_EPOCH": str(epoch)}
    _build("build_sdist", tree, work, environment)
    source = _normalised(next(work.glob("*.tar.gz")), epoch)
    with tarfile.open(source) as archive:
        archive.extractall(work, filter="data")
    _build("build_wheel", work / source.name.removesuffix(".tar.gz"), work, environment)
    return [source, next(work.glob("*.whl"))]


def _build(what: str, tree: Path, out: Path, environment: dict[str, str]) -> None:
    """Call the build backend; the umask of whoever makes the release would be in the wheel."""
    command = [sys.executable, "-c", _BACKEND.format(what), str(out)]
    subprocess.run(
        command,
        cwd=tree,
        env=environment,
        umask=0o022,
        check=True,
        capture_output=True,
        text=True,
    )


def _normalised(source: Path, epoch: int) -> Path:
    """Write a source distribution anew: files by name, one date, nobody's, nothing of the disk.

    setuptools keeps the times and the owner of the files it wrote itself, and gzip its own time.
    """
    with tarfile.open(source) as archive:
        contents = {
            member.name: archive.extractfile(member).read()  # type: ignore[union-attr] - a file
            for member in archive
            if member.isfile()
        }
    with (
        source.open("wb") as raw,
        gzip.GzipFile("", "wb", 9, raw, mtime=epoch) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as archive,
    ):
        for name, content in sorted(contents.items()):
            member = tarfile.TarInfo(name)
            member.size, member.mtime, member.mode = len(content), epoch, 0o644
            archive.addfile(member, io.BytesIO(content))
    return source


def _files() -> list[str]:
    """Return what git knows, or would: builds, caches and the ignored are not in it."""
    listed = _git("ls-files", "-z", "--cached", "--others", "--exclude-standard")
    changed = _git("status", "--porcelain")
    if changed:
        print(f"dist: with {len(changed.splitlines())} changes that are not committed")
    return sorted(name for name in listed.split("\0") if name and _is_ours(ROOT / name))


def _is_ours(path: Path) -> bool:
    """Tell whether a path is a file, or a link to a package: the name that it is imported by."""
    return path.is_file() or path.is_symlink()


def _epoch() -> int:
    return int(os.environ.get("SOURCE_DATE_EPOCH") or _git("log", "-1", "--format=%ct"))


def _git(*arguments: str) -> str:
    command = ["git", *arguments]
    done = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True)
    return done.stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
