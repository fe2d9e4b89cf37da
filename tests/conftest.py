"""What all tests need to be the same everywhere."""

import signal

# A job in a shell's background ignores SIGINT and hands that down to every process it starts; the tests interrupt
# processes, and those must see it.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
