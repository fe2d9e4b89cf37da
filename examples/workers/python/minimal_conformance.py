"""The minimal worker as a candidate of the conformance kit: it trains the kit's task (docs/protocol.md, "Conformance").

gemps conformance serve --basic -- python examples/workers/python/minimal_conformance.py
"""

import json
import math
import os

import grpc
import numpy as np
from gemps.v1.layout_pb2 import Layout
from gemps.v1.worker_pb2_grpc import WorkerServiceStub
from google.protobuf.json_format import ParseDict
from minimal_worker import train


def quadratic(path):
    """Tensors, first parameters and gradient of a task of float32 PARAMETERs."""
    with open(path, encoding="utf-8") as file:
        described = json.load(file)["layout"]
    for one in described:
        one["element_type"] = f"ELEMENT_TYPE_{one['element_type'].upper()}"
        one["kind"] = f"TENSOR_KIND_{one['kind'].upper()}"
    tensors = ParseDict({"tensors": described}, Layout()).tensors
    elements = np.arange(sum(math.prod(one.shape) for one in tensors))
    return tensors, ((elements % 509 - 254) / 256).astype("f4"), lambda theta: theta


if __name__ == "__main__":
    with grpc.insecure_channel(os.environ["GEMPS_SERVER"]) as channel:
        train(WorkerServiceStub(channel), os.urandom(16), *quadratic(os.environ["GEMPS_CONFORMANCE"]))
