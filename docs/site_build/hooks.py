"""What MkDocs calls while it builds: pages made from the code, templates filled, commands run.

Links and anchors are checked by MkDocs itself (``validation`` and ``--strict`` in mkdocs.yml and
Makefile), requests to other places by the plugin ``privacy``. Pages are added with MkDocs' own
``File.generated``: mkdocs-gen-files does no more, and brings a fork of MkDocs with it.
"""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jinja2
import site_commands
import site_pages
import site_session
from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.pages import Page


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Put the commands and the rules into the navigation: one page each."""
    pages = [{f"npufix {name}": uri} for name, (uri, _) in site_commands.pages().items()]
    for section in config.nav or []:
        for item in section.get("Reference", []):
            if "Commands" in item:
                item["Commands"] = pages
        for item in section.get("Rules", []):
            for name, uri in item.items() if isinstance(item, dict) else ():
                rules = site_pages.rules_of(Path(uri).stem)
                item[name] = [{"Table": uri}, *({title: page} for page, title in rules.items())]
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages of commands and rules."""
    pages = dict(site_commands.pages().values())
    for uri, text in (pages | site_pages.rule_pages()).items():
        files.append(File.generated(config, uri, content=text))
    return files


def on_page_markdown(markdown: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - MkDocs' interface
    """Fill in what is made from the code, and the output of commands."""
    if page.file.generated_by:
        return markdown
    try:
        return site_session.with_outputs(site_pages.filled(markdown), _session)
    except (jinja2.TemplateError, site_pages.PageError, site_session.SessionError) as error:
        raise PluginError(f"{page.file.src_uri}: {error}") from error


def on_post_page(output: str, page: Page, **_: Any) -> str:  # noqa: ANN401 - same
    """Say which language a page is in."""
    if page.file.src_uri.startswith("zh/"):
        words = {"Table of contents": "目录", 'placeholder="Search"': 'placeholder="搜索"'}
        for english, chinese in {'<html lang="en"': '<html lang="zh"', **words}.items():
            output = output.replace(english, chinese)
    return output


@cache
def _session() -> site_session.Session:
    """Return the session of this build; in the same place, verdicts of the last are found."""
    folder = site_pages.ROOT / "build/docs"
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    return site_session.Session.of_example(site_pages.ROOT, folder)
