"""Measures compute and copy time."""

import time
from abc import ABC, abstractmethod

import torch
from typing_extensions import override


class StepClock(ABC):
    """Call in order: computed, staging, staged, received, installed. Excludes waits and the exchange."""

    @abstractmethod
    def computed(self) -> None:
        """The loop's work is done."""

    @abstractmethod
    def staging(self) -> None:
        """The gradient's copy starts."""

    @abstractmethod
    def staged(self) -> None:
        """Wait until the delta is in host memory."""

    @abstractmethod
    def received(self) -> None:
        """Parameters are in host memory."""

    @abstractmethod
    def installed(self) -> None:
        """Parameters are installed, or queued on the device."""

    @abstractmethod
    def times(self) -> tuple[float, float]:
        """Compute and copy seconds."""


class HostClock(StepClock):
    """Times the parts of steps on the CPU and on MPS."""

    def __init__(self, device: torch.device) -> None:
        self._is_mps = device.type == "mps"
        self._computed = self._staging = self._staged = self._received = self._installed = time.perf_counter()
        self._compute = 0.0

    @override
    def computed(self) -> None:
        if self._is_mps:
            torch.mps.synchronize()
        self._computed = time.perf_counter()
        self._compute = self._computed - self._installed

    @override
    def staging(self) -> None:
        self._staging = time.perf_counter()

    @override
    def staged(self) -> None:
        self._staged = time.perf_counter()

    @override
    def received(self) -> None:
        self._received = time.perf_counter()

    @override
    def installed(self) -> None:
        if self._is_mps:
            torch.mps.synchronize()
        self._installed = time.perf_counter()

    @override
    def times(self) -> tuple[float, float]:
        return self._compute, (self._staged - self._staging) + (self._installed - self._received)


class CudaClock(StepClock):
    """Times the parts of steps on CUDA. Only `staged` waits; the copy to the device counts in the next step."""

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

    @override
    def computed(self) -> None:
        self._record(self._computed)

    @override
    def staging(self) -> None:
        self._record(self._staging)

    @override
    def staged(self) -> None:
        self._record(self._staged)
        self._staged.synchronize()
        self._installed.synchronize()  # unless the loop changed streams
        compute = self._installed.elapsed_time(self._computed)
        copy = self._staging.elapsed_time(self._staged) + self._received.elapsed_time(self._installed)
        self._times = (compute / 1000, copy / 1000)

    @override
    def received(self) -> None:
        self._record(self._received)

    @override
    def installed(self) -> None:
        self._record(self._installed)

    @override
    def times(self) -> tuple[float, float]:
        return self._times

    def _record(self, event: torch.cuda.Event) -> None:
        event.record(torch.cuda.current_stream(self._device))


def step_clock(device: torch.device) -> StepClock:
    """Clock for `device`."""
    return CudaClock(device) if device.type == "cuda" else HostClock(device)
