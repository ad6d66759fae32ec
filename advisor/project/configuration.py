"""What a project asks for: ``[tool.npufix]`` in pyproject.toml, or npufix.toml."""

from __future__ import annotations

import configparser
import fnmatch
import sys
from dataclasses import dataclass, replace
from functools import cache
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from npufix.advisor.project.assumed import SETS, conditions_of
from npufix.advisor.project.gate_settings import GateSettings, read_settings
from npufix.advisor.project.known_names import ConfigurationError, condition_names, rule_names

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

    from npufix.advisor.project.rule_index import KnownRule
    from npufix.rules.registry import Rule

_NAMES = ("npufix.toml", "pyproject.toml")
_LISTS = ("select", "ignore", "exclude", "allow", "assume")
_EVERYWHERE = "everywhere"
_TABLES = ("per-file-ignores", "gate", "findings")
KEYS = (*_LISTS, _EVERYWHERE, *_TABLES)


@dataclass(frozen=True, slots=True)
class Configuration:
    """What holds for the files below one folder; empty where no file says anything."""

    folder: Path | None = None
    """The folder of the configuration file: what its patterns are relative to."""
    select: frozenset[str] = frozenset()
    """Ids or names of rules, lower case as everywhere here; empty means all."""
    ignore: frozenset[str] = frozenset()
    exclude: tuple[str, ...] = ()
    allow: frozenset[str] = frozenset()
    """Names of conditions that the project vouches for."""
    per_file_ignores: tuple[tuple[str, frozenset[str]], ...] = ()
    everywhere: bool = False
    """Whether findings in tests, examples and code on the host are wanted too."""
    gate: GateSettings | None = None
    """``[gate]`` and ``[findings]``; None where there is neither."""

    def with_command_line(
        self, rules: Sequence[str], allow: Sequence[str], *, everywhere: bool = False
    ) -> Configuration:
        """Return this with what the user typed, which wins."""
        everywhere = everywhere or self.everywhere
        chosen = replace(self, allow=self.allow | set(allow), everywhere=everywhere)
        return replace(chosen, select=_lower(rules), ignore=frozenset()) if rules else chosen

    def wants(self, rule: Rule | KnownRule) -> bool:
        """Tell whether a rule is to be used at all."""
        names = {rule.id.lower(), rule.name}
        return (not self.select or bool(names & self.select)) and not names & self.ignore

    def excludes(self, path: Path) -> bool:
        """Tell whether a file is to be left out."""
        return any(self._matches(path, pattern) for pattern in self.exclude)

    def find_ignored(self, path: Path) -> frozenset[str]:
        """Return the rules that are not wanted in a file."""
        sets = (names for glob, names in self.per_file_ignores if self._matches(path, glob))
        return frozenset().union(*sets)

    def _matches(self, path: Path, pattern: str) -> bool:
        """Tell whether a pattern names a file, a folder above it, or a part of its path."""
        if self.folder is None or not path.is_relative_to(self.folder):
            return False
        relative = PurePosixPath(path.relative_to(self.folder).as_posix())
        above = [str(p) for p in (relative, *relative.parents[:-1])]
        glob = pattern.rstrip("/").removeprefix("./")
        return any(fnmatch.fnmatchcase(name, glob) for name in (*above, *relative.parts))


EVERYTHING = Configuration()
"""Where no file says anything."""


def read_configuration(source: Path) -> Configuration:
    """Return the configuration nearest above a source folder (or file).

    Raises:
        ConfigurationError: it cannot be read, or says something that has no meaning.

    """
    start = source.resolve()
    for folder in (start, *start.parents) if start.is_dir() else start.parents:
        for name in _NAMES:
            path = folder / name
            if path.is_file():
                table = _table(path)
                if table is not None:
                    return _check(path, table)
    return EVERYTHING


def _table(path: Path) -> Mapping[str, Any] | None:
    """Return the table of a file; ``None`` for a pyproject.toml that has none."""
    try:
        content = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigurationError(f"{path}: {error.strerror}", "check its permissions") from error
    except (ValueError, RecursionError) as error:  # not TOML, no text, too long a number, too deep
        raise ConfigurationError(f"{path}: not valid TOML: {error}", "correct it") from error
    if path.name != "pyproject.toml":
        return content
    tool = content.get("tool")
    if not isinstance(tool, dict) or "npufix" not in tool:
        return None
    table = tool["npufix"]
    if not isinstance(table, dict):
        raise ConfigurationError(f"{path}: tool.npufix is no table", "write [tool.npufix]")
    return table


def _check(path: Path, table: Mapping[str, Any]) -> Configuration:
    for key in table:
        if key not in KEYS:
            raise ConfigurationError(f"{path}: unknown key {key}", f"there are {', '.join(KEYS)}")
    lists = {key: _strings(path, key, table.get(key, [])) for key in _LISTS}
    everywhere = table.get(_EVERYWHERE, False)
    if not isinstance(everywhere, bool):
        raise _wrong_type(path, _EVERYWHERE, "true or false", everywhere)
    per_file = table.get("per-file-ignores", {})
    if not isinstance(per_file, dict):
        raise _wrong_type(path, "per-file-ignores", "a table of patterns", per_file)
    ignores = {glob: _strings(path, _key(glob), names) for glob, names in per_file.items()}
    _check_rules(path, {k: lists[k] for k in ("select", "ignore")})
    _check_rules(path, {_key(glob): names for glob, names in ignores.items()})
    _check_conditions(path, lists["allow"])
    for name in lists["assume"]:
        if name not in SETS:
            remedy = f"there are {', '.join(SETS)}"
            raise ConfigurationError(f"{path}: assume names no set of conditions {name}", remedy)
    return Configuration(
        folder=path.parent,
        select=_lower(lists["select"]),
        ignore=_lower(lists["ignore"]),
        exclude=tuple(lists["exclude"]),
        allow=frozenset(lists["allow"]) | conditions_of(lists["assume"]),
        per_file_ignores=tuple((glob, _lower(names)) for glob, names in ignores.items()),
        everywhere=everywhere,
        gate=_gate(path, table),
    )


def _gate(path: Path, table: Mapping[str, Any]) -> GateSettings | None:
    if "gate" not in table and "findings" not in table:
        return None
    return read_settings(path, table)


def _key(glob: str) -> str:
    return f'per-file-ignores."{glob}"'


def _lower(names: Sequence[str]) -> frozenset[str]:
    return frozenset(name.lower() for name in names)


def _strings(path: Path, key: str, value: object) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        raise _wrong_type(path, key, "a list of strings", value)
    return value


def _wrong_type(path: Path, key: str, wanted: str, value: object) -> ConfigurationError:
    return ConfigurationError(f"{path}: {key} is {value!r}, not {wanted}", f"write {wanted}")


def _check_rules(path: Path, lists: Mapping[str, Sequence[str]]) -> None:
    for key, names in lists.items():
        for name in names:
            if name.lower() not in rule_names():
                raise ConfigurationError(f"{path}: {key} names no rule {name}", "see npufix rules")


def _check_conditions(path: Path, names: Sequence[str]) -> None:
    for name in names:
        if name not in condition_names():
            remedy = f"there are {', '.join(sorted(condition_names()))}"
            raise ConfigurationError(f"{path}: allow names no condition {name}", remedy)


_NARROWEST, _WIDEST = 40, 200
_WIDTHS = (
    ("ruff.toml", "line-length", ("",)),
    (".ruff.toml", "line-length", ("",)),
    ("pyproject.toml", "line-length", ("tool.ruff", "tool.black")),
    ("pyproject.toml", "max-line-length", ("tool.flake8",)),
    ("pyproject.toml", "column_limit", ("tool.yapf",)),
    (".flake8", "max-line-length", ("flake8",)),
    ("setup.cfg", "max-line-length", ("flake8", "pycodestyle")),
    ("tox.ini", "max-line-length", ("flake8", "pycodestyle")),
    (".style.yapf", "column_limit", ("style",)),
    ("setup.cfg", "column_limit", ("yapf",)),
    (".editorconfig", "max_line_length", ("*.py", "*.{py,pyi}", "*")),
)
"""Where formatters and linters are told how long a line may be: file, key, sections."""


@cache
def find_line_width(folder: Path) -> int | None:
    """Return how long a line of code may be in a folder, as far as its project says so."""
    for name, key, sections in _WIDTHS:
        tables = _read_tables(folder / name)
        for width in (tables.get(section, {}).get(key) for section in sections):
            if str(width).isdecimal() and _NARROWEST <= int(str(width)) <= _WIDEST:
                return int(str(width))
    last = folder == folder.parent or (folder / ".git").exists()
    return None if last else find_line_width(folder.parent)


@cache
def _read_tables(path: Path) -> Mapping[str, Mapping[str, object]]:
    """Return the sections of a file of another tool, by their names; what is damaged has none."""
    if not path.is_file():
        return {}
    try:
        text = path.read_text(encoding="utf-8")
        if path.suffix == ".toml":
            return dict(_list_tables("", tomllib.loads(text)))
        parser = configparser.RawConfigParser(strict=False)
        parser.read_string(f"[{parser.default_section}]\n{text}")  # .editorconfig begins without
    except (OSError, ValueError, RecursionError, configparser.Error):
        return {}
    return {name: dict(parser[name]) for name in parser.sections()}


def _list_tables(name: str, table: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, object]]]:
    yield name, table
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _list_tables(f"{name}.{key}".lstrip("."), value)
