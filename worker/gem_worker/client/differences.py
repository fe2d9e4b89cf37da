"""Replies that are differences (ParametersHeader.base_version)."""

import numpy as np

from gem_core.chunking import DecodingAssembler
from gem_core.payload import PayloadFormat, selected_format
from gem_core.selection import Selection
from gem_core.wire_types import FINITE
from gem_worker.client.messages import Version


class Differences:
    """PARAMETERs held; `payload`: format of differences."""

    def __init__(self, payload: PayloadFormat) -> None:
        self.payload = payload
        self.version: Version | None = None
        self._held = np.empty(payload.layout.parameter_count, np.float32)

    def assembler(self, into: memoryview, buffers: Selection | None = None) -> DecodingAssembler:
        """Decodes a difference, with these BUFFERs, into `into`, for whole parameters."""
        split, payload = self._held.nbytes, self.payload
        if buffers is not None:
            payload = selected_format(payload.layout, payload.wire_type, buffers)
        return DecodingAssembler(payload, self._values(into), into[split : split + payload.rest_bytes], FINITE)

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
