"""A server whose disk fails at the fourth commit after its start: python failing_process.py SETTINGS_AS_JSON."""

import asyncio
import errno
import json
import sys

from gem_server.durability.files import Files
from gem_server.process import run
from gem_server.settings import ServerSettings


class FailsAtTheFourth(Files):
    """The probe of the directory, the header of the log, three commits, and no more."""

    def __init__(self) -> None:
        self.syncs = 0

    def sync_data(self, descriptor: int) -> None:
        self.syncs += 1
        if self.syncs > 5:
            raise OSError(errno.EIO, "Input/output error")
        super().sync_data(descriptor)


if __name__ == "__main__":
    sys.exit(asyncio.run(run(ServerSettings(**json.loads(sys.argv[1])), FailsAtTheFourth())))
