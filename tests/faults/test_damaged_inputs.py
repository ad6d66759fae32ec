"""Inputs that are wrong: changed, in other encodings, of other systems, no files at all."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from benchmarks.fuzz import corpus, mutations
from benchmarks.generator.dump import OUTPUT, write_dump
from benchmarks.generator.parameters import Parameters
from commands import HANGING, JSON, MANY, SMALL, Ended, Npufix, dump, files, some, source

if TYPE_CHECKING:
    from collections.abc import Callable
    from random import Random

_REAL = Path(os.environ.get("NPUFIX_CORPUS") or os.devnull)
_MUTATIONS = {
    ".csv": mutations.of_lines, ".json": mutations.of_json, ".db": mutations.of_database
}  # fmt: skip


def changed(npufix: Npufix, whole: Path, random: Random) -> None:
    """Diagnose a copy of a dump of which a file or two are changed."""
    copy = npufix.root / (whole.name if whole.name.endswith("_ascend_pt") else "d_ascend_pt")
    shutil.copytree(whole, copy, copy_function=shutil.copyfile)
    for path in (copy, *copy.rglob("*")):
        path.chmod(0o755 if path.is_dir() else 0o644)
    for file in random.sample(files(copy), random.choice((1, 1, 2))):
        data = file.read_bytes()
        mutate = _MUTATIONS.get(file.suffix) if len(data) < 1 << 20 else None
        for _ in range(random.choice((1, 2, 4))):
            data = (mutate or mutations.of_bytes)(random, data, [data])
        file.write_bytes(data)
    npufix("diagnose", copy, JSON).report()
    shutil.rmtree(copy)


@pytest.mark.fault(kind="mutated real dumps")
@pytest.mark.skipif(not _REAL.is_dir(), reason="there are no real dumps without --corpus")
@pytest.mark.parametrize("number", range(8 * MANY))
def test_a_real_dump_that_is_damaged(npufix: Npufix, random: Random, number: int) -> None:
    found = sorted(_REAL.rglob("*_ascend_pt"))
    changed(npufix, found[number % len(found)], random)


@pytest.mark.fault(kind="mutated generated dumps")
@pytest.mark.parametrize("number", range(24 * MANY or 3))
def test_a_dump_that_is_damaged(npufix: Npufix, random: Random, number: int) -> None:
    changed(npufix, dump(npufix.root, ("text", "db")[number % 2]), random)


@pytest.mark.fault(kind="encodings")
@pytest.mark.parametrize("encoding", ["utf-16", "utf-16-be", "utf-8-sig"])
def test_a_dump_in_another_encoding(
    npufix: Npufix, encoding: str, record_property: Callable[[str, object], None]
) -> None:
    whole = dump(npufix.root)
    tried = some(files(whole), 2)
    record_property("attempts", len(tried))
    for file in tried:
        original = file.read_bytes()
        file.write_bytes(original.decode().encode(encoding))
        npufix("diagnose", whole)
        file.write_bytes(original)


@pytest.mark.fault(kind="encodings")
@pytest.mark.parametrize(
    ("encoding", "name"),
    some([(encoding, name) for encoding in ("utf-16", "utf-32", "utf-8-sig", "latin-1", "shift-jis")
          for name in ("m.py", "pyproject.toml")]),
)  # fmt: skip
def test_a_source_in_another_encoding(npufix: Npufix, encoding: str, name: str) -> None:
    folder = source(npufix.root)
    text = corpus.file("source.txt" if name == "m.py" else "settings.toml").decode()
    (folder / name).write_bytes(text.encode(encoding))
    npufix("scan", folder)


@pytest.mark.fault(kind="locales")
@pytest.mark.parametrize("command", ["diagnose", "scan"])
@pytest.mark.parametrize(
    "more", some([{}, {"NPUFIX_LANG": "zh"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}], 1)
)
def test_names_with_letters_that_the_locale_lacks(
    tmp_path: Path, command: str, more: dict[str, str]
) -> None:
    parent = tmp_path / "\u8bad\u7ec3 \xe4\U0001f600"
    parent.mkdir()
    whole = write_dump(SMALL, parent, "text")
    file = whole / OUTPUT / "kernel_details.csv"
    file.write_bytes(file.read_bytes().replace(b"aclnn", "\u7b97\u5b50\x9b".encode()))
    (parent / "\u6a21\u578b.py").write_bytes(
        corpus.file("source.txt") + "# \u6ce8\u91ca\n".encode()
    )
    (tmp_path / "tmp").mkdir()
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    places = {"TMPDIR": str(tmp_path / "tmp"), "XDG_CACHE_HOME": str(tmp_path / "cache")}
    arguments = [whole, "--source", parent] if command == "diagnose" else [parent]
    done = subprocess.run(
        [sys.executable, "-m", "npufix.advisor", command, *arguments],
        capture_output=True, env={**os.environ, **places, **plain, **more}, check=False,
        timeout=HANGING,
    )  # fmt: skip
    out, err = (text.decode("utf-8", "replace") for text in (done.stdout, done.stderr))
    left = tuple(path.name for path in (tmp_path / "tmp").iterdir())
    Ended(done.returncode, out, err, left).check()


@pytest.mark.fault(kind="Windows line ends and paths")
def test_line_ends_change_nothing(npufix: Npufix) -> None:
    reports = set()
    for end in ("\r\n", "\n"):
        parameters = Parameters(kernels=24, steps=2, line_end=end)
        (npufix.root / "made").mkdir()
        made = write_dump(parameters, npufix.root / "made", "text")
        here = made.rename(npufix.root / "same_ascend_pt")
        reports.add(npufix("diagnose", here, JSON).out)
        for folder in (here, npufix.root / "made"):
            shutil.rmtree(folder)
    assert len(reports) == 1


@pytest.mark.fault(kind="Windows line ends and paths")
@pytest.mark.parametrize(
    "path",
    some([rb"C:\\work\\m.py", rb"\\\\server\\share\\m.py", rb"D:m.py", rb"con\\..\\..\\m.py"], 2),
)
def test_paths_of_windows_harm_nothing(npufix: Npufix, path: bytes) -> None:
    whole = dump(npufix.root)
    for name in ("trace_view.json", "operator_details.csv"):
        file = whole / OUTPUT / name
        spelled = path if file.suffix == ".json" else path.replace(b"\\\\", b"\\")
        file.write_bytes(file.read_bytes().replace(b"/", spelled))
    npufix("diagnose", whole, "--source", source(npufix.root))


@pytest.mark.fault(kind="symbolic links")
@pytest.mark.parametrize("target", some([".", "..", "nothing", "loop", "/", "/etc/passwd"]))
def test_links_in_place_of_files_and_folders(npufix: Npufix, target: str) -> None:
    whole, program = dump(npufix.root), source(npufix.root)
    for folder in (whole, whole / OUTPUT, program):
        (folder / "loop").symlink_to(target)
        (folder / "loop.py").symlink_to(target)
    if target != "/":  # which would be read as a whole
        npufix("diagnose", whole, "--source", program)
    for name in ("kernel_details.csv", "trace_view.json", "communication.json"):
        (whole / OUTPUT / name).unlink(missing_ok=True)
        (whole / OUTPUT / name).symlink_to(target)
    npufix("diagnose", whole)


@pytest.mark.fault(kind="symbolic links")
@pytest.mark.parametrize("command", ["diagnose", "scan"])
def test_a_link_to_itself(npufix: Npufix, command: str) -> None:
    (npufix.root / "itself").symlink_to("itself")
    npufix(command, npufix.root / "itself")


def _socket(path: Path) -> None:
    here = Path.cwd()
    os.chdir(path.parent)  # the name of a socket is at most 107 bytes
    try:
        with socket.socket(socket.AF_UNIX) as made:
            made.bind(path.name)
    finally:
        os.chdir(here)


_SPECIAL = pytest.mark.parametrize(
    "make", [os.mkfifo, _socket, lambda path: path.symlink_to("/dev/zero")],
    ids=["pipe", "socket", "device"],
)  # fmt: skip


@pytest.mark.fault(kind="special files")
@_SPECIAL
@pytest.mark.parametrize(
    "name", some(["kernel_details.csv", "trace_view.json", "op_statistic.csv", "new.py"], 2)
)
def test_what_is_no_file_of_a_dump(
    npufix: Npufix, name: str, make: Callable[[Path], object]
) -> None:
    whole = dump(npufix.root)
    (whole / OUTPUT / name).unlink(missing_ok=True)
    make(whole / OUTPUT / name)
    npufix("diagnose", whole)


@pytest.mark.fault(kind="special files")
@_SPECIAL
@pytest.mark.parametrize(
    ("command", "name"), [("scan", ""), ("scan", "x.py"), ("diagnose", "x.py")]
)
def test_what_is_no_file_of_a_source(
    npufix: Npufix, command: str, name: str, make: Callable[[Path], object]
) -> None:
    folder = source(npufix.root)
    for special in ("x.py", "pyproject.toml"):
        make(folder / special)
    npufix(command, folder / name)
