"""The table of ranks on a terminal, 80 columns wide."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.text import Text

from npufix.reports.language import tr
from npufix.reports.terminal.rows import Columns
from npufix.reports.terminal.text import print_indented
from npufix.reports.wording.ranks import rank_name, rank_rows
from npufix.reports.wording.report import plain
from npufix.rules.shared.quantities import format_count, milliseconds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from npufix.reports.report import Rank

_RANKS = Columns(6, (12, 16, 12, -2, -30), growth=0)
_DIAGNOSED = "diagnosed below"


def show_ranks(ranks: Sequence[Rank], console: Console) -> None:
    """Print what the ranks spend a step on, the slowest first; the one diagnosed is marked."""
    shown = rank_rows(ranks)
    _RANKS.show(("Rank", "Computing", "Exposed comm.", "Free", "", ""), console, "bold")
    names = [row.rank for row in ranks]
    for row in shown.rows:
        times = (row.computing_ns, row.exposed_communication_ns, row.free_ns)
        cells = ["-" if ns is None else milliseconds(ns) for ns in times]
        note = tr(_DIAGNOSED if row.diagnosed else row.role)
        host = plain(row.host) if shown.several_hosts else ""
        cells += ["", ", ".join(filter(None, (note, host)))]
        _RANKS.show((rank_name(row), *cells), console, "" if row.diagnosed else "dim")
        if row.rank is None or names.count(row.rank) > 1:
            print_indented(Text(plain(row.dump), "dim"), console)
    if shown.more:
        print_indented(Text(f"and {format_count(shown.more, 'more rank')}", "dim"), console)
    for row in shown.broken:
        text = f"rank {rank_name(row)}: {tr(plain(row.problem))}"
        print_indented(Text(text, "yellow"), console)
        if row.dump not in row.problem:
            print_indented(Text(plain(row.dump), "dim"), console)
    if shown.more_broken:
        print_indented(Text(f"also broken: rank {shown.more_broken}", "yellow"), console)
