"""Collects what the code says to people, for the catalogues.

A message is a literal with words in it, or an f-string, whose fields become placeholders named
after what they hold. ``format_count(n, "file")`` is two messages: one file, several files.
Docstrings count where click shows them (commands) and where ``rules show`` does (modules of rules).
"""

from __future__ import annotations

import ast
import inspect
import re
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

from npufix.reports.language import composed
from npufix.rules.registry import BESIDE

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).parents[2]
_PACKAGES = ("advisor", "reports", "profiling_parsers", "rewriters", "rules")
# Texts of code that is written or run, names of fields, and what only developers see.
_NO_MESSAGES = re.compile(
    r"(_examples|_look_alikes|/overlay|/canonical|/torch_names|/elf_\w+|/json_schema"
    r"|profiling_parsers/schema|/language/\w+|/rules_test/\w+|/sarif\w*|virtual_npu/__main__)\.py$"
)
_CODE = frozenset(
    [
        "about",
        "valid",
        "rewritten",
        "metavar",
        "requires",
        "becomes",
        "replaces",
        "before",
        "after",
        "pattern",
        "replacement",
        "inputs",
        "launches_together",
        "param_decls",
    ]
)
_RULES = ("rules/substitutions", "rules/diagnostics", "rules/cluster")
_RAISED_BY_MISTAKES = frozenset({"AssertionError", "NotImplementedError", "TypeError"})
_CALLS_OF_CODE = frozenset(
    {"compile", "getenv", "execute", "sub", "read_sql", "either", "statements_of"}
)
_SINGLE_WORDS = re.compile(r"reports/(terminal|markdown|wording)/")
_WORDS = re.compile(r"[A-Za-z]{2,}[^A-Za-z{}]* +[^A-Za-z]*[A-Za-z]{2,}|[A-Za-z]{4,}")
_CODE_TEXT = re.compile(
    r"^(SELECT|CAST|ifnull|NOT INDEXED|bold |if True|diff --git|INSERT|CREATE|WITH|FROM|WHERE"
    r"|[A-Z][A-Za-z0-9]*( [A-Z][A-Za-z]*)+(\(\w+\))?$|Input |import |try:\n|from [\w{} .]+ import "
    r"|class \w+|def \w|torch\.|npu_|pip install"
    r"|python -m|git |--?\w+$|\.\*|\(\?|\^)|\\[bsdw]|::|[a-z]\|[a-z]|^\W*\w+\($|\w=\{"
)
_IN_PAGE = re.compile(r"""\b(?:t|label|said)\(\s*(?:"((?:[^"\\]|\\.)*)"|'((?:[^'\\]|\\.)*)')""")


def messages() -> dict[str, dict[str, str]]:
    """Return the messages of each domain, with the file that each is from."""
    found: dict[str, dict[str, str]] = {"npufix": {}, "rules": {}}
    for message in composed.MESSAGES:
        found["npufix"].setdefault(message, "reports/language/composed.py")
    for package in _PACKAGES:
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            if _NO_MESSAGES.search(name):
                continue
            own = found["rules" if package == "rules" else "npufix"]
            for message in in_module(path.read_text(encoding="utf-8"), name):
                if message not in composed.NO_MESSAGES:
                    own.setdefault(message, name)
    found["npufix"] |= _in_page()
    for message in found["npufix"]:
        found["rules"].pop(message, None)
    return found


def _in_page() -> dict[str, str]:
    """Return what the HTML pages say: ``t("...")`` in their templates and scripts."""
    return {
        first or second: path.relative_to(ROOT).as_posix()
        for path in sorted((ROOT / "reports" / "html").glob("[st]*/*.*"))
        if path.suffix in {".html", ".js"}
        for first, second in _IN_PAGE.findall(path.read_text(encoding="utf-8"))
    }


def in_module(text: str, name: str) -> Iterator[str]:
    """Yield the messages of a module."""
    visitor = _Visitor(single_words=_SINGLE_WORDS.match(name) is not None)
    tree = ast.parse(text)
    visitor.visit(tree)
    yield from visitor.found
    folder, stem = Path(name).parent.as_posix(), Path(name).stem
    if folder in _RULES and not stem.endswith((*BESIDE, "__init__")):
        yield from paragraphs(ast.get_docstring(tree) or "")


def paragraphs(docstring: str) -> list[str]:
    """Return the paragraphs of a docstring, each as one line."""
    parts = re.split(r"\n\s*\n", inspect.cleandoc(docstring))
    return [" ".join(part.split()) for part in parts if part.strip() and "\b" not in part]


class _Visitor(ast.NodeVisitor):
    def __init__(self, *, single_words: bool) -> None:
        self.found: list[str] = []
        self._single_words = single_words

    def _body(self, node: ast.Module | ast.ClassDef | ast.FunctionDef) -> None:
        for child in getattr(node, "decorator_list", []):
            self.visit(child)
        if isinstance(node, ast.FunctionDef) and any(map(_is_command, node.decorator_list)):
            self.found += paragraphs(ast.get_docstring(node) or "")
        if isinstance(node, ast.FunctionDef):
            for default in (*node.args.defaults, *filter(None, node.args.kw_defaults)):
                self.visit(default)
        for child in node.body:
            documents = isinstance(child, ast.Expr) and isinstance(child.value, ast.Constant)
            if not documents:
                self.visit(child)

    visit_Module = visit_ClassDef = visit_FunctionDef = _body  # noqa: N815 - names of ast

    def visit_Expr(self, node: ast.Expr) -> None:
        if not isinstance(node.value, ast.Constant):  # what documents a field
            self.visit(node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        if node.value is not None:
            self.visit(node.value)

    def visit_keyword(self, node: ast.keyword) -> None:
        if node.arg == "epilog":
            self.found += _comments_of(node.value)
        elif node.arg not in _CODE:
            self.visit(node.value)

    def visit_Raise(self, node: ast.Raise) -> None:
        named = node.exc.func if isinstance(node.exc, ast.Call) else None
        if not (isinstance(named, ast.Name) and named.id in _RAISED_BY_MISTAKES):
            self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        called = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        called = node.func.id if isinstance(node.func, ast.Name) else called
        if called in _CALLS_OF_CODE:
            return
        if called == "format_count":
            words = (n.value for n in node.args[1:] if isinstance(n, ast.Constant))
            nouns = [word for word in words if isinstance(word, str)]
            self.found += [f"{{n}} {noun}" for noun in nouns]
            if len(nouns) == 1:
                self.found.append(f"{{n}} {nouns[0]}s")
            self.visit(node.args[0])
            return
        self.generic_visit(node)

    def visit_JoinedStr(self, node: ast.JoinedStr) -> None:
        self._add(template(node))
        for part in node.values:
            if isinstance(part, ast.FormattedValue):
                self.visit(part.value)

    def visit_Constant(self, node: ast.Constant) -> None:
        if isinstance(node.value, str) and "{" not in node.value:
            self._add(node.value)

    def _add(self, text: str) -> None:
        body = text.strip()
        fixed = re.sub(r"\{\w+\}", "", body)
        single = self._single_words and re.fullmatch(r"[A-Z][a-z]+[.:]?", body)
        spoken = _WORDS.search(fixed) and (" " in body) and not _CODE_TEXT.search(body)
        if single or spoken:
            self.found.append(body)


def _is_command(decorator: ast.expr) -> bool:
    called = decorator.func if isinstance(decorator, ast.Call) else decorator
    return isinstance(called, ast.Attribute) and called.attr in {"command", "group"}


def _comments_of(node: ast.expr) -> list[str]:
    """Return what stands behind the commands of an epilog with examples."""
    text = node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""
    return re.findall(r"\S {2,}(\S.*)$", text, re.MULTILINE)


def template(node: ast.JoinedStr) -> str:
    """Return an f-string with placeholders; two side by side are one."""
    out, seen, open_field = "", Counter[str](), False
    for part in node.values:
        if isinstance(part, ast.Constant):
            out += str(part.value).replace("{", "{{").replace("}", "}}")
            open_field = False
        elif isinstance(part, ast.FormattedValue) and not open_field:
            name = _name(part.value)
            seen[name] += 1
            out += f"{{{name}{seen[name] if seen[name] > 1 else ''}}}"
            open_field = True
    return out


def _name(value: ast.expr) -> str:
    """Return a short name for what a field holds."""
    if isinstance(value, ast.Name):
        name = value.id
    elif isinstance(value, ast.Attribute):
        name = value.attr
    elif isinstance(value, ast.Subscript):
        name = _name(value.value)
    elif isinstance(value, ast.Call):
        return _name_of_call(value)
    else:
        name = "x"
    return name.strip("_").lower().rstrip("0123456789") or "x"


def _name_of_call(call: ast.Call) -> str:
    if isinstance(call.func, ast.Attribute):
        joined = isinstance(call.func.value, ast.Constant)
        if joined and call.args:
            return _name(call.args[0])
        if not call.args and not joined:
            return _name(call.func.value)
        return call.func.attr.strip("_").lower()
    return _name(call.func)
