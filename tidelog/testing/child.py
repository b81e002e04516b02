"""`python -m tidelog.testing.child PARENT ARGUMENTS...`: `tidelog`, as long as PARENT lives.

Where tests run there is often hypothesis, which a library of ours would load for its own tests: it
takes longer than all the rest of a node's start. A node does without.
"""

import sys

if __name__ == "__main__":
    sys.modules["hypothesis"] = None  # type: ignore[assignment]  # so it cannot be imported

    from tidelog.faces.local.child import die_with

    die_with(int(sys.argv[1]))

    from tidelog.faces.cli import main

    sys.exit(main(sys.argv[2:]))
