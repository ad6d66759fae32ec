"""``npufix``, and ``python -m npufix.advisor``: an interrupt is a word, even while it loads."""

from __future__ import annotations

import sys

_INTERRUPTED = 130


def main() -> None:
    """Run the command line and exit."""
    try:
        from npufix.advisor.cli import main as run  # noqa: PLC0415 - it loads what it needs

        run()
    except KeyboardInterrupt:
        sys.stderr.write("npufix: interrupted\n")
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
