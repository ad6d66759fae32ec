"""No message lacks its translation, and what is shipped is what was translated."""

from __future__ import annotations

import gettext
import re

import pytest

from npufix.reports.language import composed, extract
from npufix.reports.language.catalogue import DOMAINS, pieces

_FOLDER = extract.ROOT / "reports" / "locale"


@pytest.fixture(scope="module")
def extracted() -> dict[str, dict[str, str]]:
    return extract.messages()


@pytest.fixture(scope="module")
def shipped() -> dict[str, str]:
    found: dict[str, str] = {}
    for domain in DOMAINS:
        catalogue = gettext.translation(domain, _FOLDER, ["zh"])
        found |= {str(k): v for k, v in catalogue._catalog.items()}  # type: ignore[attr-defined]
    return {one: other for one, other in found.items() if one}


def test_no_message_lacks_its_translation(
    extracted: dict[str, dict[str, str]], shipped: dict[str, str]
) -> None:
    every = [message for found in extracted.values() for message in found]
    missing = [message for message in every if not shipped.get(message)]
    remedy = "python -m npufix.reports.language extract, then translate it in reports/locale"
    assert missing == [], remedy
    assert len(every) > 2000


def test_nothing_is_translated_that_nobody_says(
    extracted: dict[str, dict[str, str]], shipped: dict[str, str]
) -> None:
    every = {message for found in extracted.values() for message in found}
    assert set(shipped) <= every


def test_translations_have_the_placeholders_of_their_messages(shipped: dict[str, str]) -> None:
    for message, translation in shipped.items():
        if "{" in message:
            names = sorted(name for _, name in pieces(message) if name)
            assert sorted(name for _, name in pieces(translation) if name) == names, message


def test_translations_keep_what_is_typed(shipped: dict[str, str]) -> None:
    """Options, settings and names of operators are the same in every language."""
    typed = re.compile(r"(?<![\w-])(--[a-z][\w-]+|torch_npu\.[\w.]+\w|[A-Z]+_[A-Z_]+\w)")
    for message, translation in shipped.items():
        wanted = set(typed.findall(message))
        lost = {word for word in wanted if word not in translation}
        assert not lost, (message, translation)


def test_what_is_no_message_is_still_there(extracted: dict[str, dict[str, str]]) -> None:
    assert len(composed.NO_MESSAGES) < 100
    every = {message for found in extracted.values() for message in found}
    assert not composed.NO_MESSAGES & every


def test_what_is_shipped_is_what_was_translated() -> None:
    pytest.importorskip("babel")
    from npufix.reports.language import maintain

    for domain in DOMAINS:
        path = _FOLDER / "zh" / "LC_MESSAGES" / f"{domain}.mo"
        assert path.read_bytes() == maintain.compiled(domain)


def test_messages_are_read_from_code() -> None:
    module = '''
"""Not this."""
def f(count: int, path: str) -> str:
    """Nor this."""
    return f"{counted(count, 'odd file')} below {path}" if count else "nothing was found"
'''
    assert set(extract.in_module(module, "advisor/example.py")) == {
        "{counted} below {path}",
        "{n} odd file",
        "{n} odd files",
        "nothing was found",
    }
