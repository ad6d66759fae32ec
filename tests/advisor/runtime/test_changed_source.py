"""One module in, changed code out: what is replaced, which lines it has, what is kept."""

from __future__ import annotations

import dis
import textwrap
from typing import TYPE_CHECKING

import pytest
from running_package import LEFT, MLP, NORM, ROPE

from npufix.advisor.project.kept.stored import Store
from npufix.advisor.runtime.source import changing
from npufix.advisor.runtime.source.rewriting import RewrittenModule, functions, rewrite_module
from npufix.advisor.runtime.source.selection import RuleSelection

if TYPE_CHECKING:
    from pathlib import Path
    from types import CodeType

EVERYTHING = RuleSelection(allow=frozenset({"cosines-within-one", "joining-pays"}))


def changed(
    text: str, selection: RuleSelection = EVERYTHING, path: str = "/nowhere/m.py"
) -> RewrittenModule:
    return rewrite_module(path, text.encode(), selection)


def lines_of(code: CodeType) -> set[int]:
    return {line for _, line in dis.findlinestarts(code) if line}


@pytest.mark.parametrize("text", [NORM, ROPE, MLP], ids=["norm", "rope", "mlp"])
def test_every_line_of_the_new_code_is_one_of_the_old_function(text: str) -> None:
    made = changed(text)
    old = dict(functions(compile(text, made.path, "exec", dont_inherit=True)))
    new = dict(functions(made.code))
    assert old.keys() == new.keys()
    touched = [name for name in old if old[name] != new[name]]
    assert touched
    for name, code in new.items():
        assert lines_of(code) <= lines_of(old[name])
        assert code.co_firstlineno == old[name].co_firstlineno
        assert code.co_filename == made.path
        if name not in touched:
            assert list(code.co_positions()) == list(old[name].co_positions())


def test_what_a_call_can_answer_is_asked_at_each_call() -> None:
    norm = changed(NORM, RuleSelection()).places[0]
    assert (norm.rule, norm.asked, norm.missing) == ("NPU101", ("same-dtype",), ())
    rope = changed(ROPE, RuleSelection()).places[0]
    # What reads values comes last.
    assert rope.asked == ("table-dtype", "rotary-limits", "cosines-within-one")
    assert changed(ROPE).places[0].vouched == ("cosines-within-one",)


def test_what_is_about_time_alone_keeps_nothing_out() -> None:
    place = changed(MLP, RuleSelection()).places[0]
    assert (place.why_not, place.missing, place.unmeasured) == ("", (), ("joining-pays",))


def test_naming_a_rule_vouches_for_what_no_call_is_asked() -> None:
    named = RuleSelection(named=frozenset({"npu102", "npu114"}))
    rope = changed(ROPE, named).places[0]
    assert rope.by_name == ("cosines-within-one",)
    assert rope.asked == ("table-dtype", "rotary-limits")
    assert not changed(NORM, named).places[0].by_name
    loss = "import torch\nfrom torch.nn import functional as F\n\n\n"
    loss += "def loss(scores: torch.Tensor, labels: torch.Tensor):\n"
    loss += "    return F.cross_entropy(scores, labels)\n"
    assert changed(loss, RuleSelection()).places[0].why_not.startswith("not proven: matrix-scores")
    place = changed(loss, named).places[0]
    assert (place.why_not, place.missing) == ("", ())
    assert "no-ignored-labels" in place.by_name


def test_a_condition_is_allowed_for_one_rule_alone() -> None:
    for rule, vouched in (("npu102", ("cosines-within-one",)), ("npu103", ())):
        selection = RuleSelection(allow=frozenset({f"{rule}:cosines-within-one"}))
        assert changed(ROPE, selection).places[0].vouched == vouched


def test_the_activation_of_a_table_is_asked_even_where_a_default_proves_it(tmp_path: Path) -> None:
    (tmp_path / "__init__.py").touch()
    (tmp_path / "configuration_m.py").write_text(
        "class MConfig:\n    def __init__(self, hidden_act='silu'):\n"
        "        self.hidden_act = hidden_act\n"
    )
    text = textwrap.dedent(
        """
        import torch
        from torch import nn
        from transformers.activations import ACT2FN
        from .configuration_m import MConfig


        class MLP(nn.Module):
            def __init__(self, config: MConfig):
                super().__init__()
                self.proj = nn.Linear(4, 8)
                self.act_fn = ACT2FN[config.hidden_act]

            def forward(self, x):
                gate, up = self.proj(x).chunk(2, dim=-1)
                return self.act_fn(gate) * up
        """
    )
    store, path = Store(tmp_path / "cache"), str(tmp_path / "modeling_m.py")
    assert rewrite_module(path, text.encode(), RuleSelection(), store).places[0].asked == (
        "activation-is-silu",
    )
    other = tmp_path / "configuration_m.py"
    other.write_text(other.read_text().replace("silu", "relu"))
    assert not rewrite_module(
        path, text.encode(), RuleSelection(), store
    ).places  # not what was kept


def test_a_comment_of_the_user_counts() -> None:
    made = changed(LEFT)
    assert not made.code
    assert [p.why_not for p in made.places] == ["'# npufix: ignore[NPU103]' in line 11"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [("import torch\ndef f(:\n", "cannot be read"), ("# coding: nope\nimport torch\n", "decoded")],
)
def test_what_cannot_be_read_is_a_problem_and_no_error(text: str, problem: str) -> None:
    assert problem in changed(text).problem


def test_line_ends_and_byte_order_marks_do_not_matter() -> None:
    data = b"\xef\xbb\xbf" + NORM.replace("\n", "\r\n").encode()
    made = rewrite_module("/nowhere/m.py", data, EVERYTHING)
    plain = changed(NORM)
    assert made.code
    assert plain.code
    assert made.function("RMSNorm.forward") == plain.function("RMSNorm.forward")


class TestTheSecondStart:
    @pytest.fixture
    def store(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Store:
        store = Store(tmp_path / "cache")
        rewrite_module("/nowhere/m.py", NORM.encode(), EVERYTHING, store)

        def searched(*_: object) -> None:
            raise AssertionError("searched again")

        monkeypatch.setattr(changing, "change", searched)
        return store

    def test_takes_what_was_kept(self, store: Store) -> None:
        again = rewrite_module("/nowhere/m.py", NORM.encode(), EVERYTHING, store)
        assert again.code
        assert again.places[0].replaced

    @pytest.mark.parametrize("difference", ["path", "content", "selection"])
    def test_is_another_one_if_anything_differs(self, store: Store, difference: str) -> None:
        path = "/nowhere/n.py" if difference == "path" else "/nowhere/m.py"
        data = NORM.encode() + (b"\n" if difference == "content" else b"")
        selection = RuleSelection() if difference == "selection" else EVERYTHING
        assert "searched again" in rewrite_module(path, data, selection, store).problem

    def test_does_not_trust_a_damaged_entry(self, store: Store) -> None:
        assert store.folder
        for entry in store.folder.iterdir():
            entry.write_bytes(entry.read_bytes()[:-1])
        again = rewrite_module("/nowhere/m.py", NORM.encode(), EVERYTHING, store)
        assert "searched again" in again.problem

    def test_does_not_trust_a_folder_that_others_may_write_to(self, store: Store) -> None:
        assert store.folder
        store.folder.chmod(0o777)
        again = rewrite_module("/nowhere/m.py", NORM.encode(), EVERYTHING, store)
        assert "searched again" in again.problem
