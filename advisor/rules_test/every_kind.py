"""What rules of all kinds promise: identifiers, documentation, versions."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from npufix.profiling_parsers.profile import Environment
from npufix.reports.language import both, composed
from npufix.reports.language.extract import in_module
from npufix.rules.registry import documentation
from npufix.rules.shared.recording.versions import unmet
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.advisor.rules_test.subject import Subject

_IDS = {
    "affinity": r"NPU(2\d\d|32\d)",
    "fusion": r"NPU1\d\d",
    "settings": r"NPU[345]\d\d",
    "cluster": r"NPU6\d\d",
}
_HEADINGS = ("What:", "Why it is slow on the NPU:")
_OF_CODE = (*_HEADINGS, "Safety:", "References:")
_OF_A_RUN = (*_HEADINGS, "Evidence:", "Use instead:", "Safety:", "References:")


def check_identifiers(subject: Subject) -> Iterator[str]:
    """Check that id, name and table are well formed, and nobody else's."""
    rule, stem = subject.rule, subject.path.stem
    if rule.table not in _IDS:
        yield f"its table is {rule.table!r}: take one of {', '.join(_IDS)}"
    if subject.ours and not re.fullmatch(_IDS.get(rule.table, ""), rule.id):
        yield f"the id {rule.id} is not one of its table: {_IDS.get(rule.table)}"
    if not re.fullmatch(r"[A-Z]+\d{3,}", rule.id):
        yield f"the id {rule.id!r} is not capitals and digits, as in ACME001"
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", rule.name):
        yield f"the name {rule.name!r} is not words joined by hyphens"
    if not isinstance(rule, Substitution) and "-" not in rule.name:
        yield f"the name {rule.name!r} is one word: take two or more"
    if not isinstance(rule, Substitution) and stem != rule.name.replace("-", "_"):
        yield f"the file {stem}.py is not called after the rule: {rule.name.replace('-', '_')}.py"
    for other in subject.others:
        if rule.id == other.id or rule.name == other.name:
            yield f"{other.id} {other.name} has the same id or name: take another"


def check_documentation(subject: Subject) -> Iterator[str]:
    """Check that the docstring of the file has the headings of a page, in their order."""
    text, last = documentation(subject.rule), 0
    for heading in _OF_CODE if isinstance(subject.rule, Substitution) else _OF_A_RUN:
        at = text.find(f"\n{heading} ")
        if at < 0:
            yield f"its docstring has no paragraph that begins with {heading!r}"
        elif at < last:
            yield f"the paragraph {heading!r} of its docstring stands too early"
        last = max(last, at)


def check_translations(subject: Subject) -> Iterator[str]:
    """Look for texts of our own rules without a translation: English is shown for them."""
    if not subject.ours:
        return
    name = f"rules/{subject.path.parent.name}/{subject.path.name}"
    said = dict.fromkeys(in_module(subject.path.read_text(encoding="utf-8"), name))
    lacking = [text for text in said if text not in composed.NO_MESSAGES and both(text)[1] == text]
    if lacking:
        yield (
            f"{len(lacking)} texts have no translation: run python -m npufix.reports.language, "
            f"then translate them in reports/locale, as {lacking[0]!r}"
        )


def check_versions(subject: Subject) -> Iterator[str]:
    """Check that ``requires`` can be read."""
    try:
        unmet(subject.rule.requires, Environment())
    except ValueError as error:
        yield f"requires: {error}; write it as torch_npu>=2.1,<2.14; CANN>=8.0; chip A2 A3"
