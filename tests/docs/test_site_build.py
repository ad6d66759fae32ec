"""What the site is made of: pages from the code, real outputs, links that are checked."""

from __future__ import annotations

import html
import re
import subprocess
import sys
from pathlib import Path

import click
import jinja2
import pictures
import pytest
import site_commands
import site_markup
import site_pages
import site_session
from click.testing import CliRunner
from markdown import markdown
from rich.text import Text

from npufix.advisor.commands.cli import cli
from npufix.rules.registry import every_rule

ROOT = Path(__file__).resolve().parents[2]


def reference_of(name: str) -> str:
    _, page = site_commands.pages()[name]
    return markdown(page, extensions=["attr_list", "mkdocs-click", "fenced_code"])


def filled(name: str) -> str:
    return site_pages.filled((ROOT / "docs" / name).read_text(encoding="utf-8"))


def check_reference(text: str, command: click.Command, name: str) -> None:
    assert f">{name}</h" in text
    for parameter in command.params:
        if isinstance(parameter, click.Option) and not parameter.hidden:
            assert parameter.opts[-1] in text, f"{name} {parameter.opts}"
    if isinstance(command, click.Group):
        for inner in command.commands.values():
            check_reference(text, inner, f"{name} {inner.name}")


def test_every_command_and_option_is_in_the_reference() -> None:
    context = click.Context(cli)
    for name in cli.list_commands(context):
        command = cli.get_command(context, name)
        assert command is not None
        check_reference(reference_of(name), command, f"npufix {name}")


def test_the_reference_shows_examples_and_what_is_said_behind_them() -> None:
    text = reference_of("gate")
    assert re.search(
        r"<code[^>]*>npufix gate run1[^<]*sarif=npufix.sarif\n[^<]*head runs/head\n</code>", text
    )
    assert "<p>Exit status: 0 pass" in text


def test_the_variable_that_the_reference_names_sets_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    variable = re.search(r"--json .*?\[env var:\s+(\w+)\]", reference_of("rules"), re.DOTALL)
    assert variable is not None
    monkeypatch.setenv(variable[1], "1")
    assert CliRunner().invoke(cli, ["rules"]).output.startswith("[")


def test_the_reference_leaves_the_commands_as_they_are() -> None:
    reference_of("rules")
    assert "env var" not in CliRunner().invoke(cli, ["rules", "--help"]).output


def test_every_rule_has_a_page_that_its_table_links_to() -> None:
    pages = site_pages.rule_pages()
    chinese = filled("zh/rules.md")
    for rule in every_rule():
        page = pages[f"rules/{rule.id.lower()}.md"]
        assert f"[{rule.id}]({rule.id.lower()}.md)" in filled(f"rules/{rule.table}.md")
        assert f"[{rule.id}](../rules/{rule.id.lower()}.md)" in chinese
        assert page.startswith(f"# {rule.id} {rule.name}\n")
        assert "## Why it is slow on the NPU" in page
        assert "## References" in page


def test_a_page_of_a_substitution_shows_the_change_and_what_is_left_alone() -> None:
    page = site_pages.rule_pages()["rules/npu201.md"]
    assert re.search(r"```diff\n.*^-.*\] = .*^\+.*masked_fill_", page, re.MULTILINE | re.DOTALL)
    assert "## Left alone" in page
    assert "| `value-fits-dtype` |" in page


def test_settings_and_formats_are_those_of_the_code() -> None:
    configuration, gate = filled("reference/configuration.md"), filled("howto/gate.md")
    assert '| `gate.tolerance` | `"5%"` |' in configuration
    assert "| `step-time` |" in configuration
    assert "| `step-time` |" in gate
    assert "`per-file-ignores`" in configuration
    assert "| `sarif` |" in filled("reference/formats.md")
    assert "false alarms" in gate
    assert "with_stack=True" in filled("howto/collect.md")


@pytest.mark.parametrize("rows", ["", "| `a` | |\n| `b` | |\n| `c` | |\n"])
def test_a_key_that_nobody_described_stops_the_build(rows: str) -> None:
    page = "{% call described(['a', 'b']) %}\n" + (rows or "| `a` | |\n") + "{% endcall %}"
    with pytest.raises(site_pages.PageError, match="c" if rows else "b"):
        site_pages.filled(page)


def test_every_key_of_the_code_is_described() -> None:
    text = (ROOT / "docs/reference/configuration.md").read_text(encoding="utf-8")
    with pytest.raises(site_pages.PageError, match="allow"):
        site_pages.filled(re.sub(r"^\| `allow` .*\n", "", text, flags=re.MULTILINE))


def test_every_schema_is_listed() -> None:
    page = filled("reference/schemas.md")
    for path in (ROOT / "docs/schemas").glob("*.json"):
        assert f"(../schemas/{path.name})" in page


def test_text_of_the_code_is_no_markup() -> None:
    text = site_markup.escaped("a * b <c> ``x[0] * y`` _all_ npu_rms_norm [x] {y}")
    assert text == r"a \* b &lt;c&gt; `x[0] * y` \_all\_ npu_rms_norm \[x\] \{y\}"


def test_a_part_that_does_not_exist_stops_the_build() -> None:
    with pytest.raises(jinja2.UndefinedError, match="nothing"):
        site_pages.filled("{{ nothing }}")


def session_in(folder: Path) -> site_session.Session:
    return site_session.Session(folder)


def test_outputs_are_what_the_commands_print(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    page = (
        '```run from="^2" before="^4"\nseq 5\n```\ntext\n```output to="^2"\n```\n'
        "```run status=3\ntrue\nexit 3\n```\n```run quiet\npwd\n```\n"
    )
    assert site_session.with_outputs(page, lambda: session) == (
        "```console\n$ seq 5\n[...]\n2\n3\n[...]\n```\ntext\n```console\n1\n2\n[...]\n```\n"
        "```console\n$ true\n$ exit 3\n```\n```console\n$ pwd\n```\n"
    )


def test_commands_run_once_and_hide_their_folder(tmp_path: Path) -> None:
    session = session_in(tmp_path)
    for _ in range(2):
        result = session.run("echo x >> log\npwd; cat log")
    assert result == ["~/npufix", "x"]


@pytest.mark.parametrize(
    ("page", "said"),
    [("```run\nexit 1\n```\n", "ends with 1, not 0"),
     ("```run\nfalse\ntrue\n```\n", "ends with 1, not 0"),
     ("```run status=1\ntrue\n```\n", "ends with 0, not 1"),
     ('```run to="gone"\necho here\n```\n', "no line with 'gone'"),
     ("```output\n```\n", "without a command")],
)  # fmt: skip
def test_an_output_that_went_stale_stops_the_build(page: str, said: str, tmp_path: Path) -> None:
    session = session_in(tmp_path)
    with pytest.raises(site_session.SessionError, match=said):
        site_session.with_outputs(page, lambda: session)


SITE = f"""
INHERIT: {ROOT / "mkdocs.yml"}
docs_dir: docs
hooks: []
not_in_nav: ""
nav: [a.md, b.md]
extra_css: [s.css]
"""


def built(folder: Path, page: str, style: str = "") -> str:
    """Return what MkDocs says with our settings of a site of two pages."""
    (folder / "docs").mkdir()
    (folder / "mkdocs.yml").write_text(SITE)
    (folder / "docs/a.md").write_text(page)
    (folder / "docs/b.md").write_text("# Part\n")
    (folder / "docs/s.css").write_text(f"a {{ background: url(x.png) }}\n{style}")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict"],
        cwd=folder, check=False, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    assert bool(done.returncode) == ("in strict mode" in done.stdout), done.stdout
    return done.stdout if done.returncode else ""


def test_links_that_lead_somewhere_and_links_to_elsewhere_pass(tmp_path: Path) -> None:
    page = "# Top\n[1](b.md#part) [2](#top) [3](https://example.com) ![4](data:,x)\n"
    assert not built(tmp_path, page)


def test_links_and_requests_of_a_site_are_checked(tmp_path: Path) -> None:
    said = built(
        tmp_path,
        "# A\n[1](d.md) [2](b.md#bottom) [3](#gone) ![4](no.png) [5](/b.md)\n\n"
        '<script src="//cdn.com/x.js"></script>\n'
        '<link rel="stylesheet" href="https://fonts.com/f.css">\n',
        "@import 'https://fonts.com/g.css'; b { background: url(https://fonts.com/h.png) }",
    )
    for wanted in (
        "d.md", "b.md#bottom", "#gone", "no.png", "/b.md",
        "cdn.com/x.js", "fonts.com/f.css", "fonts.com/g.css", "fonts.com/h.png",
    ):  # fmt: skip
        assert wanted in said


def test_the_picture_of_the_terminal_shows_what_is_printed_today() -> None:
    drawn = (ROOT / "docs/pictures/terminal.svg").read_text(encoding="utf-8")
    shown = html.unescape("".join(re.findall(r"<text [^>]*>([^<]*)</text>", drawn)))
    printed = Text.from_ansi(pictures.printed()).plain
    assert "".join(shown.split()).endswith("".join(printed.split())), "make pictures"
