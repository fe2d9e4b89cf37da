"""torchrun's store on a host that stays: `python -m benchmarks.time_to_loss.rendezvous HOST PORT`."""

import signal
import sys

from torch.distributed import TCPStore  # type: ignore[attr-defined]


def main() -> None:
    """Serve until a signal."""
    host, port = sys.argv[1], int(sys.argv[2])
    store = TCPStore(host, port, is_master=True, wait_for_workers=False)
    signal.sigwait([signal.SIGTERM, signal.SIGINT])
    del store


if __name__ == "__main__":
    main()
