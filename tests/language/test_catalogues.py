"""What is translated is right; what is not yet stays English, and is a warning."""

from __future__ import annotations

import re
import warnings

import pytest

from npufix.reports.language import composed, extract
from npufix.reports.language.catalogue import Catalogue, pieces, read_messages

pytestmark = pytest.mark.xdist_group("catalogues")  # they share one dear fixture
_FOLDER = extract.ROOT / "reports" / "locale" / "zh" / "LC_MESSAGES"


@pytest.fixture(scope="module")
def extracted() -> dict[str, dict[str, str]]:
    return extract.messages()


@pytest.fixture(scope="module")
def shipped() -> dict[str, str]:
    found: dict[str, str] = {}
    for path in sorted(_FOLDER.glob("*.po")):
        found |= read_messages(path.read_text(encoding="utf-8"))
    return found


def test_what_is_not_translated_is_told(
    extracted: dict[str, dict[str, str]], shipped: dict[str, str]
) -> None:
    every = {message for found in extracted.values() for message in found}
    assert len(every) > 2000
    assert len(every & set(shipped)) > 0.9 * len(every), "the catalogues are those of another code"
    if missing := every - set(shipped):
        remedy = "python -m npufix.reports.language puts them into reports/locale, to be translated"
        warnings.warn(f"{len(missing)} messages have no Chinese text; {remedy}", stacklevel=1)


def test_a_text_without_a_translation_stays_english() -> None:
    text = 'msgid "one {n}"\nmsgstr "\u4e00 {n}"\n\nmsgid "two words"\nmsgstr ""\n'
    catalogue = Catalogue(read_messages(text))
    assert catalogue.translate("one 1") == "\u4e00 1"
    assert catalogue.translate("two words") == "two words"


def test_files_are_read_as_babel_reads_them(shipped: dict[str, str]) -> None:
    pofile = pytest.importorskip("babel.messages.pofile")
    found: dict[str, str] = {}
    for path in sorted(_FOLDER.glob("*.po")):
        with path.open("rb") as file:
            found |= {m.id: m.string for m in pofile.read_po(file, "zh") if m.id and m.string}
    assert found == shipped


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


def test_messages_are_read_from_code() -> None:
    module = '''
"""Not this."""
def f(count: int, path: str) -> str:
    """Nor this."""
    return f"{format_count(count, 'odd file')} below {path}" if count else "nothing was found"
'''
    assert set(extract.in_module(module, "advisor/example.py")) == {
        "{format_count} below {path}",
        "{n} odd file",
        "{n} odd files",
        "nothing was found",
    }
