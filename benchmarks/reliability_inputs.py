"""Inputs that are wrong: changed, in other encodings, of other systems, no files at all."""

from __future__ import annotations

import json
import os
import shutil
import socket
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.fuzz import corpus, mutations
from benchmarks.generator.dump import OUTPUT, write_dump
from benchmarks.generator.parameters import Parameters
from benchmarks.reliability_running import Ended, command, real_command

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from random import Random

    Faults = Iterator[str]
    Fault = Callable[["Place"], Faults]

SMALL = Parameters(kernels=24, steps=2, ranks=2)
JSON = "--json"


class Place:
    """A folder to work in, a dump in it, and how much is to be tried."""

    def __init__(self, root: Path, random: Random, many: int, real: Path | None) -> None:
        self.root = root
        self.random = random
        self.many = many
        self.real = real
        self._made = 0

    def folder(self) -> Path:
        """Return a new folder."""
        self._made += 1
        made = self.root / f"work{self._made}"
        made.mkdir()
        return made

    def dump(self, export: str = "text") -> Path:
        """Return a small dump of its own."""
        return write_dump(SMALL, self.folder(), export)

    def source(self) -> Path:
        """Return a folder with a source file in which there is something to find."""
        folder = self.folder()
        (folder / "m.py").write_text(corpus.SOURCE)
        return folder


def files(dump: Path) -> list[Path]:
    """Return all files below a folder."""
    return sorted(file for file in dump.rglob("*") if file.is_file())


def _mutate(file: Path, random: Random) -> None:
    data = file.read_bytes()
    by = {".csv": mutations.of_lines, ".json": mutations.of_json, ".db": mutations.of_database}
    mutate = by.get(file.suffix, mutations.of_bytes) if len(data) < 1 << 20 else mutations.of_bytes
    for _ in range(random.choice((1, 2, 4))):
        data = mutate(random, data, [data])
    file.write_bytes(data)


def _mutated(place: Place, dumps: list[Path], times: int) -> Faults:
    for number in range(times):
        dump = dumps[number % len(dumps)]
        copy = place.folder() / (dump.name if dump.name.endswith("_ascend_pt") else "d_ascend_pt")
        shutil.copytree(dump, copy, copy_function=shutil.copyfile)
        for path in (copy, *copy.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
        for file in place.random.sample(files(copy), place.random.choice((1, 1, 2))):
            _mutate(file, place.random)
        ended = command(["diagnose", copy, JSON], place.root)
        yield ended.fault() or not_json(ended)
        shutil.rmtree(copy)


def not_json(ended: Ended) -> str:
    """Return what is wrong with the report on standard output."""
    if not ended.out and ended.err:  # the input was refused
        return ""

    def refuse(name: str) -> None:
        raise ValueError(f"{name} in the report")

    try:
        json.loads(ended.out, parse_constant=refuse)
    except ValueError as error:
        return f"no JSON: {error}"
    return ""


def mutated_real_dumps(place: Place) -> Faults:
    """Change one file or two of copies of real dumps."""
    found = sorted(place.real.rglob("*_ascend_pt")) if place.real else []
    if found:
        yield from _mutated(place, found, 8 * place.many)


def mutated_generated_dumps(place: Place) -> Faults:
    """Change one file or two of generated dumps of both exports."""
    yield from _mutated(place, [place.dump("text"), place.dump("db")], 24 * place.many)


def encodings(place: Place) -> Faults:
    """Each file of a dump, a source and a configuration in UTF-16, UTF-32 or with a mark."""
    whole = place.dump()
    for file in files(whole):
        original = file.read_bytes()
        for encoding in ("utf-16", "utf-16-be", "utf-8-sig"):
            file.write_bytes(original.decode().encode(encoding))
            yield command(["diagnose", whole], place.root).fault()
        file.write_bytes(original)
    source = place.source()
    for encoding in ("utf-16", "utf-32", "utf-8-sig", "latin-1", "shift-jis"):
        (source / "m.py").write_bytes(corpus.SOURCE.encode(encoding))
        yield command(["scan", source], place.root).fault()
        (source / "pyproject.toml").write_bytes(corpus.PYPROJECT.encode(encoding))
        yield command(["scan", source], place.root).fault()
        (source / "pyproject.toml").unlink()


def locales(place: Place) -> Faults:
    """Run in locales without letters, on files and folders whose names have many."""
    parent = place.folder() / "\u8bad\u7ec3 \xe4\U0001f600"
    parent.mkdir()
    dump = write_dump(SMALL, parent, "text")
    file = dump / OUTPUT / "kernel_details.csv"
    file.write_bytes(file.read_bytes().replace(b"aclnn", "\u7b97\u5b50\x9b".encode()))
    (parent / "\u6a21\u578b.py").write_text(corpus.SOURCE + "# \u6ce8\u91ca\n", encoding="utf-8")
    plain = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    for more in ({}, {"NPUFIX_LANG": "zh"}, {"LC_ALL": "POSIX", "PYTHONIOENCODING": "ascii"}):
        for arguments in (["diagnose", dump, "--source", parent], ["scan", parent]):
            yield real_command(arguments, place.root, {**plain, **more}).fault()


def windows(place: Place) -> Faults:
    """Line ends of either kind give the same; paths of Windows in stacks harm nothing."""
    reports = []
    for end in ("\r\n", "\n"):
        parameters = Parameters(kernels=24, steps=2, line_end=end)
        dump = write_dump(parameters, place.folder(), "text")
        here = dump.rename(place.root / "same_ascend_pt")
        ended = command(["diagnose", here, JSON], place.root)
        reports.append(ended.out)
        yield ended.fault()
        shutil.rmtree(here)
    yield "" if reports[0] == reports[1] else "line ends change the report"
    dump, source = place.dump(), place.source()
    for path in (
        rb"C:\\work\\m.py",
        rb"\\\\server\\share\\m.py",
        rb"D:m.py",
        rb"con\\..\\..\\m.py",
    ):
        for name in ("trace_view.json", "operator_details.csv"):
            file = dump / OUTPUT / name
            data = file.read_bytes()
            spelled = path if file.suffix == ".json" else path.replace(b"\\\\", b"\\")
            file.write_bytes(data.replace(b"/", spelled))
        yield command(["diagnose", dump, "--source", source], place.root).fault()


def symlinks(place: Place) -> Faults:
    """Links to themselves, to their parents, to nothing, in place of each file and folder."""
    for target in (".", "..", "nothing", "loop", "/", "/etc/passwd"):
        dump, source = place.dump(), place.source()
        for folder in (dump, dump / OUTPUT, source):
            (folder / "loop").symlink_to(target)
            (folder / "loop.py").symlink_to(target)
        if target != "/":  # which would be read as a whole
            yield command(["diagnose", dump, "--source", source], place.root).fault()
        for name in ("kernel_details.csv", "trace_view.json", "communication.json"):
            (dump / OUTPUT / name).unlink(missing_ok=True)
            (dump / OUTPUT / name).symlink_to(target)
        yield command(["diagnose", dump], place.root).fault()
        (place.root / "itself").unlink(missing_ok=True)
        (place.root / "itself").symlink_to("itself")
        yield command(["diagnose", place.root / "itself"], place.root).fault()
        yield command(["scan", place.root / "itself"], place.root).fault()


def special_files(place: Place) -> Faults:
    """Pipes, sockets and devices in place of files: refused, never waited for."""
    for name in ("kernel_details.csv", "trace_view.json", "op_statistic.csv", "new.py"):
        for make in (os.mkfifo, _socket, partial(os.symlink, "/dev/zero")):
            dump = place.dump()
            file = dump / OUTPUT / name
            file.unlink(missing_ok=True)
            make(str(file))
            yield command(["diagnose", dump], place.root).fault()
    for make in (os.mkfifo, _socket, partial(os.symlink, "/dev/zero")):
        source = place.source()
        make(str(source / "x.py"))
        make(str(source / "pyproject.toml"))
        yield command(["scan", source], place.root).fault()
        yield command(["scan", source / "x.py"], place.root).fault()
        yield command(["diagnose", source / "x.py"], place.root).fault()


def _socket(path: str) -> None:
    here = Path.cwd()
    os.chdir(Path(path).parent)  # the name of a socket is at most 107 bytes
    try:
        socket.socket(socket.AF_UNIX).bind(Path(path).name)
    finally:
        os.chdir(here)
