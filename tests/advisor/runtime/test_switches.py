"""The names by which rules are turned on and off."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from npufix.advisor.runtime.process.applying import select
from npufix.advisor.runtime.process.settings_file import read
from npufix.advisor.runtime.process.switches import (
    SWITCHES,
    SwitchError,
    Switches,
    from_environment,
    from_file,
    from_values,
)

if TYPE_CHECKING:
    from pathlib import Path

OPENMIND = """\
### demo.yaml
disable_fused_options: false # the default
use_npu_fusion_attention: false
use_fused_rms_norm: true
"use_fused_rope": no
allow: [NPU102:cosines-within-one, 'same-dtype']
disable:
  - NPU201
  - one-hot-sum   # by name
# model
model_id: Qwen2.5-7B
output_dir: "saves/#1"
lora:
  use_fused_swiglu: false
learning_rate: 1.0e-5
"""


def test_the_file_of_a_training_program(tmp_path: Path) -> None:
    path = tmp_path / "demo.yaml"
    path.write_text(OPENMIND, encoding="utf-8")
    values = read(path)
    assert values["output_dir"] == "saves/#1"
    said = from_file(values, "demo.yaml")
    assert not said.off
    chosen = said.selection()
    turned_off = {*SWITCHES["use_npu_fusion_attention"], "npu102", "npu201", "npu204"}
    assert (chosen.rules, chosen.without) == (frozenset(), turned_off)
    assert chosen.allow == {"npu102:cosines-within-one", "same-dtype"}


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("use_fused_rmsnorm", "use_fused_rms_norm"),
        ("disable_fused_option", "disable_fused_options"),
        ("use_npu_fusion_atention", "use_npu_fusion_attention"),
    ],
)
def test_a_key_that_is_nearly_one_of_ours_is_an_error(key: str, near: str) -> None:
    with pytest.raises(SwitchError) as caught:
        from_file({key: True, "stage": "pt"}, "demo.yaml")
    assert caught.value.message == f"demo.yaml: there is no {key}"
    assert near in caught.value.remedy


def test_in_a_call_every_name_must_be_known() -> None:
    with pytest.raises(SwitchError, match="there is no eager_rmsnorm -- did you mean eager"):
        from_values({"eager_rmsnorm": False}, "apply_fused_kernels")
    with pytest.raises(SwitchError, match="give true or false"):
        from_values({"use_fused_rope": "off"}, "apply_fused_kernels")
    with pytest.raises(SwitchError, match="allow names no condition same-dtpe"):
        from_values({"allow": ["same-dtpe"]}, "apply_fused_kernels").selection()


def test_rules_by_id_and_by_name() -> None:
    chosen = from_values({"NPU201": False, "one_hot_sum": False}, "here").selection()
    assert chosen.without == {"npu201", "npu204"}
    chosen = from_values({"rules": ["NPU101", "eager-swiglu"]}, "here").selection()
    assert chosen.rules == {"npu101", "npu103"}


def test_a_rule_named_as_wanted_is_wanted_though_the_project_ignores_it() -> None:
    project = from_values({"disable": ["NPU101", "NPU201"]}, "here")
    chosen = project.merged(from_values({"NPU101": True}, "here")).selection()
    assert chosen.without == {"npu201"}


def test_what_is_given_as_true_or_as_the_only_rules_is_named() -> None:
    chosen = from_values({"use_fused_rope": True, "eager_swiglu": True}, "here").selection()
    assert (chosen.rules, chosen.named) == (frozenset(), {"npu102", "npu103"})
    assert from_values({"rules": ["NPU101"], "NPU103": False}, "here").selection().named == {
        "npu101"
    }
    assert not from_values({"use_fused_rope": False}, "here").selection().named
    assert chosen.key != from_values({}, "here").selection().key


def test_what_a_project_selects_is_not_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.npufix]\nselect = ["NPU102"]\n')
    assert select(Switches(), tmp_path).rules == {"npu102"}
    assert not select(Switches(), tmp_path).named
    monkeypatch.setenv("NPUFIX_RULES", "NPU103")
    assert select(Switches(), tmp_path).named == {"npu103"}


def test_the_environment() -> None:
    said = from_environment({"NPUFIX_RULES": "NPU101,", "NPUFIX_DISABLE": "use_fused_rope"})
    assert said.selection().rules == {"npu101"}
    assert said.selection().without == {"npu102"}
    assert from_environment({"NPUFIX_DISABLE": "1"}).off
    assert not from_environment({"NPUFIX_DISABLE": "0"}).off
    assert not from_environment({}).off
