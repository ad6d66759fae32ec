"""``python -m npufix.reports.language extract|compile``: keeps the catalogues (needs Babel)."""

from __future__ import annotations

import sys

from npufix.reports.language import maintain

if __name__ == "__main__":
    sys.exit(maintain.main(sys.argv[1:]))
