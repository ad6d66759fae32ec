#!/usr/bin/env python3
"""``npufix scan`` for pre-commit, in an environment of what a search of source needs.

A hook of the language ``python`` installs all that the package depends on: three quarters of that
read dumps, which no hook has. This one makes its environment beside itself, at its first run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
ENVIRONMENT = ROOT / f".pre-commit-{sys.implementation.cache_tag}"
NEEDED = re.compile(
    r'^ +"((?:click|libcst|msgspec|numpy|packaging|rich|tomli)\b[^"]*)",$', re.MULTILINE
)


def make_environment() -> None:
    """Install into a new folder; it gets its name once it is whole."""
    new = Path(tempfile.mkdtemp(prefix=".making-", dir=ROOT))
    try:
        venv.create(new, with_pip=True)
        needed = NEEDED.findall((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
        for what in (needed, ["--no-deps", str(ROOT)]):
            command = [new / "bin" / "python", "-m", "pip", "install", "--quiet", *what]
            subprocess.run(command, check=True, stdout=sys.stderr)
        new.rename(ENVIRONMENT)
    except OSError:  # somebody else was faster
        if not ENVIRONMENT.exists():
            raise
    finally:
        shutil.rmtree(new, ignore_errors=True)


if sys.version_info < (3, 10):  # noqa: UP036 - it runs before anything is installed
    sys.exit("npufix: its hook needs Python 3.10 or newer as python3")
if not ENVIRONMENT.exists():
    try:
        make_environment()
    except (OSError, subprocess.CalledProcessError) as error:
        sys.exit(f"npufix: the environment of its hook cannot be made: {error}")
python = str(ENVIRONMENT / "bin" / "python")
# Isolated: what lies in the folder of the user is searched, not imported.
os.execv(python, [python, "-I", "-m", "npufix", "scan", *sys.argv[1:]])  # noqa: S606 - its status is ours
