"""Finds the translation of a finished text: by itself, by a template, or part by part.

A template is a text with ``{names}`` for what the program fills in. Every search is linear in the
text: its fixed parts are looked for from left to right, and nothing is tried twice.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache, lru_cache
from importlib.resources import files
from string import Formatter
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

DOMAINS = ("npufix", "rules")
LONGEST = 8000
"""Characters of a text that is looked at; whatever is longer is data, not a message."""
_LONGEST_IN_PARTS = 3000
_MOST_PARTS = 60
_DEEPEST = 5
_FEW_LETTERS = 6
_CLEAR = 10
"""Letters that make a template unlikely to fit a text by chance."""
_SHORT_CAPTURE = 60
_FEW_SPACES = 5
_TRIES = 8
"""Places of a mark before a number that are tried."""
_NUMBER = re.compile(r"-?[\d,.]+(?:e[+-]?\d+)?%?")
_WORD = re.compile(r"[A-Za-z]+")
_SEPARATOR = re.compile(r"(\n| -- | — |; |, |: |(?<=[.!?]) | \(|\))")
_MARKS = {
    " -- ": "——", " — ": "——", "; ": "；", ", ": "，", ": ": "：", " (": "（", ")": "）", " ": "",
}  # fmt: skip
_BETWEEN_WIDE = re.compile("(?<=[\u3000-\u9fff\uff00-\uffef]) (?=[\u3000-\u9fff\uff00-\uffef])")
_WIDE_TO_NARROW = re.compile("[\u4e00-\u9fff][A-Za-z0-9]|[A-Za-z0-9%][\u4e00-\u9fff]")
_QUANTITY = re.compile(r"(-?[\d,.]+ (?:ns|us|µs|ms|s|min|h|[KMGT]?B)) (.+)")
"""An amount and what it is of: ``93 ms moving data``."""
_SENTENCE = re.compile(r"[A-Za-z]{2,}.* ")
_ENTRY = re.compile(r'^msgid ((?:".*"\n)+)msgstr ((?:".*"\n?)+)', re.MULTILINE)
_ESCAPE, _ESCAPES = re.compile(r"\\(.)"), {"n": "\n", "t": "\t", "r": "\r"}
_SPOKEN = frozenset(
    [
        "unit",
        "of",
        "status",
        "safety",
        "main",
        "level",
        "verdict",
        "kind",
        "what",
        "which",
        "reason",
        "basis",
        "change",
        "changed",
        "where",
        "spent",
        "waits",
    ]
)
"""Names of placeholders that stand for a single word of ours, not for a name of the user's."""
_BEHIND = (", because on rank ", ", asked for at ")
"""What a headline puts behind any sentence."""
_ANYTHING = frozenset({"basis", "arguments"})
"""Names of placeholders that stand for a sentence of ours in parentheses, or for a long list."""


@dataclass(frozen=True)
class Template:
    """A message with placeholders, and its translation."""

    literals: tuple[str, ...]
    """One more than names."""
    names: tuple[str, ...]
    translation: tuple[tuple[str, str], ...]
    """Literal text, and the name of what follows it, "" at the end."""

    @property
    def weight(self) -> int:
        """How much of the text is fixed."""
        return sum(map(len, self.literals))

    @property
    def letters(self) -> int:
        """How much of the text is fixed, but for punctuation."""
        return sum(c.isalpha() for part in self.literals for c in part)

    def match(self, text: str) -> dict[str, str] | None:
        """Return what the placeholders stand for, ``None`` if the text is another one."""
        first, last = self.literals[0], self.literals[-1]
        if not text.startswith(first) or not text.endswith(last):
            return None
        begin, tries = len(first), _TRIES if _is_number("".join(self.names[1:2])) else 1
        for _ in range(tries):
            captures = self._match_from(text, begin)
            if captures is None or all(self._fits(*item) for item in captures.items()):
                return captures
            # The first mark was not the one before the number: a later one may be.
            begin = len(first) + len(captures[self.names[0]]) + 1
        return None

    def _match_from(self, text: str, begin: int) -> dict[str, str] | None:
        """Return what stands between the fixed parts, the second of which is after ``begin``."""
        first, *inner, last = self.literals
        end = len(text) - len(last)
        if end < len(first):
            return None
        captures, start = {}, len(first)
        for name, literal in zip(self.names, inner, strict=False):
            found = text.find(literal, max(start, begin), end)
            if found < 0:
                return None
            captures[name] = text[start:found]
            start = found + len(literal)
        captures[self.names[-1]] = text[start:end]
        return captures

    def _fits(self, name: str, value: str) -> bool:
        """Tell whether a text is likely what a placeholder stands for, not several things."""
        if "  " in value or not _is_balanced(value):
            return False
        if _is_number(name):
            return _NUMBER.fullmatch(value) is not None
        if name in _ANYTHING and self.literals[0]:
            return True
        if self._several(name, value):
            return False
        if self.literals[0] or self.letters >= _FEW_LETTERS:
            return True
        return len(value) <= _SHORT_CAPTURE and value.count(" ") <= _FEW_SPACES

    def _several(self, name: str, value: str) -> bool:
        """Tell whether a text is likely several things with marks in between."""
        if "; " in value and name == self.names[0] and name not in _SPOKEN and not self.literals[0]:
            return True
        several = "; " in value or (": " in value and not self.literals[0].endswith(": "))
        return several and self.letters < (_CLEAR if self.literals[0] else 2 * _CLEAR)


def _is_balanced(text: str) -> bool:
    """Tell whether a text closes the parentheses that it opens, and no others."""
    depth = 0
    for mark in re.findall(r"[()]", text):
        depth += 1 if mark == "(" else -1
        if depth < 0:
            return False
    return not depth


def _is_number(name: str) -> bool:
    """Tell whether a placeholder stands for a number."""
    return name.rstrip("0123456789") == "n"


def pieces(message: str) -> tuple[tuple[str, str], ...]:
    """Return the fixed parts of a template, each with the name of what follows it."""
    return tuple((text, name or "") for text, name, _, _ in Formatter().parse(message))


def is_template(message: str) -> bool:
    """Tell whether a message has placeholders; only extracted f-strings hold braces."""
    return re.search(r"(?<!\{)\{\w+\}(?!\})", message) is not None


def _template(message: str, translation: str) -> Template:
    parts = pieces(message)
    names = tuple(name for _, name in parts if name)
    literals = tuple(text for text, _ in parts)
    if parts[-1][1]:
        literals = (*literals, "")
    return Template(literals, names, pieces(translation))


def _key_words(template: Template) -> Iterator[str]:
    """Yield the words of a template that are whole in every text that fits it."""
    last = len(template.literals) - 1
    for number, literal in enumerate(template.literals):
        for word in _WORD.finditer(literal):
            opened = number and word.start() == 0
            closed = number != last and word.end() == len(literal)
            if not opened and not closed:
                yield word.group()


def _with_what_follows_a_place(messages: Mapping[str, str]) -> dict[str, str]:
    """Return the messages, and ``no such file`` for ``{path}: no such file``."""
    found = dict(messages)
    for one, other in messages.items():
        place, mark, rest = one.partition("}: ")
        translated, other_mark, other_rest = other.partition("}：")
        if mark and other_mark and place == translated and re.fullmatch(r"\{\w+", place):
            found.setdefault(rest, other_rest)
    return found


def _with_first_clauses(messages: Mapping[str, str]) -> dict[str, str]:
    """Return the messages, and of each template the clause that a headline may end after.

    ``{n} wait: {names}; move them`` is cut to ``{n} wait`` where it is long.
    """
    found = dict(messages)
    for one, other in messages.items():
        for mark, other_mark in (("; ", "；"), (": ", "：")):
            same = one.count(mark) == other.count(other_mark)
            clause, translated = one.split(mark)[0], other.split(other_mark)[0]
            names = [{name for _, name in pieces(text)} - {""} for text in (clause, translated)]
            cut = mark == "; " or is_template(clause)  # of an advice, the first is said first
            if same and cut and mark in one and names[0] == names[1]:
                found.setdefault(clause, translated)
    return found


def of_recording(text: str) -> str:
    """Return a sentence about a step for a run that has none: the recording is what is meant."""
    return text.replace("per step", "in the recording").replace("the step", "the recording")


def _with_recordings(messages: Mapping[str, str]) -> dict[str, str]:
    """Return the messages, and those about a step as they are about a recording without steps."""
    found = dict(messages)
    for one, other in messages.items():
        whole = other.replace("每步", "在整段采集中")
        found.setdefault(of_recording(one), re.sub("[单该]步|步内", "整段采集", whole))
    return found


class Catalogue:
    """The messages of one language."""

    def __init__(self, messages: Mapping[str, str]) -> None:
        """``messages`` is each English text, or template, with its translation."""
        messages = _with_what_follows_a_place(_with_recordings(messages))
        for one, other in list(messages.items()):
            # Half a sentence, which the program puts together with another one.
            messages.setdefault(one.strip(" ;,:"), other.strip("；，： "))
        self._exact = {one: other for one, other in messages.items() if not is_template(one)}
        # The scripts of a page fill in what they say by themselves.
        self._exact |= {one: other for one, other in messages.items() if is_template(one)}
        made = [_template(one, other) for one, other in messages.items() if is_template(one)]
        self._templates = sorted(made, key=lambda template: -template.weight)
        seen: dict[str, int] = {}
        for template in self._templates:
            for word in set(_key_words(template)):
                seen[word] = seen.get(word, 0) + 1
        self._by_word: dict[str, list[int]] = {}
        for number, template in enumerate(self._templates):
            # A template without a word of its own is punctuation: texts are taken apart there.
            if words := sorted(set(_key_words(template)), key=lambda w: (seen[w], w)):
                self._by_word.setdefault(words[0], []).append(number)
        self.translate = lru_cache(maxsize=8192)(self._translate)

    def _translate(self, text: str) -> str:
        body = text.strip()
        if not body or len(body) > LONGEST or text.isspace():
            return text
        start = text.index(body)
        found = self._whole(body, 0, spoken=True) or self._in_parts(body, 0)
        return text[:start] + (found or body) + text[start + len(body) :]

    def _whole(self, text: str, depth: int, *, spoken: bool = False) -> str | None:
        """Return the translation of a text that is a message; of one word only if ``spoken``."""
        if not spoken and " " not in text:
            return None
        found = self._as_it_is(text) or self._by_template(text, depth)
        if found is None and text[:1].isupper():  # a sentence made of half a one
            return self._by_template(text[0].lower() + text[1:], depth)
        return found

    def _as_it_is(self, text: str) -> str | None:
        if (found := self._exact.get(text)) is not None:
            return found
        if text.endswith(".") and (found := self._exact.get(text[:-1])) is not None:
            return found + "。"
        if text[:1].isupper() and (found := self._exact.get(text[0].lower() + text[1:])):
            return found
        if text[:1].islower() and (found := self._exact.get(text[0].upper() + text[1:])):
            return found
        return None

    def _by_template(self, text: str, depth: int) -> str | None:
        for behind in _BEHIND:
            body, mark, rest = text.partition(behind)
            if body and mark and (said := self._whole(body, depth, spoken=True)):
                return said + (self._by_template(mark + rest, depth) or mark + rest)
        # A clause may be half a sentence: the heavier template says which.
        half = text[0].lower() + text[1:] if text[:1].isupper() and "; " not in text else text
        words = dict.fromkeys(_WORD.findall(f"{text} {half}"))
        numbers = {n for word in words for n in self._by_word.get(word, ())}
        found: tuple[Template, Mapping[str, str]] | None = None
        for number in sorted(numbers):  # the heaviest first
            template = self._templates[number]
            if found is not None and template.weight < found[0].weight:
                break
            captures = template.match(text)
            if captures is not None:  # "Step 26 ms" is no "step 26"
                found = template, captures
                break
            captures = template.match(half) if found is None and half != text else None
            found = found if captures is None else (template, captures)
        if found is not None:
            return self._sentence(*found, depth)
        amount = _QUANTITY.fullmatch(text)
        said = amount and self._as_it_is(amount[2])
        return f"{said} {amount[1]}" if amount and said else None

    def _sentence(self, template: Template, captures: Mapping[str, str], depth: int) -> str:
        """Fill in a template; a full stop behind its last name ends the sentence, not the name."""
        last = template.names[-1]
        ends = re.fullmatch(r"[^;]*\w\.", captures[last])
        if depth or template.literals[-1] or not ends:
            return self._fill(template, captures, depth)
        return self._fill(template, {**captures, last: captures[last][:-1]}, depth) + "。"

    def _fill(self, template: Template, captures: Mapping[str, str], depth: int) -> str:
        out = ""
        for literal, name in template.translation:
            out = _join(out, literal)
            if name and literal.endswith("`"):  # code, as it is typed
                out += captures[name]
            elif name:
                out = _join(out, self._capture(name, captures[name], depth + 1))
        return _BETWEEN_WIDE.sub("", out)

    def _capture(self, name: str, value: str, depth: int) -> str:
        body = value.strip()
        if not body or depth > _DEEPEST:
            return value
        spoken = name.rstrip("0123456789") in _SPOKEN
        found = self._whole(body, depth, spoken=spoken) or self._in_parts(body, depth)
        if found is None:
            return value
        return found

    def _in_parts(self, text: str, depth: int) -> str | None:
        """Translate what is a message between separators, the longest runs of parts first."""
        if len(text) > _LONGEST_IN_PARTS or "  " in text or not _SENTENCE.search(text):
            return None
        parts = _SEPARATOR.split(text)
        if len(parts) == 1 or len(parts) > _MOST_PARTS:
            return None
        out: list[str] = []
        start, known, before = 0, False, True
        opened: list[bool] = []
        """Whether each parenthesis that is open is a wide one."""
        while start < len(parts):
            for end in range(len(parts), start, -2):
                piece = "".join(parts[start:end])
                whole = None if end - start == len(parts) else self._whole(piece, depth)
                if whole is not None:
                    break
            mark = parts[start - 1] if start else ""
            both = before and (whole is not None or mark == ")")
            if mark == " (":
                opened.append(both)
            elif mark == ")" and opened:
                both = opened.pop()
            out += [_MARKS.get(mark, mark) if both else mark]
            out += [parts[start] if whole is None else whole]
            known = known or whole is not None
            before = whole is not None or (before and not parts[start])
            start = end + 1 if whole is not None else start + 2
        return "".join(out) if known else None


def _join(one: str, other: str) -> str:
    """Join two parts of a sentence, with a space between a Chinese character and a Latin one."""
    return f"{one} {other}" if _WIDE_TO_NARROW.fullmatch(one[-1:] + other[:1]) else one + other


def read_messages(text: str) -> dict[str, str]:
    """Return the messages of a ``.po`` file that have a translation.

    What writes these files (``maintain``) needs Babel, reading them does not: there are no plurals,
    no contexts, nothing fuzzy in them.
    """
    found = ((_unquote(one), _unquote(other)) for one, other in _ENTRY.findall(text))
    return {one: other for one, other in found if one and other}


def _unquote(lines: str) -> str:
    text = lines.strip()[1:-1].replace('"\n"', "")
    if "\\" not in text:
        return text
    return _ESCAPE.sub(lambda found: _ESCAPES.get(found[1], found[1]), text)


@cache
def read_catalogue(language: str) -> Catalogue:
    """Return the catalogue of a language."""
    folder = files("npufix.reports") / "locale" / language / "LC_MESSAGES"
    messages: dict[str, str] = {}
    for domain in DOMAINS:
        own = read_messages(folder.joinpath(f"{domain}.po").read_text("utf-8"))
        messages |= _with_first_clauses(own) if domain == "rules" else own
    return Catalogue(messages)
