"""The pages of the rules, from the files of the rules."""

from __future__ import annotations

import difflib
import inspect
import re
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING

from site_blocks import BlockError, cell, escaped, fenced
from site_blocks import table as made_table

from npufix.reports import language
from npufix.reports.terminal.rule_table import safety
from npufix.rules.registry import documentation, every_rule
from npufix.rules.substitution import Safety, Substitution

if TYPE_CHECKING:
    from collections.abc import Iterator

    from npufix.rules.registry import Rule

ROOT = Path(__file__).resolve().parents[2]
_TABLES = {
    "fusion": "Many small kernels become one.",
    "affinity": "An operator that the NPU is slow at becomes one that it is fast at.",
    "settings": "What the recording says about the run as a whole.",
    "cluster": "What the ranks of a job show beside each other.",
}
_INTRODUCTION = (
    "Every rule is one file: the matcher, the rewriter, the verifier, the tests and these pages "
    "work from. `npufix rules show NPU101` shows the same on a terminal."
)
_CHINESE_TABLES = {
    "fusion": "融合：许多小 kernel 变成一个",
    "affinity": "亲和：把 NPU 上慢的算子换成快的",
    "settings": "设置：记录反映出的整个运行的问题",
    "cluster": "集群：把一个作业的各个 rank 放在一起看出的问题",
}
_CHINESE_INTRODUCTION = (
    "类别说明工具可以对发现做什么：*safe* 对代码接受的所有输入都相等（只差舍入），"
    "验证通过就写入补丁；*conditional* 在具名条件成立时相等，条件得到证明或用 "
    "`--allow CONDITION` 担保后才写入；*advice* 只给出建议，从不写入。编号链接到英文页；"
    "`npufix rules show NPU101 --lang zh` 在终端显示中文全文。"
)
_CLASSES = (
    ("safe", "equal for every input that the code accepts, up to rounding", "if verified"),
    (
        "conditional",
        "equal if named conditions hold",
        "if they are proven, or with `--allow CONDITION`; and if verified",
    ),
    ("advice", "the tool does not write the change", "never"),
)
_HEADINGS = ("What", "Why it is slow on the NPU", "Evidence", "Use instead", "Safety", "References")
_HEADING = re.compile(rf"({'|'.join(_HEADINGS)}):\s+")
_EXAMPLES = 3
_LOOK_ALIKES = 3


def pages() -> dict[str, str]:
    """Return all pages of rules, by their place in the site."""
    made = {f"rules/{name}.md": _table_page(name) for name in _TABLES}
    made["rules/index.md"] = _index()
    made["zh/rules.md"] = chinese()
    return made | {f"rules/{rule.id.lower()}.md": page(rule) for rule in every_rule()}


def chinese() -> str:
    """Return the page of all rules with their summaries in Chinese."""
    parts = ["# 规则一览", "[English](../rules/index.md)", _CHINESE_INTRODUCTION]
    for name, title in _CHINESE_TABLES.items():
        rows = [
            (
                f"[{rule.id}](../rules/{rule.id.lower()}.md)",
                f"{rule.name}<br>{cell(language.both(rule.summary)[1])}",
                safety(rule).value,
                cell(rule.requires) or "不限",
            )
            for rule in every_rule()
            if rule.table == name
        ]
        parts += [f"## {title}", made_table(["编号", "名称", "类别", "版本和芯片"], rows)]
    return "\n\n".join(parts) + "\n"


def _index() -> str:
    rules = every_rule()
    counted = {name: sum(rule.table == name for rule in rules) for name in _TABLES}
    rows = [
        (f"[{name.capitalize()}]({name}.md)", text, str(counted[name]))
        for name, text in _TABLES.items()
    ]
    parts = [
        "# Rules",
        _INTRODUCTION,
        made_table(["Table", "", "Rules"], rows),
        "The class of a rule says what the tool may do with what it finds:",
        made_table(["Class", "Meaning", "In the patch"], _CLASSES),
    ]
    return "\n\n".join(parts) + "\n"


def _table_page(name: str) -> str:
    advice = " Advice is said where the dump shows it, never written."
    rest = advice if name in {"fusion", "affinity"} else ""
    return f"# {name.capitalize()}\n\n{_TABLES[name]}{rest}\n\n{table(name)}\n"


def table(name: str) -> str:
    """Return the rules of a table."""
    rows = [
        (
            f"[{rule.id}]({rule.id.lower()}.md)",
            f"{rule.name}<br>{cell(rule.summary)}",
            safety(rule).value,
            cell(rule.requires) or "any",
        )
        for rule in every_rule()
        if rule.table == name
    ]
    return made_table(["Id", "Name", "Class", "Versions and chips"], rows)


def page(rule: Rule) -> str:
    """Return the page of one rule."""
    parts = [f"# {rule.id} {rule.name}", _facts(rule), *_documented(rule)]
    if not isinstance(rule, Substitution):
        parts += ["## What to do", escaped(rule.advice)]
    else:
        parts += _substitution(rule)
    return "\n\n".join(part for part in parts if part) + "\n"


def _facts(rule: Rule) -> str:
    rows = [
        ("Table", f"[{rule.table}]({rule.table}.md)"),
        ("Class", f"{_class(rule)} ([what that means](index.md))"),
        ("Versions and chips", cell(rule.requires) or "any"),
    ]
    if isinstance(rule, Substitution):
        rows += [
            ("Kernels before", ", ".join(f"`{kind}`" for kind in rule.replaces)),
            ("Kernels after", ", ".join(f"`{kind}`" for kind in rule.becomes)),
        ]
        if rule.advice:
            rows.append(("Never written", cell(rule.advice)))
        if rule.silent:
            rows.append(("Silent elsewhere", cell(rule.silent)))
    return made_table(["", ""], [(f"**{name}**", text) for name, text in rows if text])


def _class(rule: Rule) -> str:
    does = safety(rule)
    return does.value + (
        ", safe where its conditions are proven" if does is Safety.CONDITIONAL else ""
    )


def _documented(rule: Rule) -> Iterator[str]:
    for paragraph in documentation(rule).split("\n\n"):
        text = paragraph.strip()
        heading = _HEADING.match(text)
        if heading:
            yield f"## {heading[1]}"
            text = text[heading.end() :]
        yield _lines(text[:1].upper() + text[1:] if heading else text)


def _lines(text: str) -> str:
    """Return a paragraph; where it is a list or code, its lines stay."""
    lines = textwrap.dedent(text).splitlines()
    if any(line.startswith(("- ", "* ")) for line in lines):
        items = re.split(r"^[-*] ", "\n".join(lines), flags=re.MULTILINE)
        head, *rest = (escaped(" ".join(item.split())) for item in items)
        listed = "\n".join(f"- {item}" for item in rest)
        return f"{head}\n\n{listed}" if head else listed
    return escaped(" ".join(text.split()))


def _substitution(rule: Substitution) -> Iterator[str]:
    conditions = {c.name: c.text for form in rule.forms for c in form.conditions}
    if conditions:
        yield "## Conditions"
        yield (
            "Each must hold where its form of the pattern is found. The source or the dump proves "
            "most; one that stays open is named, and `--allow` vouches for it."
        )
        yield made_table(
            ["`--allow`", ""], [(f"`{name}`", cell(text)) for name, text in conditions.items()]
        )
    if rule.rewritten:
        yield "## Example"
        for example in rule.rewritten[:_EXAMPLES]:
            yield fenced(_diff(example.before, example.after), "diff")
    if rule.valid:
        yield "## Left alone"
        yield "Code that looks alike, and that this rule must not change:"
        for code in rule.valid[:_LOOK_ALIKES]:
            yield fenced(textwrap.dedent(code), "python")
    yield "## Pattern and replacement"
    yield (
        "What is looked for and what is written, as the verifier runs them"
        + (f"; the first of {len(rule.forms)} forms:" if len(rule.forms) > 1 else ":")
    )
    form = rule.forms[0]
    code = "\n\n\n".join(_source(function) for function in (form.pattern, form.replacement))
    yield fenced(code, "python")


def _diff(before: str, after: str) -> str:
    old, new = (textwrap.dedent(text).strip().splitlines() for text in (before, after))
    return "\n".join(list(difflib.unified_diff(old, new, lineterm="", n=len(old)))[3:])


def _source(function: object) -> str:
    text = textwrap.dedent(inspect.getsource(function)).strip()  # type: ignore[arg-type]
    return re.sub(r"  # (type: ignore|noqa).*", "", text)


def source(rule_id: str) -> str:
    """Return the file of a rule."""
    for rule in every_rule():
        if rule.id == rule_id:
            written = rule.forms[0].pattern if isinstance(rule, Substitution) else rule.check
            return fenced(Path(inspect.getfile(written)).read_text(encoding="utf-8"), "python")
    raise BlockError(f"no rule {rule_id}")
