"""Which stand-ins for torch_npu and MindSpeed have run: a verdict claims no others."""

from __future__ import annotations

called: set[str] = set()
"""The names since somebody last cleared this set."""
