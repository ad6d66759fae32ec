"""The rules are known without being loaded, and those that come, change or go are noticed."""

from __future__ import annotations

import importlib
import sys
from typing import TYPE_CHECKING

import pytest

from npufix.advisor.project import rule_index
from npufix.advisor.project.kept import stored
from npufix.advisor.project.rule_index import known_rules
from npufix.rules import diagnostics, registry
from npufix.rules.registry import RuleError, every_rule

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

DROPPED = """from npufix.rules.diagnostic import Diagnostic
RULE = Diagnostic(id="NPU998", name="{name}", summary="", advice="", check=lambda r: (),
                  requires="torch>=2.1", gpu_advice="{gpu}")
"""
MODULE = f"{diagnostics.__name__}.of_a_team"


def forget() -> None:
    """Be as a process that has just started."""
    stored.environment.cache_clear()
    every_rule.cache_clear()
    importlib.invalidate_caches()
    sys.modules.pop(MODULE, None)


@pytest.fixture
def dropped(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """Return where a rule may be dropped in; nothing is kept yet."""
    folder = tmp_path / "diagnostics"
    folder.mkdir()
    monkeypatch.setattr(diagnostics, "__path__", [*diagnostics.__path__, str(folder)])
    monkeypatch.setattr(stored, "_OWN", (str(folder),))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    forget()
    yield folder / "of_a_team.py"
    forget()


def test_rules_are_known_as_they_are(dropped: Path) -> None:
    del dropped
    asked, kept = known_rules(), known_rules()
    assert asked == kept
    assert [rule.load() for rule in kept] == list(every_rule())
    for known, rule in zip(kept, every_rule(), strict=True):
        assert (known.id, known.name, known.requires) == (rule.id, rule.name, rule.requires)
        assert known.kind == type(rule).__name__
        assert known.is_for_gpus == bool(getattr(rule, "gpu_advice", ""))


def test_a_kind_of_a_team_is_one_of_ours(dropped: Path) -> None:
    own = DROPPED.replace("RULE = Diagnostic(", "class Own(Diagnostic): pass\nRULE = Own(")
    dropped.write_text(own.format(name="of-a-team", gpu=""), "utf-8")
    assert {rule.kind for rule in known_rules()} == {
        "Substitution", "Diagnostic", "ClusterDiagnostic"
    }  # fmt: skip


def test_what_is_kept_is_not_loaded(dropped: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    del dropped
    known_rules()
    forget()
    monkeypatch.setattr(rule_index, "every_rule", lambda: pytest.fail("rules were loaded"))
    monkeypatch.setattr(rule_index, "load_rule", lambda name: pytest.fail(f"{name} was loaded"))
    assert known_rules()


def test_a_rule_that_is_dropped_in_is_known_at_once_and_with_every_change(dropped: Path) -> None:
    def known() -> list[tuple[str, bool]]:
        forget()
        return [(rule.name, rule.is_for_gpus) for rule in known_rules() if rule.id == "NPU998"]

    assert known() == []
    dropped.write_text(DROPPED.format(name="one", gpu=""))
    assert known() == known() == [("one", False)]
    dropped.write_text(DROPPED.format(name="two", gpu=""))  # of the same size
    assert known() == [("two", False)]
    dropped.write_text(DROPPED.format(name="two", gpu="do"))
    assert known() == [("two", True)]
    dropped.write_text("RULE = None")
    with pytest.raises(RuleError, match="of_a_team has no RULE"):
        known()
    dropped.unlink()
    assert known() == []


def test_damage_to_what_is_kept_is_none_of_the_answer(dropped: Path, tmp_path: Path) -> None:
    del dropped
    asked = known_rules()
    (kept,) = (tmp_path / "cache/npufix/rules").iterdir()
    kept.write_bytes(kept.read_bytes()[:-9])
    assert known_rules() == asked
    stored.Store(kept.parent).put(b"[[1]]", b"index")
    assert known_rules() == asked


def test_a_rule_of_a_plug_in_is_loaded_through_its_name(
    dropped: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dropped.with_name("theirs_of_a_team.py").write_text(DROPPED.format(name="one", gpu=""))
    monkeypatch.syspath_prepend(dropped.parent)
    monkeypatch.setattr(registry, "rule_modules", lambda: ())
    monkeypatch.setattr(rule_index, "rule_modules", lambda: ())
    from importlib.metadata import EntryPoint

    theirs = EntryPoint("theirs", "theirs_of_a_team", "npufix.rules")
    monkeypatch.setattr(registry, "entry_points", lambda group: [theirs] if group else [])
    forget()
    for _ in range(2):
        (known,) = known_rules()
        assert known.load().id == known.id == "NPU998"
    sys.modules.pop("theirs_of_a_team")
