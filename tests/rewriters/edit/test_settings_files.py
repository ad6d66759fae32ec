"""What is found and written in scripts of the shell and in YAML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.diagnose.source_scan import scan
from npufix.advisor.patch.patching import PatchOptions, patch
from npufix.advisor.project.configuration import Configuration
from npufix.advisor.project.source_tree import read_source_tree
from npufix.rewriters.edit.statements.programs.files import find_settings
from npufix.rules.registry import all_rules
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from pathlib import Path

RULES = [rule for rule in all_rules() if isinstance(rule, Substitution) and rule.files]


def written(text: str, name: str) -> str:
    """Return a text with what is found there carried out, "" if that is nothing."""
    found = [site.rewrite for site in find_settings(text, name, RULES)]
    return found[0].direct if found and found[0] else ""


def test_variables_go_above_the_whole_command() -> None:
    start = '  PYTHONPATH="$(dirname $0)":$X \\\n  python3 -m torch.distributed.run t.py\n'
    text = f"export HCCL_OP=1\n{start}"
    lines = written(text, "run.sh").splitlines()
    assert lines[1] == "  export TASK_QUEUE_ENABLE=2"
    assert [*lines[:1], *lines[5:]] == text.splitlines()


def test_workers_of_ray_have_an_environment_of_their_own() -> None:
    assert not written("ray start --head\npython train.py --device npu\n", "run.sh")


def test_cores_are_not_bound_twice() -> None:
    text = written("taskset -c 0-7 true\npython train.py --device npu\n", "run.sh")
    assert "TASK_QUEUE_ENABLE" in text
    assert "CPU_AFFINITY_CONF" not in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("run.sh", "# npufix: ignore[launcher-environment]\npython train.py --device npu\n"),
        ("run.sh", "# python train.py --device npu\n"),
        ("run.sh", "python convert_train.py --device npu\n"),
        ("run.sh", "python train.py --inputs x\n"),
        ("a.yaml", "optim: adamw_torch_fused\n"),
        ("a.yaml", "- _target_: torch.optim.AdamW\n  fused: false\n"),
        ("a.py", "optim: adamw_torch\n"),
    ],
)
def test_what_is_left_alone(name: str, text: str) -> None:
    assert not written(text, name)


def test_line_ends_stay() -> None:
    text = written("optim: adamw_torch\r\nx:\r\n  _target_: torch.optim.AdamW\r\n", "a.yml")
    assert text == (
        "optim: adamw_torch_fused\r\nx:\r\n  _target_: torch.optim.AdamW\r\n  fused: true\r\n"
    )


def test_a_script_is_written_but_never_called_verified(tmp_path: Path) -> None:
    (tmp_path / "examples").mkdir()
    script = tmp_path / "examples" / "run.sh"
    script.write_text("export ASCEND_LAUNCH_BLOCKING=1\nsource env.sh\ntorchrun train.py\n")
    (tmp_path / "data.yaml").write_bytes(b"\xff\xfe")
    tree = read_source_tree(
        tmp_path, Configuration(folder=tmp_path, allow=frozenset({"environment-is-free"}))
    )
    found = scan(tree)
    assert [f.path for f in found.report.findings] == ["examples/run.sh"]
    assert not found.report.problems
    assert not patch(found, tree, PatchOptions()).changes
    (change,) = patch(found, tree, PatchOptions(unverified=True)).changes
    assert change.after.startswith(b"export ASCEND_LAUNCH_BLOCKING=0\n")
