"""The house keeps its shape: imports run one way, files stay small, libraries load late."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

# Each file is parsed once.
pytestmark = pytest.mark.xdist_group("architecture")

ROOT = Path(__file__).parents[1]
MAY_IMPORT = {
    "profiling_parsers": set(),
    "rules": {"profiling_parsers"},
    "rewriters": {"rules"},
    "reports": {"profiling_parsers", "rules", "rewriters"},
    "advisor": {"profiling_parsers", "rules", "rewriters", "reports"},
}
FILES = sorted(path for package in MAY_IMPORT for path in (ROOT / package).rglob("*.py"))
FOLDERS = sorted({path.parent for path in FILES})
_LONGEST_FILE = 500
_LONGEST_FUNCTION = 60
_MOST_FILES = 15
# Folders whose files are siblings of one kind, each found by its place: as many as there are.
_SIBLINGS = {
    "advisor/commands",
    "reports/formats",
    "rewriters/verification/kernels",
    "rules/cluster",
    "rules/diagnostics",
    "rules/substitutions",
}
_MOST_ROOMS, _MOST_FLOORS = 8, 5


def names(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def files_of(package: str) -> list[Path]:
    return [path for path in FILES if path.is_relative_to(ROOT / package)]


class Import(NamedTuple):
    """One module that another one imports."""

    module: str
    line: int
    at_run_time: bool
    """Not only for annotations, and when the module is loaded, not when a function is called."""


@cache
def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def modules() -> dict[str, Path]:
    return {
        ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__"): path
        for path in FILES
    }


@cache
def statements(path: Path) -> list[tuple[ast.stmt, bool]]:
    """Return all statements of a file, and whether each runs when the file is loaded."""
    found: list[tuple[ast.stmt, bool]] = []
    todo: list[tuple[ast.AST, bool]] = [(tree(path), True)]
    while todo:
        node, loaded = todo.pop()
        if isinstance(node, ast.stmt):
            found.append((node, loaded))
        if isinstance(node, ast.FunctionDef):
            loaded = False
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            loaded = False
        for part in ("body", "orelse", "handlers", "finalbody", "cases"):
            todo += ((child, loaded) for child in getattr(node, part, ()))
    return found


def imports(module: str) -> Iterator[Import]:
    """Yield what a module imports of ours, wherever in the file."""
    for node, loaded in statements(modules()[module]):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("npufix"):
            base = str(node.module).removeprefix("npufix").removeprefix(".")
            for alias in node.names:
                full = f"{base}.{alias.name}".removeprefix(".")
                yield Import(full if full in modules() else base, node.lineno, loaded)


@cache
def all_imports() -> dict[str, tuple[Import, ...]]:
    return {module: tuple(imports(module)) for module in modules()}


def circle(arrows: dict[str, set[str]]) -> list[str]:
    """Return a circle of arrows, empty if there is none: ``a -> b -> a``."""
    done: set[str] = set()

    def follow(at: str, way: list[str]) -> list[str]:
        if at in way:
            return [*way[way.index(at) :], at]
        if at not in done:
            for other in sorted(arrows.get(at, ())):
                if found := follow(other, [*way, at]):
                    return found
            done.add(at)
        return []

    return next((found for start in sorted(arrows) if (found := follow(start, []))), [])


def rooms(folder: str, *, but: Iterable[str] = ()) -> dict[str, set[str]]:
    """Return the files and folders directly in a folder, each with those that it imports."""

    def room(module: str) -> str:
        rest = module.removeprefix(f"{folder}.")
        return "" if rest == module or rest in but else rest.split(".")[0]

    arrows: dict[str, set[str]] = {room(module): set() for module in modules()}
    for module, found in all_imports().items():
        arrows[room(module)] |= {room(item.module) for item in found} - {room(module), ""}
    arrows.pop("", None)
    return arrows


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_imports_run_one_way(package: str) -> None:
    allowed = {package, *MAY_IMPORT[package]}
    assert [
        f"{names(modules()[module])}:{item.line} {item.module}"
        for module, found in all_imports().items()
        for item in found
        if module.split(".")[0] == package
        if item.module and item.module.split(".")[0] not in allowed
    ] == []


def test_folders_inside_a_package_have_an_order() -> None:
    """No arrow back, annotations and imports in functions included."""
    circles = {}
    for folder in FOLDERS:
        arrows = rooms(".".join(folder.relative_to(ROOT).parts))
        inside = {name for name in arrows if (folder / name).is_dir()}
        # Files beside folders take part where a folder imports them; among themselves, below.
        found = circle({a: {b for b in arrows[a] if inside & {a, b}} for a in arrows})
        circles[names(folder)] = found
    assert {folder: found for folder, found in circles.items() if found} == {}


def test_the_folders_of_the_parsers_are_told_in_their_order() -> None:
    folder = ROOT / "profiling_parsers"
    told = (folder / "__init__.py").read_text("utf-8")
    at = {path.name: told.index(f"``{path.name}``") for path in FOLDERS if path.parent == folder}
    arrows = rooms(folder.name)
    assert [(a, b) for a in at for b in arrows[a] & set(at) if at[b] > at[a]] == []


def test_no_modules_import_each_other_in_a_circle() -> None:
    loaded = {
        module: {item.module for item in found if item.at_run_time} - {module}
        for module, found in all_imports().items()
    }
    # A package is loaded before what is in it.
    assert circle({m: {o for o in others if not m.startswith(f"{o}.")}
                   for m, others in loaded.items()}) == []  # fmt: skip


def test_the_drawing_of_the_rewriters_fits_a_page() -> None:
    arrows = rooms("rewriters")

    @cache
    def floor(room: str) -> int:
        return 1 + max((floor(below) for below in arrows[room]), default=0)

    assert len(arrows) <= _MOST_ROOMS
    assert max(map(floor, arrows)) <= _MOST_FLOORS


def test_a_folder_can_be_taken_in_at_a_glance() -> None:
    crowded, unexplained = [], []
    for folder in FOLDERS:
        beside = [path for path in FILES if path.parent == folder and path.name != "__init__.py"]
        if len(beside) > _MOST_FILES and names(folder) not in _SIBLINGS:
            crowded.append(names(folder))
        text = (folder / "__init__.py").read_text("utf-8") if len(beside) > 1 else '"""'
        if not text.startswith('"""'):
            unexplained.append(names(folder))
    assert crowded == []
    assert unexplained == [], "say what comes in, what goes out, and in which order to read"


@pytest.mark.parametrize("package", MAY_IMPORT)
def test_files_and_functions_stay_small(package: str) -> None:
    paths = files_of(package)
    lengths = {names(path): len(path.read_text("utf-8").splitlines()) for path in paths}
    assert {name for name, length in lengths.items() if length > _LONGEST_FILE} == set()
    assert [
        f"{names(path)}:{node.lineno} {node.name}"
        for path in paths
        for node, _ in statements(path)
        if isinstance(node, ast.FunctionDef)
        if (node.end_lineno or 0) - node.lineno >= _LONGEST_FUNCTION + 10
    ] == []


def test_every_package_is_installed() -> None:
    listed = (ROOT / "pyproject.toml").read_text(encoding="utf-8")
    for path in FILES:
        assert f'"npufix.{".".join(path.relative_to(ROOT).parent.parts)}"' in listed
