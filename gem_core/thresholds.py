"""Sizes that were chosen for speed: where the code takes another way, and how much it does at once.

Each has its provenance: the revision that chose it, with what was measured then. No size here is part of the contract
or bounds memory before authentication; those are in gemps/limits.py. gemps imports no other package, so it keeps its
own piece size, STEP_BYTES in gemps/tls_stream.py (60321896: 1.12 times the commits of 4.2 M parameters over TLS).
"""

__all__ = [
    "BLOCK",
    "CHECKSUM_STEP_BYTES",
    "COPY_ELSEWHERE_ELEMENTS",
    "DEVICE_PIECE",
    "DIFFERENCE_BLOCKS",
    "LARGE_BUFFER_BYTES",
    "LAYOUT_ON_LOOP_BYTES",
    "NUMPY_DECODE_ELEMENTS",
    "PARALLEL_FROM",
    "PIECE",
    "PIECE_WORDS",
    "SCRATCH_BYTES",
    "SERIAL_PIECES",
    "SMALL_BUFFERS_BYTES",
    "SMALL_VECTOR_BYTES",
    "STRIP",
    "TENSOR_PIECE",
]

# Update rules

# Elements that a thread updates at once: gem's four vectors then take 256 KiB, which a core's L2 cache holds. Chosen
# with the first kernels (906f3fb4). Sums of statistics are added by block, so another value changes their last bits.
BLOCK = 16_384
# Elements whose statistics are summed in float32 before they are added in float64. The scratch, 16 KiB, stays in the L1
# cache. 5a431e01: such sums halved the time of gem's kernel in cache.
STRIP = 2_048
# Elements from which a commit uses several threads. 380e6a07: below, waking a second thread costs more than it saves
# when other processes keep the cores busy.
PARALLEL_FROM = 524_288
# Pieces of weight decay above which a smaller model, too, uses several threads: each piece costs time of its own, and a
# layout may have 65 536 tensors (f749e149).
SERIAL_PIECES = 2_048

# Chunks and checksums

# Bytes of a narrow wire type that are received and decoded at once; they stay in a core's cache. fe4856e1: 1.02 times
# the commits of 4.2 M parameters in bfloat16 by 4 workers, against whole chunks.
SCRATCH_BYTES = 512 << 10
# Bytes of a checksum computed while holding the GIL, about 0.02 ms (08a9eb5d).
CHECKSUM_STEP_BYTES = 1 << 20

# The server

# Memory for staging buffers of small models, which get as many as it holds, counting a vector as SMALL_VECTOR_BYTES at
# least. c41f150b: with four buffers, 32 workers of 2 048 parameters cost the server 0.16 to 0.19 ms of processor time a
# commit, with these 0.11 to 0.13 ms.
SMALL_BUFFERS_BYTES = 1 << 20
SMALL_VECTOR_BYTES = 1 << 12
# Parameters from which vectors are copied in the kernel's thread: a smaller copy takes less time than the two switches
# between threads (e4e67ad1).
COPY_ELSEWHERE_ELEMENTS = 1 << 18
# Blocks of a difference that are encoded at once on the event loop: 1 MiB of float32 (8f398380).
DIFFERENCE_BLOCKS = 1_024
# Serialised bytes up to which a layout is parsed on the event loop, in 4 ms; a larger one is parsed in a thread
# (d0a4aec8).
LAYOUT_ON_LOOP_BYTES = 16 << 10

# The worker

# Elements that a core encodes at once; they stay in its cache. a67ba92f: bfloat16 of 4.2 M values in 1.9 to 2.0 ms of
# processor time after 2.6 to 2.9 ms, most of it because the views of pieces are kept.
PIECE = 256 << 10
# The same on other devices, where a piece bounds the memory for intermediate values (6c90a317).
DEVICE_PIECE = 1 << 24
# Elements up to which NumPy decodes float32 instead of PyTorch (c3e3ebe7): 0.9 instead of 9.6 us at 2 048, 9 instead of
# 16 us at 32 768.
NUMPY_DECODE_ELEMENTS = 32 << 10
# Elements of a frozen tensor that are copied from its device and hashed at once (7346e284).
TENSOR_PIECE = 1 << 22
# Bytes from which a BUFFER on the host is compared by a call of its own, and less often once it has not changed for
# some steps: comparing it costs more than the call (7cd7a74e).
LARGE_BUFFER_BYTES = 16 << 10
# 64-bit words of a BUFFER that are compared at once, in a core's cache (7cd7a74e).
PIECE_WORDS = 1 << 15
