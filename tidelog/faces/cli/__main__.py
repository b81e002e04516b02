"""`python -m tidelog.faces.cli` is `tidelog`."""

import sys

from tidelog.faces.cli import main

sys.exit(main())
