"""What MkDocs calls while it builds: pages made from the code, commands run, links checked."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import site_blocks
import site_commands
import site_links
import site_rules
import site_schemas
import site_session
import site_settings
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parents[2]
_BLOCKS: Mapping[str, Callable[..., str]] = {
    "configuration": site_settings.configuration,
    "gate-settings": site_settings.gate,
    "gate-metrics": site_settings.metrics,
    "environment": site_commands.environment,
    "formats": site_blocks.formats,
    "gate-power": site_blocks.gate_power,
    "profiler-code": site_blocks.profiler_code,
    "example-file": site_blocks.example_file,
    "rule-source": site_rules.source,
    "table-of-rules": site_rules.table,
}


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the commands into the navigation: one page each."""
    for section in config.nav or []:
        for item in section.get("Reference", []):
            if "Commands" in item:
                item["Commands"] = [
                    {page.title: page.uri} for page in site_commands.command_pages()
                ]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that are made from the code."""
    changelog = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    pages = {page.uri: page.text for page in site_commands.command_pages()}
    pages |= site_rules.pages()
    pages |= {
        "reference/schemas.md": site_schemas.page(ROOT / "docs/schemas"),
        "reference/changelog.md": changelog,
    }
    for uri, text in pages.items():
        files.append(File.generated(config, uri, content=text))
    _commands_last(files)
    return files


def _commands_last(files: Files) -> None:
    """Run the commands of pages while all other pages are rendered."""
    waiting = [
        (file, file.content_string)
        for file in files.documentation_pages()
        if site_session.has_commands(file.content_string)
    ]
    for number, (file, text) in enumerate(waiting):
        files.remove(file)
        files.append(file)
        if number == 0:
            _session().run_ahead(text)


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - MkDocs' interface
    """Fill in what is made from the code, and the output of commands."""
    try:
        text = site_blocks.filled(markdown, _BLOCKS)
        return site_session.with_outputs(text, _session)
    except (site_blocks.BlockError, site_session.SessionError) as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def on_post_page(output: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - same
    """Say which language a page is in."""
    if page.file.src_uri.startswith("zh/"):
        return output.replace('<html lang="en"', '<html lang="zh"', 1)
    return output


def on_post_build(config: MkDocsConfig) -> None:
    """Fail if a link leads nowhere, or a page would ask the network for something."""
    problems = site_links.problems(Path(config.site_dir))
    if problems:
        raise PluginError("\n".join(["the built site:", *problems]))


@cache
def _session() -> site_session.Session:
    """Return the session of this build; in the same place, verdicts of the last are found."""
    folder = ROOT / "build/docs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return site_session.Session.of_example(ROOT, folder)
