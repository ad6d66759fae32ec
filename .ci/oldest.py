"""Print the oldest version of each package that the command needs, as pip takes it."""

from __future__ import annotations

import re
from pathlib import Path

project = Path("pyproject.toml").read_text(encoding="utf-8").partition("[project.optional-")[0]
for name, version in re.findall(r'^    "([\w-]+)>=([\d.]+),<[\d.]+",$', project, re.MULTILINE):
    print(f"{name}=={version}")
