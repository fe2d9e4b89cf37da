"""A worker's parameters, for differences (ParametersHeader.base_version)."""

import numpy as np
from numpy.typing import NDArray

from gem_server.version import Version


class WorkerCopy:
    """The last sent, as decoded: float32[elements]. `version` None: incomplete."""

    __slots__ = ("values", "version")

    def __init__(self, elements: int) -> None:
        self.values: NDArray[np.float32] = np.empty(elements, np.float32)
        self.version: Version | None = None
