"""What is released is what the repository says: files, dependencies, licences, hashes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import json
import re
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path
from typing import Any

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name
from packaging.version import Version

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
PACKAGES = ("advisor", "profiling_parsers", "reports", "rewriters", "rules")
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
EXTRAS = PROJECT["optional-dependencies"]
LOCK = (ROOT / ".ci/lock.txt").read_text(encoding="utf-8")
DATA = (
    ".ns/npufix/py.typed",
    ".ns/npufix/*.py",
    "reports/html/templates/*.html",
    "reports/html/scripts/*",
    "reports/locale/*/LC_MESSAGES/*.po",
    "advisor/predict/timing/calls.txt",
    "rewriters/edit/statements/mx_driving.txt",
    "rewriters/graph/operators.txt",
    "rewriters/verification/reference/*.json",
    "rules/diagnostics/*.json",
    "rules/shared/*.json",
)
# Named for the user's environment, where they may be or not.
OPTIONAL = {
    "flash-attn-interface",
    "bitsandbytes",
    "pytest",
    "torch",
    "torch-npu",
    "distributed",
    "xlsxwriter",
    "mindspeed",
    "transformers",
    # Of vendors and others, in the code that rules are shown on.
    "apex",
    "einops",
    "flash-attn",
    "mmcv",
    "mmdet3d",
    "mx-driving",
    "opt-einsum",
    "torch-scatter",
    "torchvision",
    "xformers",
}
DISTRIBUTION_OF = {"yaml": "pyyaml"}
DEVELOPMENT = {"babel", "typing-extensions"}  # of tools and of annotations, not of commands
# Parsing all files would take longer than all else here.
IMPORT = re.compile(
    r"^ *(?:from (?=[\w.]+ import )|import (?=[\w.]+(?: as \w+)?(?:  #.*)?$))([a-z]\w*)",
    re.MULTILINE,
)


def names(requirements: list[str]) -> set[str]:
    return {canonicalize_name(Requirement(one).name) for one in requirements}


def imported() -> dict[str, str]:
    return {
        module: path.relative_to(ROOT).as_posix()
        for package in PACKAGES
        for path in (ROOT / package).rglob("*.py")
        for module in IMPORT.findall(path.read_text(encoding="utf-8"))
    }


def test_every_library_is_declared_and_every_declared_one_is_used() -> None:
    used = {
        canonicalize_name(DISTRIBUTION_OF.get(module, module)): path
        for module, path in imported().items()
        if module not in sys.stdlib_module_names and module != "npufix"
    }
    declared = names(PROJECT["dependencies"])
    undeclared = set(used) - declared - OPTIONAL - DEVELOPMENT
    assert not undeclared, {name: used[name] for name in undeclared}
    assert declared <= set(used)


@pytest.mark.parametrize("text", PROJECT["dependencies"] + [t for e in EXTRAS.values() for t in e])
def test_dependencies_have_both_bounds(text: str) -> None:
    needed = Requirement(text)
    if needed.name in {"npufix", "pandas-stubs", "setuptools"}:
        return  # itself; follows pandas; must not hold back the environment it is in
    assert {one.operator for one in needed.specifier} == {">=", "<"}


def test_the_lock_is_whole_and_fits_what_is_declared() -> None:
    entries = re.split(r"\n(?=[a-z])", LOCK.strip())
    locked = {}
    for entry in entries:
        named, *hashes = entry.split("--hash=")
        one = Requirement(named.replace("\\", "").strip())
        assert hashes, one.name
        assert all(re.fullmatch(r"sha256:[0-9a-f]{64}[\s\\]*", each) for each in hashes), one.name
        locked.setdefault(canonicalize_name(one.name), []).append(next(iter(one.specifier)).version)
    assert "://" not in LOCK
    extras = ("dev", "docs", "cluster", "notebook")
    wanted = [*PROJECT["dependencies"], *(text for name in extras for text in EXTRAS[name])]
    for text in (*wanted, *(ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()):
        if not text or text.startswith("#") or Requirement(text).name in {"npufix", "tomli"}:
            continue
        one = Requirement(text)
        if one.name not in {"torch", "torch-npu", "transformers"}:  # as the documentation says
            versions = locked[canonicalize_name(one.name)]
            assert all(one.specifier.contains(version) for version in versions), text


def script(name: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(ROOT / ".ci" / name), *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_the_bill_of_materials_names_what_is_installed(tmp_path: Path) -> None:
    file = tmp_path / "bill.json"
    done = script("sbom.py", file)
    if "is not installed, or not in" in done.stderr:
        pytest.skip(f"this environment is not the locked one: {done.stderr.strip()}")
    assert not done.returncode, done.stderr
    bill = json.loads(file.read_text(encoding="utf-8"))
    assert "timestamp" not in bill["metadata"], "the same tree gives the same bytes"
    parts: dict[str, Any] = {part["bom-ref"]: part for part in bill["components"]}
    assert names(PROJECT["dependencies"]) - {"tomli"} <= {p["name"] for p in parts.values()}
    for said in bill["dependencies"]:
        assert set(said["dependsOn"]) <= set(parts)
    assert not {"pytest", "torch"} & {p["name"] for p in parts.values()}
    for part in parts.values():
        assert part["licenses"], part["name"]
        if part.get("purl", "").startswith("pkg:pypi/"):
            assert any(each.get("hashes") for each in part["externalReferences"]), part["name"]


def setuptools_version() -> Version:
    try:
        return Version(importlib.metadata.version("setuptools"))
    except importlib.metadata.PackageNotFoundError:
        return Version("0")


@pytest.mark.skipif(setuptools_version() < Version("77.0.3"), reason="needs setuptools 77.0.3")
@pytest.mark.skipif(not (ROOT / ".git").exists(), reason="asks git which files there are")
def test_the_distributions_hold_what_is_needed_and_nothing_of_this_machine(tmp_path: Path) -> None:
    done = script("dist.py", "--once", tmp_path)  # `make dist` makes and compares two
    assert not done.returncode, done.stderr
    wheel, source = next(tmp_path.glob("*.whl")), next(tmp_path.glob("*.tar.gz"))
    sums = (tmp_path / "SHA256SUMS").read_text(encoding="utf-8")
    assert hashlib.sha256(wheel.read_bytes()).hexdigest() in sums
    expected = {p.relative_to(ROOT) for name in PACKAGES for p in (ROOT / name).rglob("*.py")}
    expected |= {path.relative_to(ROOT) for pattern in DATA for path in ROOT.glob(pattern)}
    with zipfile.ZipFile(wheel) as archive:
        inside = {name for name in archive.namelist() if ".dist-info/" not in name}
        about = {name.partition(".dist-info/")[2] for name in archive.namelist()} - {""}
        modes = {entry.external_attr >> 16 & 0o777 for entry in archive.infolist()}
    assert inside == {f"npufix/{path.as_posix().removeprefix('.ns/npufix/')}" for path in expected}
    assert modes <= {0o644, 0o664}  # RECORD is written by the tool itself
    assert "licenses/LICENSE" in about
    with tarfile.open(source) as archive:
        members = archive.getmembers()
    assert len({one.mtime for one in members}) == 1
    assert {(one.uid, one.uname, one.mode) for one in members} == {(0, "", 0o644)}
    assert not [one.name for one in members if "/tests/" in one.name or "__pycache__" in one.name]
