"""`python -m tidelog.faces.local.child PARENT ARGUMENTS...`: `tidelog`, as long as PARENT lives.

The kernel is asked for SIGKILL when the parent ends (PR_SET_PDEATHSIG), because nothing else
reaches every child: a pipe that the child watches is not read by one that was paused with SIGSTOP,
and SIGTERM waits for it, too. A parent that was killed leaves its nodes as a power cut would, and
they recover as from one. A parent that stops in order asks them first, and this never happens.

The signal comes when the parent's *thread* that started the child ends; the supervisor starts
children from its main thread, which ends last.
"""

import ctypes
import os
import signal
import sys
from typing import Final

PR_SET_PDEATHSIG: Final = 1


def die_with(parent: int) -> None:
    """End this process when `parent` does, which started it."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(PR_SET_PDEATHSIG, int(signal.SIGKILL), 0, 0, 0) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    if os.getppid() != parent:  # it ended before it could be watched
        os._exit(1)


if __name__ == "__main__":
    die_with(int(sys.argv[1]))
    from tidelog.faces.cli import main

    sys.exit(main(sys.argv[2:]))
