"""A server in a process of its own, for tests that measure or kill it: python serve_process.py SETTINGS_AS_JSON."""

import json
import sys

from gem_server.process import run_server
from gem_server.settings import ServerSettings

if __name__ == "__main__":
    sys.exit(run_server(ServerSettings(**json.loads(sys.argv[1]))))
