"""Write the software bill of materials of npufix: CycloneDX 1.5, JSON.

    python .ci/sbom.py [FILE]

It names what the wheel holds (npufix, the vendored chart library and what is bundled in that), and
what is installed with it: the closure of its dependencies on this Python, in the versions and with
the hashes of .ci/lock.txt. Start it where these are installed: who needs whom, and the licences,
are read from the installed packages. The same tree and packages give the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[1]
VENDORED = ROOT / "reports/html/vendor"
_SPACE = uuid.UUID("6ba7b811-9dad-11d1-80b4-00c04fd430c8")  # URLs, of RFC 4122
_LOCKED = re.compile(
    r"^([a-z0-9-]+)==(\S+)(?: ; ([^\\]+))? \\\n((?:    --hash.*\n?)+)", re.MULTILINE
)

Component = dict[str, Any]


def main(arguments: list[str]) -> int:
    """Write the bill; return the exit status."""
    try:
        text = json.dumps(bill(), indent=2, sort_keys=True, ensure_ascii=False) + "\n"
    except (KeyError, metadata.PackageNotFoundError) as error:
        print(f"sbom: {error} is not installed, or not in .ci/lock.txt", file=sys.stderr)
        return 2
    if arguments:
        Path(arguments[0]).parent.mkdir(parents=True, exist_ok=True)
        Path(arguments[0]).write_text(text, encoding="utf-8")
    else:
        sys.stdout.write(text)
    return 0


def bill() -> dict[str, Any]:
    """Return the bill as CycloneDX says it."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    bundle, bundled = _bundle()
    locked = _lock()
    needs = {"npufix": _needed(project["dependencies"])}
    waiting = list(needs["npufix"])
    while waiting:
        name = waiting.pop()
        if name not in needs:
            needs[name] = _needed(metadata.requires(name) or [])
            waiting += needs[name]
    packages = {name: _package(name, locked) for name in sorted(needs) if name != "npufix"}
    own = {
        "type": "application",
        "name": "npufix",
        "version": project["version"],
        "description": project["description"],
        "licenses": [{"expression": project["license"]}],
        "purl": f"pkg:pypi/npufix@{project['version']}",
        "bom-ref": f"pkg:pypi/npufix@{project['version']}",
    }
    refs = {name: package["bom-ref"] for name, package in packages.items()}
    refs["npufix"] = own["bom-ref"]
    graph = {refs[name]: sorted(refs[other] for other in others) for name, others in needs.items()}
    graph[own["bom-ref"]].append(bundle["bom-ref"])
    graph[bundle["bom-ref"]] = [part["bom-ref"] for part in bundled]
    told: dict[str, Any] = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": own},
        "components": [bundle, *bundled, *packages.values()],
        "dependencies": [{"ref": ref, "dependsOn": graph[ref]} for ref in sorted(graph)],
    }
    content = hashlib.sha256(json.dumps(told, sort_keys=True).encode()).hexdigest()
    return {**told, "serialNumber": f"urn:uuid:{uuid.uuid5(_SPACE, content)}"}


def _bundle() -> tuple[Component, list[Component]]:
    """Return the vendored file, and what was bundled into it."""
    said = json.loads((VENDORED / "bundle.json").read_text(encoding="utf-8"))
    file = VENDORED / said["file"]
    path = file.relative_to(ROOT).as_posix()
    parts = [
        {
            "type": "library",
            "name": part["name"],
            "version": part["version"],
            "licenses": [{"license": {"id": part["licence"]}}],
            "purl": f"pkg:npm/{part['name']}@{part['version']}",
            "bom-ref": f"pkg:npm/{part['name']}@{part['version']}",
        }
        for part in said["contains"]
    ]
    whole: Component = {
        "type": "file",
        "name": path,
        "bom-ref": path,
        "version": said["contains"][0]["version"],
        "licenses": [{"expression": " AND ".join(part["licence"] for part in said["contains"])}],
        "hashes": [
            {"alg": "SHA-256", "content": hashlib.sha256(file.read_bytes()).hexdigest()},
        ],
        "properties": [{"name": "npufix:bundler", "value": said["bundler"]}],
    }
    return whole, parts


def _package(name: str, locked: dict[str, tuple[str, list[str]]]) -> Component:
    version, hashes = locked[name]
    ref = f"pkg:pypi/{name}@{version}"
    told: Component = {
        "type": "library",
        "name": name,
        "version": version,
        "purl": ref,
        "bom-ref": ref,
        # One for each of its files; which of them is installed depends on the machine.
        "properties": [{"name": "npufix:locked-sha256", "value": one} for one in hashes],
    }
    licence = _licence(name)
    return {**told, "licenses": licence} if licence else told


def _licence(name: str) -> list[Component]:
    """Return what the package says of its licence: an expression, else its classifiers."""
    about = metadata.metadata(name)
    if expression := about.get("License-Expression"):
        return [{"expression": expression}]
    classifiers = sorted(
        text.rpartition(" :: ")[2]
        for text in about.get_all("Classifier") or []
        if text.startswith("License :: ")
    )
    return [{"license": {"name": text}} for text in classifiers]


def _needed(requirements: list[str]) -> list[str]:
    """Return the names of what is needed without extras on this machine."""
    parsed = [Requirement(text) for text in requirements]
    return sorted(
        {
            canonicalize_name(one.name)
            for one in parsed
            if one.marker is None or one.marker.evaluate({"extra": ""})
        }
    )


def _lock() -> dict[str, tuple[str, list[str]]]:
    """Return version and hashes of every locked package that counts on this machine."""
    text = (ROOT / ".ci/lock.txt").read_text(encoding="utf-8")
    locked = {}
    for name, version, marker, hashes in _LOCKED.findall(text):
        if not marker or Requirement(f"{name} ; {marker}").marker.evaluate():  # type: ignore[union-attr]
            locked[name] = version, re.findall(r"sha256:([0-9a-f]{64})", hashes)
    return locked


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
