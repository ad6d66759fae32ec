"""``python -m npufix.reports.language``: puts the messages of the code into the ``.po`` files."""

from __future__ import annotations

import sys

from npufix.reports.language import maintain

if __name__ == "__main__":
    sys.exit(maintain.main())
