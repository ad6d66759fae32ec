"""Write the software bill of materials of npufix: CycloneDX, JSON.

    python .ci/sbom.py [FILE]

It names npufix, which bundles nothing of others, and what is installed with it: the closure of its
dependencies on this Python, in the versions and with the hashes of .ci/lock.txt. Start it where
these are installed. The same tree and packages give the same bytes. cyclonedx-py describes the
packages; it takes extras for needs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import uuid
from importlib import metadata
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).resolve().parents[1]


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
    told = _cyclonedx("environment", "--pyproject", "pyproject.toml", "--mc-type", "application")
    locked = {
        part["purl"]: part for part in _cyclonedx("requirements", ".ci/lock.txt")["components"]
    }
    installed = {canonicalize_name(part["name"]): part for part in told["components"]}
    installed["npufix"] = told["metadata"]["component"]
    needs: dict[str, list[str]] = {}
    waiting = ["npufix"]
    while waiting:
        name = waiting.pop()
        needs[name] = _needed(name)
        waiting += set(needs[name]) - set(needs)
    packages = [installed[name] | {"name": name} for name in sorted(needs) if name != "npufix"]
    for package in packages:
        # One hash for each of its files; which of them is installed depends on the machine.
        package["externalReferences"] += locked[package["purl"]]["externalReferences"]
    graph = {
        installed[name]["bom-ref"]: [installed[other]["bom-ref"] for other in others]
        for name, others in needs.items()
    }
    told["components"] = packages
    told["dependencies"] = [{"ref": ref, "dependsOn": sorted(graph[ref])} for ref in sorted(graph)]
    content = json.dumps(told, sort_keys=True)
    return {**told, "serialNumber": uuid.uuid5(uuid.NAMESPACE_URL, content).urn}


def _cyclonedx(*arguments: str) -> dict[str, Any]:
    # That it fits the schema takes half a minute to check; the bill is only made of what it says.
    options = ("--no-validate", "--output-reproducible")
    command = [sys.executable, "-m", "cyclonedx_py", *arguments, *options]
    done = subprocess.run(command, cwd=ROOT, check=True, stdout=subprocess.PIPE)
    said: dict[str, Any] = json.loads(done.stdout)
    return said


def _needed(name: str) -> list[str]:
    """Return the names of what a package needs without extras on this machine."""
    parsed = map(Requirement, metadata.requires(name) or [])
    return sorted(
        {
            canonicalize_name(one.name)
            for one in parsed
            if one.marker is None or one.marker.evaluate({"extra": ""})
        }
    )


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
