"""How long a step computes and copies, measured where it happens: by the host's clock, or by events on CUDA."""

import time
from abc import ABC, abstractmethod

import torch


class StepClock(ABC):
    """Told of the borders within a step, in this order: computed, staging, staged, received, installed.

    What lies between computed and staging (with overlap the wait for a reply), and between staged and received (the
    exchange), is counted elsewhere.
    """

    @abstractmethod
    def computed(self) -> None:
        """The training loop's own work is over."""

    @abstractmethod
    def staging(self) -> None:
        """The gradient is about to be copied."""

    @abstractmethod
    def staged(self) -> None:
        """The delta is under way to host memory. Returns when it is there."""

    @abstractmethod
    def received(self) -> None:
        """Fresh parameters are in host memory."""

    @abstractmethod
    def installed(self) -> None:
        """They are in the model, or will be before anything that is queued on the device now; the next step begins."""

    @abstractmethod
    def times(self) -> tuple[float, float]:
        """Seconds of (compute, copy) of the step."""


class HostClock(StepClock):
    """For devices that work synchronously, or that can only be waited for."""

    def __init__(self, device: torch.device) -> None:
        self._is_mps = device.type == "mps"
        self._computed = self._staging = self._staged = self._received = self._installed = time.perf_counter()
        self._compute = 0.0

    def computed(self) -> None:
        """See `StepClock`."""
        if self._is_mps:
            torch.mps.synchronize()
        self._computed = time.perf_counter()
        self._compute = self._computed - self._installed

    def staging(self) -> None:
        """See `StepClock`."""
        self._staging = time.perf_counter()

    def staged(self) -> None:
        """See `StepClock`."""
        self._staged = time.perf_counter()

    def received(self) -> None:
        """See `StepClock`."""
        self._received = time.perf_counter()

    def installed(self) -> None:
        """See `StepClock`."""
        if self._is_mps:
            torch.mps.synchronize()
        self._installed = time.perf_counter()

    def times(self) -> tuple[float, float]:
        """See `StepClock`."""
        return self._compute, (self._staged - self._staging) + (self._installed - self._received)


class CudaClock(StepClock):
    """For a CUDA device: only `staged` waits for it.

    The copy to the device runs on while the host prepares the next step, so a step's copy time is its copy from the
    device plus the copy to the device that ended the step before.
    """

    def __init__(self, device: torch.device) -> None:
        with torch.cuda.device(device):
            self._computed, self._staging, self._staged, self._received, self._installed = (
                torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
                for _ in range(5)
            )
            for event in (self._received, self._installed, self._computed):
                event.record()
        self._device = device
        self._times = (0.0, 0.0)

    def computed(self) -> None:
        """See `StepClock`."""
        self._record(self._computed)

    def staging(self) -> None:
        """See `StepClock`."""
        self._record(self._staging)

    def staged(self) -> None:
        """See `StepClock`."""
        self._record(self._staged)
        self._staged.synchronize()
        self._installed.synchronize()  # over already, unless the loop has changed to another stream
        compute = self._installed.elapsed_time(self._computed)
        copy = self._staging.elapsed_time(self._staged) + self._received.elapsed_time(self._installed)
        self._times = (compute / 1000, copy / 1000)

    def received(self) -> None:
        """See `StepClock`."""
        self._record(self._received)

    def installed(self) -> None:
        """See `StepClock`."""
        self._record(self._installed)

    def times(self) -> tuple[float, float]:
        """See `StepClock`."""
        return self._times

    def _record(self, event: torch.cuda.Event) -> None:
        event.record(torch.cuda.current_stream(self._device))


def step_clock(device: torch.device) -> StepClock:
    """The clock that fits the device."""
    return CudaClock(device) if device.type == "cuda" else HostClock(device)
