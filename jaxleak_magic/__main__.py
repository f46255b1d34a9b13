"""``python -m jaxleak_magic`` and the console script ``jaxleak``."""

from __future__ import annotations

import sys

from jaxleak_magic.cli import main

if __name__ == "__main__":
    sys.exit(main())
