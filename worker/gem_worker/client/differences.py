"""Replies that are differences (ParametersHeader.base_version)."""

import numpy as np

from gem_core.chunking import DecodingAssembler
from gem_core.payload import PayloadFormat
from gem_core.wire_types import FINITE
from gem_worker.client.messages import Version


class Differences:
    """PARAMETERs held; `payload`: format of differences."""

    def __init__(self, payload: PayloadFormat) -> None:
        self.payload = payload
        self.version: Version | None = None
        self._held = np.empty(payload.layout.parameter_count, np.float32)

    def assembler(self, into: memoryview) -> DecodingAssembler:
        """Decodes a difference into `into`, for whole parameters."""
        split = self._held.nbytes
        return DecodingAssembler(self.payload, self._values(into), into[split:], FINITE)

    def add_to_held(self, into: memoryview, version: Version) -> None:
        """Make the difference in `into` parameters of `version`."""
        self._held += self._values(into)
        np.copyto(self._values(into), self._held)
        self.version = version

    def hold_whole(self, whole: memoryview, version: Version) -> None:
        """Replace the parameters held."""
        np.copyto(self._held, self._values(whole))
        self.version = version

    def _values(self, whole: memoryview) -> "np.ndarray[tuple[int], np.dtype[np.float32]]":
        return np.frombuffer(whole, np.float32, self._held.size)
