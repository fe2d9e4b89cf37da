"""A process that was handed a delta region and does there what it should not: scribbler.py HOW DESCRIPTOR BYTES.

    words    two legal values take turns in each word; now and then there is an illegal one somewhere for a moment
    deltas   one delta lies there for a moment, then another one is written over it, and so on
    holes    pages are taken out from under the server, and the region is to be cut short and grown
    slowly   a delta is written in small pieces, without an end

It says so when it has begun, and goes on until it is killed.
"""

import ctypes
import mmap
import os
import sys
import time
from itertools import count

import numpy as np
from numpy.typing import NDArray

Words = NDArray[np.float32]

# Exact in float32, and so are sums of a few thousand: they tell how often each was added.
SECOND = 2.0**-18
FIRST = 4096 * SECOND
ILLEGAL = (np.nan, np.inf, 1e31)
# How long an illegal word lies there, and how long a delta.
ILLEGAL_SECONDS, DELTA_SECONDS = 0.001, 0.003
STAMP_BYTES = 64
FALLOC_FL_KEEP_SIZE, FALLOC_FL_PUNCH_HOLE = 1, 2

libc = ctypes.CDLL(None, use_errno=True)
libc.fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_long, ctypes.c_long]


def delta(number: int, size: int) -> Words:
    """One of the two deltas that take turns; their bits have nothing in common."""
    return np.random.default_rng(number).standard_normal(size, np.float32)


def words(region: Words) -> None:
    random = np.random.default_rng(0)
    for number in count():
        region[:] = (FIRST, SECOND)[number % 2]
        if number % 20 == 0:
            place = random.integers(region.size)
            region[place] = ILLEGAL[number % 3]
            time.sleep(ILLEGAL_SECONDS)
            region[place] = FIRST


def deltas(region: Words) -> None:
    both = delta(0, region.size), delta(1, region.size)
    for number in count():
        region[:] = both[number % 2]
        time.sleep(DELTA_SECONDS)


def holes(descriptor: int, size: int) -> None:
    while True:
        assert libc.fallocate(descriptor, FALLOC_FL_KEEP_SIZE | FALLOC_FL_PUNCH_HOLE, 0, size) == 0
        for other in (0, size // 2, 2 * size):
            try:
                os.ftruncate(descriptor, other)
            except PermissionError:
                continue
            raise AssertionError("the region has another size now")


def slowly(region: Words) -> None:
    for number in count():
        place = number * 16 % region.size
        region[place : place + 16] = FIRST


def main(how: str, descriptor: int, size: int) -> None:
    region = np.frombuffer(mmap.mmap(descriptor, size), np.float32)[STAMP_BYTES // 4 :]
    print("begun", flush=True)
    if how == "holes":
        holes(descriptor, size)
    else:
        {"words": words, "deltas": deltas, "slowly": slowly}[how](region)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
