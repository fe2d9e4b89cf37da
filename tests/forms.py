"""Which tests run: marks that leave tests out, and forms of tests.

Some tests have a short form, for `make test`, and a full one, with the figures that docs/reliability.md gives.

The full form tries each fault as often as that page says, and takes hours: GEMPS_TEST_FULL=1 asks for it.
"""

import os

FULL = bool(os.environ.get("GEMPS_TEST_FULL"))

# Tests with one of these marks run only if they are asked for by name, as in `python -m pytest -m containers`. That
# includes those of them that are also marked as long. CONTRIBUTING.md says what each mark needs.
MARKS = {
    "long": "it takes long",
    "browser": "it needs Node.js and Chromium",
    "buf": "it needs Node.js and the npm registry",
    "containers": "it builds images, and needs Docker with Compose",
    "engines": "it starts clusters of Ray, Slurm and Spark",
    "hosts": "it makes hosts of network namespaces, as root",
    "package": "it installs packages from an index",
    "printed": "it runs every command of two pages on clean containers",
    "systemd": "it boots systemd in a container",
}
