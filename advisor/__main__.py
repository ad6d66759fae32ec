"""``npufix``, and ``python -m npufix.advisor``: an interrupt is a word, even while it loads."""

from __future__ import annotations

import gc
import os
import sys

_INPUT_ERROR = 2
_INTERRUPTED = 130
_NEW_OBJECTS_BETWEEN_COLLECTIONS = 300_000
"""What is imported and read is many objects, and none of them is garbage: a tenth of a start."""


def main() -> None:
    """Run the command line and exit."""
    _open_what_is_closed()
    gc.set_threshold(_NEW_OBJECTS_BETWEEN_COLLECTIONS)
    try:
        from npufix.advisor.commands.cli import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write("npufix: interrupted\n")
        sys.exit(_INTERRUPTED)
    except MemoryError:  # not even for saying so with care
        sys.stderr.write("npufix: there is not enough memory -- give it more\n")
        sys.exit(_INPUT_ERROR)
    finally:
        gc.freeze()  # what ends with the process need not be looked through for garbage


def _open_what_is_closed() -> None:
    """Have the three standard streams lead somewhere: the next file would get their place.

    Else a dump, or a file that is written, would be what stands behind ``stderr``.
    """
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:  # noqa: PERF203 - of three
            os.open(os.devnull, os.O_RDWR)  # it takes the lowest number that is free
            os.set_inheritable(number, True)  # noqa: FBT003 - its interface
            file = os.fdopen(number, "w" if number else "r", closefd=False)
            setattr(sys, name, file)
            setattr(sys, f"__{name}__", file)


if __name__ == "__main__":
    main()
