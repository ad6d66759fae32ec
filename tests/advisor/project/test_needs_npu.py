"""Whether a program runs on NPUs alone, and text for them needs no other way beside it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.patch.backends import needs_npu
from npufix.advisor.project.source_tree import read_source_tree

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "needed"),
    [
        ("model/train.py", True),
        ("vllm_ascend/ops/norm.py", True),
        ("engine/backends/ascend/utils.py", False),
        ("engine/models/npu_patch.py", False),
    ],
)
def test_one_backend_of_several_is_not_the_program(
    tmp_path: Path, path: str, *, needed: bool
) -> None:
    file = tmp_path / path
    file.parent.mkdir(parents=True)
    file.write_text("import torch_npu\n")
    assert needs_npu(read_source_tree(tmp_path)) is needed
