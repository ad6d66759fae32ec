"""The pages as templates of Jinja: what they can ask for.

Plain Jinja does it in one call, as mkdocs-macros would with six more packages.
"""

from __future__ import annotations

import difflib
import inspect
import json
import re
import textwrap
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import site_commands
from site_markup import cell, escaped, fenced
from site_session import excerpt

from npufix.advisor.project import configuration
from npufix.advisor.project import gate_settings as settings
from npufix.reports import language
from npufix.reports.formats import formats
from npufix.reports.terminal.rules import safety
from npufix.rules.registry import documentation, every_rule
from npufix.rules.shared.quantities import percent, quantity
from npufix.rules.substitution import Substitution

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from npufix.rules.registry import Rule

ROOT = Path(__file__).resolve().parents[2]
_HEADINGS = ("What", "Why it is slow on the NPU", "Evidence", "Use instead", "Safety", "References")
_HEADING = re.compile(rf"({'|'.join(_HEADINGS)}):\s+")


class PageError(Exception):
    """A page does not say what the code has."""


def filled(markdown: str) -> str:
    """Return a page with what is made from the code.

    Raises:
        jinja2.TemplateError: there is no such part.
        PageError: a table does not describe what the code has.

    """
    return _environment().from_string(markdown).render()


def rule_pages() -> dict[str, str]:
    """Return the page of each rule, by its place in the site."""
    template = _environment().get_template("rule.md.jinja")
    return {f"rules/{rule.id.lower()}.md": template.render(rule=rule) for rule in every_rule()}


def rules_of(table: str) -> dict[str, str]:
    """Return what the menu calls the rules of a table, by their page's place in the site."""
    rules = (rule for rule in every_rule() if rule.table == table)
    return {f"rules/{rule.id.lower()}.md": f"{rule.id} {rule.name}" for rule in rules}


@cache
def _environment() -> jinja2.Environment:
    templates = jinja2.FileSystemLoader(Path(__file__).parent)
    environment = jinja2.Environment(  # noqa: S701 - it writes Markdown
        loader=templates, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.globals.update(
        described=_described,
        configuration_keys=configuration.KEYS,
        gate_keys=(
            *(f"gate.{name}" for name in settings._KEYS),  # noqa: SLF001 - accepted
            *(f"findings.{name}" for name in settings._FINDINGS_KEYS),  # noqa: SLF001 - same
        ),
        metrics=settings.METRICS,
        defaults=settings.GateSettings(),
        failures=settings.FAILURES,
        formats=formats(),
        writers=site_commands.writers(),
        excerpt_of=_excerpt_of,
        schemas=_schemas,
        rules=every_rule(),
        safety=lambda rule: safety(rule).value,
        is_substitution=lambda rule: isinstance(rule, Substitution),
        documented=_documented,
        diff=_diff,
        source=_source,
        rule_source=_rule_source,
    )
    environment.filters.update(
        amount=lambda value, unit: quantity(value, unit).replace(".0 ", " "),
        cell=cell,
        chinese=lambda text: language.both(text)[1],
        dedent=textwrap.dedent,
        escaped=escaped,
        fenced=fenced,
        percent=lambda part: percent(part).replace(".0%", "%"),
    )
    return environment


def _described(names: Iterable[str], caller: Callable[[], str]) -> str:
    """Return a table that a page holds, if its rows are those that the code has."""
    text = caller()
    differ = set(names) ^ set(re.findall(r"^\| `([^`]+)` \|", text, re.MULTILINE))
    if differ:
        raise PageError(f"described, or in the code, but not both: {', '.join(sorted(differ))}")
    return text


def _excerpt_of(name: str, first: str, behind: str) -> str:
    """Return the lines of a file from one that matches to before the next that does."""
    lines = (ROOT / name).read_text(encoding="utf-8").splitlines()
    return "\n".join(excerpt(lines, {"from": first, "before": behind}))


def _schemas() -> Iterator[tuple[str, dict[str, Any]]]:
    for path in sorted((ROOT / "docs/schemas").glob("*.json")):
        yield path.name, json.loads(path.read_text(encoding="utf-8"))


def _documented(rule: Rule) -> Iterator[str]:
    """Yield the paragraphs of a rule's docstring, with headings and lists."""
    for paragraph in documentation(rule).split("\n\n"):
        text = paragraph.strip()
        heading = _HEADING.match(text)
        if heading:
            yield f"## {heading[1]}"
            text = text[heading.end() :]
            text = text[:1].upper() + text[1:]
        head, *items = re.split(r"^[-*] ", textwrap.dedent(text), flags=re.MULTILINE)
        if head:
            yield escaped(" ".join(head.split()))
        if items:
            yield "\n".join(f"- {escaped(' '.join(item.split()))}" for item in items)


def _diff(before: str, after: str) -> str:
    old, new = (textwrap.dedent(text).strip().splitlines() for text in (before, after))
    return "\n".join(list(difflib.unified_diff(old, new, lineterm="", n=len(old)))[3:])


def _source(function: object) -> str:
    text = textwrap.dedent(inspect.getsource(function)).strip()  # type: ignore[arg-type]
    return re.sub(r"  # (type: ignore|noqa).*", "", text)


def _rule_source(rule_id: str) -> str:
    """Return the file of a rule."""
    rule = next(rule for rule in every_rule() if rule.id == rule_id)
    written = rule.forms[0].pattern if isinstance(rule, Substitution) else rule.check
    return Path(inspect.getfile(written)).read_text(encoding="utf-8")
