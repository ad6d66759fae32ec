"""The reference of commands, from the command line itself."""

from __future__ import annotations

import re
import textwrap
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

import click
from site_blocks import cell, escaped, fenced, table

from npufix.advisor.commands.cli import cli
from npufix.reports.language import VARIABLE

if TYPE_CHECKING:
    from collections.abc import Iterator

_PREFIX = "NPUFIX"
_OTHERS = {
    VARIABLE: "The language of what is said, `en` or `zh`; else the locale decides.",
    "NO_COLOR": "If set: no colours, as with `--no-color`.",
    "FORCE_COLOR": "If set: colours, even where the output is no terminal.",
    "XDG_CACHE_HOME": "Verdicts, and what a virtual NPU needs, are kept in the folder `npufix` "
    "below it. Default: `~/.cache`.",
    "XDG_STATE_HOME": "What `npufix undo` needs is kept in the folder `npufix` below it. "
    "Default: `~/.local/state`.",
    "GITHUB_STEP_SUMMARY": "Where `--output github=FILE` also writes the summary of the step; "
    "GitHub sets it.",
    "TORCH_DEVICE_BACKEND_AUTOLOAD": "npufix sets it to 0 for the processes that it starts: with "
    "torch_npu but without CANN, `import torch` fails otherwise.",
}


@dataclass(frozen=True)
class CommandPage:
    """The page of one command."""

    title: str
    uri: str
    text: str


def commands() -> Iterator[tuple[str, click.Command, click.Context]]:
    """Yield every command that does something, by its full name, groups before their members."""
    root = click.Context(cli, info_name="npufix", auto_envvar_prefix=_PREFIX)
    for name in cli.list_commands(root):
        command = cli.get_command(root, name)
        if command is not None:
            yield from _below(command, click.Context(command, parent=root, info_name=name))


def _below(
    command: click.Command, context: click.Context
) -> Iterator[tuple[str, click.Command, click.Context]]:
    yield context.command_path, command, context
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            inner = command.get_command(context, name)
            if inner is not None:
                yield from _below(inner, click.Context(inner, parent=context, info_name=name))


@cache
def command_pages() -> tuple[CommandPage, ...]:
    """Return a page for each command of the first level; those below it are sections."""
    sections: dict[str, list[str]] = {}
    for name, command, context in commands():
        first, level = name.split()[1], len(name.split()) - 1
        sections.setdefault(first, []).append(_section(name, command, context, level))
    return tuple(
        CommandPage(f"npufix {name}", f"reference/commands/{name}.md", "\n\n".join(texts) + "\n")
        for name, texts in sections.items()
    )


def _section(name: str, command: click.Command, context: click.Context, level: int) -> str:
    usage = " ".join(command.collect_usage_pieces(context))
    parts = [f"{'#' * level} {name}", _prose(command.help or ""), fenced(f"{name} {usage}", "text")]
    options = [p for p in command.params if isinstance(p, click.Option) and not p.hidden]
    if options:
        rows = [_option(option, context) for option in options]
        parts.append(table(["Option", ""], rows))
    parts.append(_epilog(command.epilog or ""))
    return "\n\n".join(part for part in parts if part)


def _prose(text: str) -> str:
    paragraphs = textwrap.dedent(text).strip().split("\n\n")
    return "\n\n".join(
        fenced(part.removeprefix("\b\n"), "text")
        if part.startswith("\b")
        else escaped(" ".join(part.split()))
        for part in paragraphs
    )


def _option(option: click.Option, context: click.Context) -> tuple[str, str]:
    names = ", ".join([*option.opts, *option.secondary_opts])
    value = "" if option.is_flag else " " + option.make_metavar(context)
    said = option.help or ""
    extra = option.get_help_extra(context)
    if extra.get("default"):
        said += f" Default: `{extra['default']}`."
    if isinstance(option.type, click.Choice) and "|" not in option.make_metavar(context):
        said += " One of " + ", ".join(f"`{each}`" for each in option.type.choices) + "."
    shown = (names + value).replace("|", "\\|")
    return f"`{shown}`", f"{cell(said)}<br><small>{variable(option, context)}</small>"


def variable(option: click.Option, context: click.Context) -> str:
    """Return the environment variable that gives the value of an option."""
    if "--lang" in option.opts:
        return VARIABLE
    return f"{context.auto_envvar_prefix}_{(option.name or '').upper()}"


def _epilog(text: str) -> str:
    """Return the examples of a command as code, and what follows them."""
    text = textwrap.dedent(text.replace("\b\n", "")).strip()
    head, _, rest = text.partition("Examples:\n")
    examples, _, after = rest.partition("\n\n")
    parts = [_prose(head)] if head.strip() else []
    if examples:
        parts += ["Examples:", fenced(textwrap.dedent(examples), "sh")]
    if after.strip():
        parts.append(escaped(" ".join(re.sub(r"\s+", " ", after).split())))
    return "\n\n".join(parts)


def environment() -> str:
    """Return the table of variables that are no option."""
    return table(["Variable", ""], [(f"`{name}`", text) for name, text in _OTHERS.items()])
