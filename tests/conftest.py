"""What holds for all tests."""

import signal

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has them ignore Ctrl-C, and all that they
    # start: but the commands under test are to hear it.
    signal.signal(signal.SIGINT, signal.default_int_handler)
