"""What is shown of small trees of source files."""

from __future__ import annotations

from typing import TYPE_CHECKING

from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.project.configuration import Configuration
from npufix.advisor.project.source_tree import read_source_tree

if TYPE_CHECKING:
    from pathlib import Path

    from npufix.advisor.diagnose.result import Diagnosis

FILL = "import torch\n\n\ndef step(x: torch.Tensor):\n    x[x > 0] = 0\n"
MODEL = """
import torch
from torch import nn


class ANorm(nn.Module):
    def forward(self, x: torch.Tensor):
        x = x.float()
        x[x > 0] = 0
        x[x < 0] = 0
        return x
"""


def scanned(folder: Path, files: dict[str, str], **asked: object) -> Diagnosis:
    """Return what a scan says of files, by their paths."""
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return scan(read_source_tree(folder, Configuration(**asked)))  # type: ignore[arg-type] - names


def places(found: Diagnosis) -> list[str]:
    """Return where the findings are."""
    return [finding.place for finding in found.report.findings]
