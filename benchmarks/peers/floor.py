"""The least that gemps could do: a step of nothing but what cannot be left out, timed part by part.

No protocol, no sessions, no queue, no log: pieces of the payload go through a plain socket, or lie in memory that both
ends map. What is left is what the design asks for, each with the fastest code that gemps has for it:

- The worker scales its gradient, judges it and encodes it; the server decodes and judges it into a staging buffer,
  because a delta must be whole before it may be applied; GEM's update with all its statistics; the reply is encoded
  from the worker's snapshot. Checksums at both ends, both ways, over pieces that are in the cache at that moment. A
  reply is received into memory of its own, because a torn one must not hurt the model, and decoded into the parameters.
- Through shared memory: the server's copy, which scales, judges and sums up; the update, straight into the snapshot
  that the worker sees; the worker's copy. A byte over a socket each way wakes the other end.

Encoding and decoding are the server's compiled kernels at both ends, although a real worker has PyTorch's operations:
these are faster. What is left of Python, a loop over pieces of 1 MiB, is part of the
figures: `encode` of float32 on the server, which does nothing, shows how much that is.
"""

import mmap
import os
import socket
import struct
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, ClassVar

from benchmarks.peers.gemps import layout_of, wire_type_of
from benchmarks.peers.interface import ETA, SERVER_PROCESS, WORKER_PROCESS, Case, Contender, Desk, Kind
from benchmarks.peers.limits import receive, tune

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from gem_core.rules.interface import RuleState

    Vector = NDArray[np.float32]

# Those that goals are about.
FLOOR_WIRE_TYPES = ("float32", "bfloat16")
# Elements of a piece: 1 MiB of float32, as in gemps' chunks. Smaller pieces wake the other end more often, which TCP
# pays for (256 KiB: a quarter more); larger ones do not stay in a core's cache. Of narrow types gemps' chunks hold more
# elements.
PIECE = 256 * 1024
# The first commits touch their memory for the first time: nobody's floor.
WARM_UP_COMMITS = 2
_CHECKSUM = struct.Struct("<I")


class PartTimer:
    """Processor time of the calling thread, piled up by part: what a thread does ends up in one part or another."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self.commits = -WARM_UP_COMMITS
        self._last = time.thread_time()

    def end(self, part: str) -> None:
        """Everything since the last call was for this part."""
        now = time.thread_time()
        self.seconds[part] = self.seconds.get(part, 0.0) + now - self._last
        self._last = now

    def end_commit(self) -> None:
        """One is over."""
        self.commits += 1
        if self.commits == 0:
            self.seconds.clear()


class Floor(Contender):
    """Over a TCP connection; deltas and parameters in one wire type."""

    kind: ClassVar[Kind] = "limit"

    def __init__(self, wire: str) -> None:
        self.wire = wire
        self.name = f"floor-{wire}"
        self.title = f"the least step, {wire}"
        self.does = "what no implementation of gemps' stream can leave out, over plain TCP; CPU time part by part"

    def server_memory(self, case: Case) -> int:
        """Theta; moment, snapshot and staging buffer of each worker."""
        return SERVER_PROCESS + (1 + 3 * case.workers) * case.vector

    def worker_memory(self, case: Case) -> int:
        """The model, and what arrives."""
        return WORKER_PROCESS + 3 * case.vector

    def serve(self, case: Case, desk: Desk) -> None:
        """A thread for each connection."""
        variable = _Variable(case)
        with socket.create_server(("127.0.0.1", 0), backlog=case.workers) as door:
            desk.ready(f"127.0.0.1:{door.getsockname()[1]}")
            _serve_all(door, variable, self._serve_one, desk)

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Send all, receive all, decode."""
        from benchmarks.peers.model import Model
        from gem_core.wire_kernels import COMPILED

        model = Model(case.parameters, rank)
        gradient, parameters = model.gradient.numpy(), model.parameters.numpy()
        timer = PartTimer()
        wire_type = wire_type_of(self.wire)
        host, port = address.split(":")
        with socket.create_connection((host, int(port))) as connection:
            tune(connection)
            transfer = _Transfer(case, self.wire, connection, timer, "worker")
            payload = memoryview(bytearray(transfer.byte_count))

            def step() -> None:
                transfer.send(gradient, "scale, judge, encode", -ETA)
                transfer.receive(lambda start, stop: payload[start:stop])
                bad = COMPILED.decode(wire_type, payload, parameters)
                assert bad is None, bad
                timer.end("worker: decode into the parameters")
                timer.end_commit()

            desk.pace(step)
        desk.took_part_by_part(timer.seconds, timer.commits)

    def _serve_one(self, variable: "_Variable", connection: socket.socket, timer: PartTimer) -> None:
        from gem_core.wire_kernels import COMPILED

        tune(connection)
        transfer = _Transfer(variable.case, self.wire, connection, timer, "server")
        state, staged = variable.join()
        piece = memoryview(bytearray(transfer.piece_bytes))

        def stage(elements: slice, data: memoryview) -> None:
            bad = COMPILED.decode(transfer.wire_type, data, staged[elements])
            assert bad is None, bad
            timer.end("server: decode and judge, staged")

        while True:
            transfer.receive(lambda start, stop: piece[: stop - start], stage)
            variable.update(state, staged, timer)
            transfer.send(state.snapshot, "encode")
            timer.end_commit()


class SharedFloor(Floor):
    """Through memory that server and worker map."""

    def __init__(self) -> None:
        super().__init__("float32")
        self.name = "floor-shared-memory"
        self.title = "the least step, shared memory"
        self.does = "what no implementation of gemps' shared memory can leave out; CPU time part by part"

    def serve(self, case: Case, desk: Desk) -> None:
        """A thread for each connection."""
        variable = _Variable(case)
        name = f"gemps-floor-{os.getpid()}"
        with socket.socket(socket.AF_UNIX) as door:
            door.bind(f"\0{name}")
            door.listen(case.workers)
            desk.ready(name)
            _serve_all(door, variable, self._serve_one, desk)

    def work(self, case: Case, address: str, rank: int, desk: Desk) -> None:
        """Say that there is a delta, hear that there are parameters, copy them."""
        import numpy as np

        from benchmarks.peers.model import Model

        model = Model(case.parameters, rank)
        parameters = model.parameters.numpy()
        timer = PartTimer()
        with socket.socket(socket.AF_UNIX) as connection:
            connection.connect(f"\0{address}")
            _, descriptors, _, _ = socket.recv_fds(connection, 1, 2)
            delta_file, snapshot_file = descriptors
            delta = np.frombuffer(mmap.mmap(delta_file, case.vector), np.float32)
            snapshot = np.frombuffer(mmap.mmap(snapshot_file, case.vector, prot=mmap.PROT_READ), np.float32)
            # As in a real worker, whose backward passes leave it there.
            np.copyto(delta, model.gradient.numpy())

            def step() -> None:
                connection.sendall(b"d")
                if not connection.recv(1):
                    raise EOFError
                timer.end("worker: wake-ups")
                np.copyto(parameters, snapshot)
                timer.end("worker: copy into the parameters")
                timer.end_commit()

            desk.pace(step)
        desk.took_part_by_part(timer.seconds, timer.commits)

    def _serve_one(self, variable: "_Variable", connection: socket.socket, timer: PartTimer) -> None:
        import numpy as np
        from gem_server.shared_memory.memory_file import MemoryFile

        from gem_core.checked_copy import checked_copy

        case = variable.case
        layout = layout_of(case)
        state, staged = variable.join()
        delta_file = MemoryFile("gemps-delta", case.vector, others_write=True)
        snapshot_file = MemoryFile("gemps-snapshot", case.vector, others_write=False)
        delta = np.frombuffer(delta_file.map, np.float32)
        state.snapshot = np.frombuffer(snapshot_file.map, np.float32)
        np.copyto(state.snapshot, variable.theta)
        socket.send_fds(connection, [b"m"], [delta_file.descriptor, snapshot_file.descriptor])
        while connection.recv(1):
            timer.end("server: wake-ups")
            checked_copy(delta, staged, layout, -ETA)
            timer.end("server: copy, scale, judge, staged")
            variable.update(state, staged, timer)
            connection.sendall(b"p")
            timer.end("server: wake-ups")
            timer.end_commit()


class _Variable:
    """The server's theta, and the rule."""

    def __init__(self, case: Case) -> None:
        import gem_core
        from gem_core import checked_copy, wire_kernels
        from gem_core.aligned import aligned_zeros

        self.case = case
        self.theta: Vector = aligned_zeros(case.parameters)
        self._rule = gem_core.create_rule("gem")
        self._rule.warm_up()
        wire_kernels.warm_up()
        checked_copy.warm_up()
        self._lock = threading.Lock()

    def join(self) -> "tuple[RuleState, Vector]":
        """A worker's state and its staging buffer."""
        from gem_core.aligned import aligned_zeros

        return self._rule.new_worker(self.theta), aligned_zeros(self.theta.size)

    def update(self, state: "RuleState", delta: "Vector", timer: PartTimer) -> None:
        """GEM, and its statistics."""
        with self._lock:
            # On the thread that is timed; sharing the work out costs processor time, and saves none.
            self._rule._commit(self.theta, state, delta, 0, 1.0, parallel=False)
        timer.end("server: GEM and its statistics")


class _Transfer:
    """Payloads through a connection, piece by piece, each followed by its checksum."""

    def __init__(self, case: Case, wire: str, connection: socket.socket, timer: PartTimer, side: str) -> None:
        from gem_core.payload import PayloadFormat
        from gem_core.wire_types import encoded_bytes

        self.wire_type = wire_type_of(wire)
        payload = PayloadFormat(layout_of(case), self.wire_type)
        self.byte_count = payload.byte_count
        self.piece_bytes = encoded_bytes(self.wire_type, PIECE)
        cuts = payload.cut(self.piece_bytes)
        self._pieces = [(start, stop, payload.parameter_elements(start, stop)) for start, stop in cuts]
        self._connection = connection
        self._timer = timer
        self._side = side

    def send(self, values: "Vector", encoding: str, scale: float | None = None) -> None:
        """Encode and send; scaled and judged on the way, if there is a scale. `encoding`: what that is called."""
        import numpy as np

        from gem_core.checksum import crc32c
        from gem_core.wire_kernels import COMPILED

        checksum = 0
        scaled = np.empty(PIECE, np.float32) if scale is not None else values
        for _, _, elements in self._pieces:
            piece = values[elements]
            if scale is not None:
                piece = np.multiply(piece, np.float32(scale), out=scaled[: piece.size])
                assert np.dot(piece, piece) <= 1e36  # as wire_casts.HostEncoder judges
            data = COMPILED.encode(self.wire_type, piece)
            self._timer.end(f"{self._side}: {encoding}")
            checksum = crc32c(data, checksum)
            self._timer.end(f"{self._side}: checksums")
            self._connection.sendall(data)
            self._timer.end(f"{self._side}: TCP")
        self._connection.sendall(_CHECKSUM.pack(checksum))
        self._timer.end(f"{self._side}: TCP")

    def receive(
        self, place: Callable[[int, int], memoryview], use: Callable[[slice, memoryview], None] | None = None
    ) -> None:
        """Receive pieces to their places, and use each while it is in the cache. Raises EOFError."""
        from gem_core.checksum import crc32c

        checksum = 0
        for start, stop, elements in self._pieces:
            data = place(start, stop)
            receive(self._connection, data)
            self._timer.end(f"{self._side}: TCP")
            checksum = crc32c(data, checksum)
            self._timer.end(f"{self._side}: checksums")
            if use is not None:
                use(elements, data)
        sent = bytearray(_CHECKSUM.size)
        receive(self._connection, memoryview(sent))
        assert _CHECKSUM.unpack(sent) == (checksum,)
        self._timer.end(f"{self._side}: TCP")


def _serve_all(
    door: socket.socket,
    variable: _Variable,
    serve_one: Callable[[_Variable, socket.socket, PartTimer], None],
    desk: Desk,
) -> None:
    """Serve as many connections as there are workers until they end; tell the desk what it took."""
    timers: list[PartTimer] = []

    def serve(connection: socket.socket) -> None:
        timer = PartTimer()
        with connection, suppress(EOFError):
            serve_one(variable, connection, timer)
        timers.append(timer)

    threads = []
    for _ in range(variable.case.workers):
        connection, _address = door.accept()
        threads.append(threading.Thread(target=serve, args=(connection,)))
        threads[-1].start()
    for thread in threads:
        thread.join()
    total: dict[str, float] = {}
    for timer in timers:
        for part, seconds in timer.seconds.items():
            total[part] = total.get(part, 0.0) + seconds
    desk.took_part_by_part(total, sum(timer.commits for timer in timers))
    desk.wait_for_end()
