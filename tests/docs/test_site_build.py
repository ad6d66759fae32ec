"""What the site is made of: pages from the code, real outputs, links that are checked."""

from __future__ import annotations

import re
from pathlib import Path

import click
import pytest
import site_blocks
import site_commands
import site_links
import site_rules
import site_schemas
import site_session
import site_settings
from click.testing import CliRunner

from npufix.advisor.commands.cli import cli
from npufix.rules.registry import every_rule

ROOT = Path(__file__).resolve().parents[2]


def test_every_command_and_option_is_in_the_reference() -> None:
    text = "\n".join(page.text for page in site_commands.command_pages())
    for name, command, _ in site_commands.commands():
        assert f"# {name}\n" in text
        for parameter in command.params:
            if isinstance(parameter, click.Option) and not parameter.hidden:
                assert parameter.opts[-1] in text, f"{name} {parameter.opts}"


def test_the_variable_that_the_reference_names_sets_the_option(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    [(option, context)] = [
        (p, context)
        for name, command, context in site_commands.commands()
        for p in command.params
        if name == "npufix rules" and "--json" in p.opts and isinstance(p, click.Option)
    ]
    monkeypatch.setenv(site_commands.variable(option, context), "1")
    assert CliRunner().invoke(cli, ["rules"]).output.startswith("[")


def test_every_rule_has_a_page_that_its_table_links_to() -> None:
    pages = site_rules.pages()
    tables = "\n".join(pages[f"rules/{name}.md"] for name in site_rules._TABLES)
    for rule in every_rule():
        page = pages[f"rules/{rule.id.lower()}.md"]
        assert f"[{rule.id}]({rule.id.lower()}.md)" in tables
        assert page.startswith(f"# {rule.id} {rule.name}\n")
        assert "## Why it is slow on the NPU" in page
        assert "## References" in page


def test_a_page_of_a_substitution_shows_the_change_and_what_is_left_alone() -> None:
    page = site_rules.pages()["rules/npu201.md"]
    assert re.search(r"```diff\n.*^-.*\] = .*^\+.*masked_fill_", page, re.MULTILINE | re.DOTALL)
    assert "## Left alone" in page
    assert "| `value-fits-dtype` |" in page


def test_settings_and_formats_are_those_of_the_code() -> None:
    assert '| `gate.tolerance` | `"5%"` |' in site_settings.gate()
    assert "| `step-time` |" in site_settings.metrics()
    assert "`per-file-ignores`" in site_settings.configuration()
    assert "| `sarif` |" in site_blocks.formats()
    assert "false alarms" in site_blocks.gate_power()
    assert "with_stack=True" in site_blocks.profiler_code()


def test_a_key_that_nobody_described_stops_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delitem(site_settings._TOP, "allow")
    with pytest.raises(site_blocks.BlockError, match="allow"):
        site_settings.configuration()


def test_every_schema_is_listed() -> None:
    folder = ROOT / "docs/schemas"
    page = site_schemas.page(folder)
    for path in folder.glob("*.json"):
        assert f"(../schemas/{path.name})" in page


def test_text_of_the_code_is_no_markup() -> None:
    text = site_blocks.escaped("a * b <c> ``x[0] * y`` _all_ npu_rms_norm [x] {y}")
    assert text == r"a \* b &lt;c&gt; `x[0] * y` \_all\_ npu_rms_norm \[x\] \{y\}"


def test_a_part_that_does_not_exist_stops_the_build() -> None:
    with pytest.raises(site_blocks.BlockError, match="no part nothing"):
        site_blocks.filled("{{ nothing }}", {})
    assert (
        site_blocks.filled("  {{ two a b }}", {"two": lambda *names: "\n".join(names)})
        == "  a\n  b"
    )


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
        result = session.run(("echo x >> log", "pwd; cat log"))
    assert result.lines == ("~/npufix", "x")


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


def test_links_and_requests_of_a_site_are_checked(tmp_path: Path) -> None:
    (tmp_path / "a.html").write_text(
        '<h1 id="top">x</h1><a href="b.html#part">ok</a><a href="#top">ok</a>'
        '<a href="https://example.com">elsewhere is not asked</a><img src="data:,x">'
    )
    (tmp_path / "b.html").write_text('<p id="part"></p><link rel=canonical href="https://x.y/">')
    assert site_links.problems(tmp_path) == []
    (tmp_path / "c.html").write_text(
        '<a href="d.html">1</a><a href="a.html#bottom">2</a><script src="//cdn.com/x.js"></script>'
        '<link rel="stylesheet" href="https://fonts.com/f.css"><img src="no.png">'
    )
    (tmp_path / "s.css").write_text(
        "@import 'https://fonts.com/f.css'; a { background: url(x.png) }"
    )
    assert site_links.problems(tmp_path) == [
        "c.html: fetches //cdn.com/x.js",
        "c.html: fetches https://fonts.com/f.css",
        "c.html: d.html leads nowhere",
        "c.html: a.html#bottom leads nowhere",
        "c.html: no.png leads nowhere",
        "s.css: fetches https://fonts.com/f.css",
    ]
