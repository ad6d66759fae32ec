"""``python -m npufix``: the same as the command ``npufix``."""

from npufix.advisor.__main__ import main

if __name__ == "__main__":
    main()
