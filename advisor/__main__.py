"""``python -m npufix.advisor``."""

from npufix.advisor.cli import main

main()
