"""``npufix completion``."""

from __future__ import annotations

import click

_VARIABLE = "_NPUFIX_COMPLETE"
_TAKEN = "COMPREPLY+=($value)"


@click.command(
    epilog="""\b
Examples:
  eval "$(npufix completion bash)"               in ~/.bashrc
  eval "$(npufix completion zsh)"                in ~/.zshrc, behind compinit
  npufix completion fish > ~/.config/fish/completions/npufix.fish"""
)
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def command(shell: str) -> None:
    """Print a script that makes SHELL complete commands, options, rules, formats, conditions.

    The script asks npufix itself, so it never has to be written again. bash: 4.4 or later.
    """
    from click.shell_completion import get_completion_class

    from npufix.advisor.commands.cli import cli

    made = get_completion_class(shell)
    if made is None:
        raise click.UsageError(f"no completion for {shell}")
    script = made(cli, {}, "npufix", _VARIABLE)
    text = script.source_template % script.source_vars()
    # Behind FORMAT= the name of a file goes on; click would put a space there.
    text = text.replace(_TAKEN, f"{_TAKEN}\n            [[ $value == *= ]] && compopt -o nospace")
    click.echo(text)
