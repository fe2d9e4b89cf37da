"""Everybody who is measured: gemps, its peers, and the limits of the machine. One small file each."""

from benchmarks.peers.floor import FLOOR_WIRE_TYPES, Floor, SharedFloor
from benchmarks.peers.flower_transfer import FlowerTransfer
from benchmarks.peers.gemps import WIRE_TYPES, Gemps, GempsSharedMemory
from benchmarks.peers.gloo_paper import GlooPaper
from benchmarks.peers.grpc_echo import CppEcho, CppServerEcho, PythonEcho
from benchmarks.peers.interface import Contender
from benchmarks.peers.limits import MemoryCopy, PlainTcp
from benchmarks.peers.ray_actor import RayActor
from benchmarks.peers.torch_rpc import TorchRpc

_ALL: tuple[Contender, ...] = (
    *(Gemps(wire, wire) for wire in WIRE_TYPES),
    *(Gemps(delta, parameters) for delta in WIRE_TYPES for parameters in WIRE_TYPES if delta != parameters),
    GempsSharedMemory(),
    TorchRpc("torch-rpc-tcp", "torch.distributed.rpc, TCP", ["uv"], ["basic"]),
    TorchRpc("torch-rpc-shared-memory", "torch.distributed.rpc, shared memory", None, None),
    RayActor(),
    GlooPaper(),
    FlowerTransfer(),
    MemoryCopy(),
    PlainTcp(),
    PythonEcho(),
    CppServerEcho(),
    CppEcho(),
    *(Floor(wire) for wire in FLOOR_WIRE_TYPES),
    SharedFloor(),
)
CONTENDERS = {contender.name: contender for contender in _ALL}

# What `make bench` runs when it is not told whom; the others are for the curious.
USUAL = (
    "gemps-shared-memory",
    "gemps-bfloat16",
    "gemps-float32",
    "ray-actor",
    "torch-rpc-tcp",
    "torch-rpc-shared-memory",
    "torch-gloo-paper",
    "flower-transfer",
    "memory-copy",
    "tcp",
    "grpc-echo-cpp-both",
    "grpc-echo-cpp",
    "grpc-echo-python",
)
