"""Copies deltas from device to host, and parameters back."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from gem_core.chunking.assemble import check_rest, first_non_finite
from gem_core.layout import TensorKind
from gem_core.payload import PayloadFormat, selected_format
from gem_core.selection import Selection
from gem_core.wire_types import BLOCKS, WireType
from gem_worker import wire_casts
from gem_worker.error_feedback import ErrorFeedback
from gem_worker.flat_model import FlatModel
from gem_worker.model_tensors import refuse_non_finite
from gem_worker.step_clock import step_clock
from gem_worker.wire_casts import LARGEST_SENT, HostDecoder, HostEncoder

# One snapshot per worker, and those of restarted servers.
_REMEMBERED_PLACES = 4


@dataclass(frozen=True, slots=True)
class Staged:
    """Result of `Transfer.stage`.

    Attributes:
        usable: the server accepts it: finite, the delta at most 5e29 in magnitude.
        loss: None if not finite.
        scale: factor still to apply to the delta; None: none.
        bad_buffer: the first BUFFER that changed to values that are not finite; "": none.
    """

    usable: bool
    loss: float | None
    scale: float | None = None
    bad_buffer: str = ""


class Transfer:
    """A model's host buffers.

    Attributes:
        delta: commit payload. A plain float32 CPU model's gradients lie here; compute none while a commit is in flight.
        buffers: the BUFFERs in `delta`; None: all.
        reply: buffer for the next payload.
        in_place: whether `arrived` accepts other memory.
    """

    def __init__(self, flat: FlatModel, delta_wire: WireType, parameter_wire: WireType) -> None:
        self._flat = flat
        self._on_host = flat.device.type == "cpu"
        self.in_place = self._on_host
        self._scalars_host: Tensor | None = None
        self._decoded: Tensor | None = None
        self._feedback: ErrorFeedback | None = None
        # What deltas of an earlier wire type have left out, until a delta of the present one brings it.
        self._owed: Tensor | None = None
        self._use(PayloadFormat(flat.layout, delta_wire), PayloadFormat(flat.layout, parameter_wire))
        self._received, self._received_format = self._reply, self._reply_format
        # BUFFERs that changed, of the commit that was staged last, until it is answered.
        self._staged: Sequence[int] | None = None
        # BUFFERs that arrived and are not installed yet: which, and their bytes.
        self._arrived: tuple[Selection | None, Tensor] | None = None
        self.clock = step_clock(flat.device)

    def change_wire_types(self, delta_wire: WireType, parameter_wire: WireType) -> None:
        """Stage and receive in these types from now on; call this after `install`.

        What was received last can still be installed. What the deltas so far have left out goes with the next one.
        """
        if delta_wire is not self._delta_format.wire_type and self._feedback is not None:
            self._owed = self._feedback.left_out
            self._feedback = None
        self._use(PayloadFormat(self._flat.layout, delta_wire), PayloadFormat(self._flat.layout, parameter_wire))

    def _use(self, delta_format: PayloadFormat, reply_format: PayloadFormat) -> None:
        """Allocate host memory for payloads of these formats, and forget what was made for others."""
        self._delta_format, self._reply_format = delta_format, reply_format
        self._own_delta = self._delta_host = self._host_bytes(delta_format.byte_count)
        self._delta_place: memoryview | None = None
        self._reply = self._host_bytes(reply_format.byte_count)
        self._places: dict[int, Tensor] = {}
        self._decoders: dict[int, HostDecoder] = {}
        self._encoder: HostEncoder | None = None
        self._encoded: Tensor | None = None
        self._gathered = self._memory_of_gathered()
        self.delta = host_view(self._delta_host)
        self.buffers: Selection | None = None
        self._is_there = self._on_host and delta_format.wire_type is WireType.FLOAT32 and self._flat.is_plain
        if self._is_there:
            self._flat.move_gradients(self._delta_values())

    @property
    def reply(self) -> memoryview:
        """See the class."""
        return host_view(self._reply)

    @property
    def extra_bytes(self) -> int:
        """Bytes for gathered gradients and decoded parameters; 0 for a plain model."""
        payload = self._delta_host.data_ptr()
        extra = (one for one in (self._gathered, self._decoded) if one is not None and one.data_ptr() != payload)
        return sum(one.nbytes for one in extra)

    def _move_delta(self, place: memoryview | None) -> None:
        """None: private memory."""
        if not self._on_host or place is self._delta_place:
            return
        self._delta_place = place
        self._delta_host = self._own_delta if place is None else torch.from_numpy(np.frombuffer(place, np.uint8))
        self._encoder = None
        self._gathered = self._memory_of_gathered()
        self.delta = host_view(self._delta_host)
        if self._is_there:
            self._flat.move_gradients(self._delta_values())

    def arrived(
        self,
        parameters: memoryview | None = None,
        buffers: Selection | None = None,
        rest: memoryview | None = None,
    ) -> None:
        """Mark a payload as complete, in `reply` or (`in_place`) in `parameters`, which must not change.

        `buffers`, `rest`: the BUFFERs that came, and their bytes, where a reply leaves out the others because the
        commit staged last was applied; None: the payload has all.
        """
        self._received = self._reply if parameters is None else self._at(parameters)
        self._received_format = self._reply_format
        if self._flat.buffers.byte_count:
            if rest is not None:
                self._flat.buffers.sent()
            split = self._reply_format.parameter_bytes
            came = self._received[split:] if rest is None else _tensor_of(np.frombuffer(rest, np.uint8))
            self._arrived, self._staged = (buffers, came), None

    @torch.no_grad()
    def stage(
        self,
        eta: float,
        loss: Tensor | float | None,
        shared: memoryview | None = None,
        *,
        since: Tensor | None = None,
    ) -> Staged:
        """Write -eta * gradient and the BUFFERs that changed into `delta`; may overwrite the flat gradient.

        Zero the gradients only after sending. `shared`: place for `delta`, CPU only. `since`: stage parameters minus
        these (float32, layout order; eta -1). Raises ValueError if `loss` has several elements.
        """
        self._move_delta(shared)
        self.clock.staging()
        if self._flat.buffers.byte_count:
            self._flat.buffers.gather()
        gradients = self._collected(since)
        feedback = self._feedback_for(gradients) if since is None else None
        owed = self._owed if since is None and eta else None
        if owed is not None:
            gradients.sub_(owed, alpha=1 / eta)
        scalars = [] if self._on_host else self._scale_on_device(gradients, eta, feedback)
        if isinstance(loss, Tensor):
            scalars.append(self._loss_scalar(loss))
        fetched = self._fetch(torch.stack(scalars)) if scalars else torch.empty(0, device="cpu")
        usable = True
        if self._on_host:
            usable = self._encode_on_host(gradients, eta, feedback)
            bad_buffer = self._stage_buffers()
            self.clock.staged()
        else:
            self._copy_out(gradients, feedback)
            self.clock.staged()
            bad_buffer = self._stage_buffers()
        numbers: list[float] = fetched.tolist()
        number = numbers.pop() if isinstance(loss, Tensor) else loss
        if not self._on_host:
            largest, least = numbers.pop(), numbers.pop()
            usable = least >= -LARGEST_SENT and largest <= LARGEST_SENT  # NaN fails every comparison
        usable = usable and not bad_buffer
        if feedback is not None and not usable:
            feedback.undo(gradients, self._sent())
        if owed is not None and usable:
            self._owed = None
        return Staged(usable, _known(number), -eta if self._is_there and since is None else None, bad_buffer)

    def _collected(self, since: Tensor | None) -> Tensor:
        """The flat gradients, or the parameters' movement `since`."""
        gradients = self._source()
        if since is not None:
            self._flat.read_movement(since, gradients)
        elif self._gathered is not None:
            self._flat.read_gradients(self._gathered)
        return gradients

    @torch.no_grad()
    def rounded_away(self) -> Tensor | None:
        """Rounding error of a delta staged with `since`; None: none."""
        if self._delta_format.wire_type is WireType.FLOAT32:
            return None
        source = self._source()
        wire_casts.subtract(self._delta_format.wire_type, self._sent(), source)
        return source

    @torch.no_grad()
    def install(self) -> None:
        """Copy the last payload into the model; call it again to undo what the script has changed since."""
        self.clock.received()
        self._install(self._received)
        self._install_buffers()
        self.clock.installed()

    @torch.no_grad()
    def installed_parameters(self) -> Tensor:
        """Return what the last `install` wrote: float32 [layout.parameter_count], in host memory, not to be changed."""
        wire_type, split = self._received_format.wire_type, self._received_format.parameter_bytes
        encoded = self._received[:split]
        if wire_type is WireType.FLOAT32:
            return encoded.view(torch.float32)
        values = torch.empty(self._flat.layout.parameter_count, dtype=torch.float32, device="cpu")
        wire_casts.decode(wire_type, encoded, values)
        return values

    @torch.no_grad()
    def restore_buffers(self) -> None:
        """Reset the BUFFERs that the last step changed, after a step without a commit."""
        self.clock.received()
        self._flat.buffers.restore(self._staged)
        self.clock.installed()

    @torch.no_grad()
    def first_payload(self) -> memoryview:
        """Initialize's payload. Raises UnsupportedModelError if a parameter is not finite."""
        refuse_non_finite(one for one in self._flat.tensors if one.spec.kind is TensorKind.PARAMETER)
        form = PayloadFormat(self._flat.layout, WireType.FLOAT32)
        payload = torch.empty(form.byte_count, dtype=torch.uint8, device="cpu")
        values = payload[: form.parameter_bytes].view(torch.float32)
        if self._on_host:
            self._flat.read_parameters(values)
        else:
            on_device = self._memory_on_device()
            self._flat.read_parameters(on_device)
            values.copy_(on_device)
        self._flat.buffers.read(payload[form.parameter_bytes :])
        return host_view(payload)

    def _at(self, parameters: memoryview) -> Tensor:
        """Cached by address."""
        array = np.frombuffer(parameters, np.uint8)
        address = array.ctypes.data
        if address == self._reply.data_ptr():
            return self._reply
        known = self._places.get(address)
        if known is None:
            if len(self._places) >= _REMEMBERED_PLACES:
                self._places.clear()
                self._decoders.clear()
            known = self._places[address] = _tensor_of(array)
        return known

    def _host_bytes(self, count: int) -> Tensor:
        return torch.empty(count, dtype=torch.uint8, device="cpu", pin_memory=self._flat.device.type == "cuda")

    def _memory_of_gathered(self) -> Tensor | None:
        if self._flat.is_plain:
            return None
        if self._on_host and self._delta_format.wire_type is WireType.FLOAT32:
            return self._delta_values()
        return self._memory_on_device()

    def _source(self) -> Tensor:
        return self._flat.groups[0].gradients if self._gathered is None else self._gathered

    def _sent(self) -> Tensor:
        return self._delta_host[: self._delta_format.parameter_bytes] if self._encoded is None else self._encoded

    def _feedback_for(self, values: Tensor) -> ErrorFeedback | None:
        if self._feedback is None and self._delta_format.wire_type in BLOCKS:
            self._feedback = ErrorFeedback(self._delta_format.wire_type, values)
        return self._feedback

    def _delta_values(self) -> Tensor:
        return self._delta_host[: self._delta_format.parameter_bytes].view(torch.float32)

    def _memory_on_device(self) -> Tensor:
        return torch.empty(self._flat.layout.parameter_count, dtype=torch.float32, device=self._flat.device)

    def _scale_on_device(self, gradients: Tensor, eta: float, feedback: ErrorFeedback | None) -> list[Tensor]:
        """Scale the gradients by -eta; return the least and the largest value, still on the device.

        With error feedback, values that no wire type carries become 0, because what is left out goes with later deltas.
        """
        lowest, highest = gradients.mul_(-eta).aminmax()
        if feedback is not None:
            gradients.masked_fill_(~((lowest >= -LARGEST_SENT) & (highest <= LARGEST_SENT)), 0)
        return [lowest.float(), highest.float()]

    def _encode_on_host(self, gradients: Tensor, eta: float, feedback: ErrorFeedback | None) -> bool:
        """Write the delta's parameters, unless they are there already; return whether all of them can be sent."""
        if self._is_there:
            return wire_casts.is_harmless(gradients, eta)
        delta = self._delta_host[: self._delta_format.parameter_bytes]
        if feedback is not None:
            usable = wire_casts.is_harmless(gradients, eta)
            if not usable:
                gradients.zero_()
            feedback.encode_next(gradients, -eta, delta)
            return usable
        if self._encoder is None:
            self._encoder = HostEncoder(self._delta_format.wire_type, gradients, delta)
        return self._encoder.encode(-eta)

    def _copy_out(self, scaled: Tensor, feedback: ErrorFeedback | None) -> None:
        split = self._delta_format.parameter_bytes
        wire_type = self._delta_format.wire_type
        if wire_type is WireType.FLOAT32:
            encoded = scaled.view(torch.uint8)
        else:
            if self._encoded is None:
                self._encoded = torch.empty(split, dtype=torch.uint8, device=self._flat.device)
            encoded = self._encoded
            if feedback is not None:
                feedback.encode_next(scaled, 1.0, encoded)
            else:
                wire_casts.encode(wire_type, scaled, encoded)
        self._delta_host[:split].copy_(encoded, non_blocking=True)

    def _stage_buffers(self) -> str:
        """Put the BUFFERs that changed behind the PARAMETERs; return the name of one that is not finite, or ""."""
        held = self._flat.buffers
        if not held.byte_count:
            return ""
        changed, selection = held.changed()
        form = self._delta_format
        if selection is not None:
            form = selected_format(form.layout, form.wire_type, selection)
        rest = self._delta_host[form.parameter_bytes : form.byte_count]
        held.pack(selection, rest)
        self._staged = changed
        if self.buffers is not selection or len(self.delta) != form.byte_count:
            self.buffers, self.delta = selection, host_view(self._delta_host[: form.byte_count])
        values = rest.numpy()
        if check_rest(form, form.parameter_bytes, values):
            return ""
        indices = range(len(form.buffers)) if selection is None else selection.indices()
        start = 0
        for index, spec in zip(indices, form.buffers, strict=True):
            stop = start + spec.byte_count
            if index in changed and first_non_finite(spec, values[start:stop]) is not None:
                return spec.name
            start = stop
        return ""

    def _install_buffers(self) -> None:
        held, arrived, self._arrived = self._flat.buffers, self._arrived, None
        if arrived is not None:
            held.accept_values(*arrived)
        else:
            held.restore()

    def _install(self, payload: Tensor) -> None:
        split = self._received_format.parameter_bytes
        wire_type = self._received_format.wire_type
        if self._on_host and self._flat.is_plain:
            self._decoder_of(payload).decode()
        elif wire_type is WireType.FLOAT32 and (self._on_host or self._flat.is_plain):
            self._flat.write_parameters(payload[:split].view(torch.float32))
        else:
            encoded = payload[:split].to(self._flat.device, non_blocking=True)
            if self._flat.is_plain:
                wire_casts.decode(wire_type, encoded, self._flat.groups[0].parameters)
            else:
                if self._decoded is None:
                    self._decoded = self._memory_on_device()
                wire_casts.decode(wire_type, encoded, self._decoded)
                self._flat.write_parameters(self._decoded)

    def _decoder_of(self, payload: Tensor) -> HostDecoder:
        """Cached by address."""
        address = payload.data_ptr()
        decoder = self._decoders.get(address)
        if decoder is None:
            form = self._received_format
            encoded, parameters = payload[: form.parameter_bytes], self._flat.groups[0].parameters
            decoder = self._decoders[address] = HostDecoder(form.wire_type, encoded, parameters)
        return decoder

    def _loss_scalar(self, loss: Tensor) -> Tensor:
        if loss.numel() != 1:
            raise ValueError(f"the loss has {loss.numel()} elements; reduce it first, for example with loss.mean()")
        return loss.detach().reshape(()).to(self._flat.device, torch.float32)

    def _fetch(self, scalars: Tensor) -> Tensor:
        """On CUDA valid after `clock.staged()`."""
        if self._flat.device.type != "cuda":
            return scalars.cpu()
        if self._scalars_host is None or len(self._scalars_host) < len(scalars):
            self._scalars_host = torch.empty(len(scalars), dtype=torch.float32, device="cpu", pin_memory=True)
        return self._scalars_host[: len(scalars)].copy_(scalars, non_blocking=True)


def _known(loss: float | None) -> float | None:
    """The loss, if it is finite."""
    return float(loss) if loss is not None and math.isfinite(loss) else None


def host_view(tensor: Tensor) -> memoryview:
    """Writable view of a uint8 host tensor."""
    array: NDArray[np.uint8] = tensor.numpy()
    return array.data


def _tensor_of(array: NDArray[np.uint8]) -> Tensor:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # about read-only memory
        return torch.from_numpy(array)
