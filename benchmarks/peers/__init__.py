"""Everybody who is measured: gemps, its peers, and the limits of the machine. One small file each."""

from peers.gemps import WIRE_TYPES, Gemps
from peers.grpc_echo import CppEcho, CppServerEcho, PythonEcho
from peers.interface import Contender

_ALL: tuple[Contender, ...] = (
    *(Gemps(wire, wire) for wire in WIRE_TYPES),
    *(Gemps(delta, parameters) for delta in WIRE_TYPES for parameters in WIRE_TYPES if delta != parameters),
    PythonEcho(),
    CppServerEcho(),
    CppEcho(),
)
CONTENDERS = {contender.name: contender for contender in _ALL}
