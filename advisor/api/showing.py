"""How results look in a program, on a terminal and in a notebook."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

    import pandas as pd

    from npufix.reports.data.tables import Table


class Shown:
    """A result that says itself as the command line does."""

    _result: Any
    """A result of ``reports``."""

    def __str__(self) -> str:
        """Return what the terminal shows, in 80 columns."""
        from npufix.reports.formats import Result, formats

        return str(formats()["terminal"].render(Result(self._result)))

    def __repr__(self) -> str:
        """Return the sentence that counts."""
        said = self._headline()
        return f"<npufix.{type(self).__name__}: {said}>"

    def _headline(self) -> str:
        from npufix.reports.formats import Result
        from npufix.reports.formats.terminal import headline

        return headline(Result(self._result))

    def _repr_html_(self) -> str:
        """Return the same for a notebook."""
        from markupsafe import escape

        return f"<pre>{escape(str(self))}</pre>"


def frame(tables: Sequence[Table], name: str) -> pd.DataFrame:
    """Return a table of a report; times are microseconds, shares 0..1."""
    import pandas as pd

    (table,) = (one for one in tables if one.name == name)
    return pd.DataFrame(list(table.rows), columns=[column.name for column in table.columns])
