"""What the server knows: the central variable, sessions and workers, the ledger, the run. No gRPC, no clock, no I/O.

Everything here is touched from the event loop's thread only. Times are monotonic seconds, handed in.
"""
