"""The Python worker as a candidate of `gemps conformance serve`: it trains the quadratic task on any layout.

    gemps conformance serve -- python examples/workers/python/conformance.py

docs/protocol.md describes candidates under "Conformance". `ParameterServer` does everything that concerns the service.
This file only has a model with the tensors of the task, whose gradient is its parameters.
"""

import json
import os
import sys
from pathlib import Path
from typing import Any

import torch
from gem_worker.client.errors import ServerRefusedError
from gem_worker.settings import WireName
from gemps import ParameterServer
from torch import nn

# The task's wire types that `ParameterServer` supports, with its names for them.
WIRE_NAMES: dict[str, WireName] = {
    "float32": "float32",
    "bfloat16": "bfloat16",
    "int4_block": "int4",
    "sparse_block": "sparse",
}
FAILED, FINAL, NOT_SPOKEN = 1, 2, 3


def build(layout: list[dict[str, Any]]) -> nn.Module:
    """Build a model with these tensors."""
    model, done = nn.Module(), 0
    for spec in layout:
        value = torch.zeros(spec["shape"], dtype=getattr(torch, spec["element_type"], torch.float8_e4m3fn))
        if spec["kind"] == "parameter":
            elements = torch.arange(done, done + value.numel())
            value = ((elements % 509 - 254) / 256).to(value.dtype).view(value.shape)
            done += value.numel()
        if spec["kind"] != "buffer":
            value = nn.Parameter(value, requires_grad=spec["kind"] == "parameter")
        for name in (spec["name"], *spec.get("aliases", ())):
            put(model, name, value)
    return model


def put(model: nn.Module, name: str, value: torch.Tensor) -> None:
    """Register the tensor so that state_dict has it under this name. Dots separate nested modules."""
    *path, last = name.split(".")
    owner = model
    for part in path:
        if part not in owner._modules:
            owner.add_module(part, nn.Module())
        owner = owner.get_submodule(part)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(last, value)
    else:
        owner.register_buffer(last, value)


def main() -> int:
    """Train until the run is finished. Returns the exit status."""
    task = json.loads(Path(os.environ["GEMPS_CONFORMANCE"]).read_text(encoding="utf-8"))
    offers = [
        [WIRE_NAMES[one] for one in task[f"{what}_wire_types"] if one in WIRE_NAMES] for what in ("delta", "parameter")
    ]
    if not all(offers):
        return NOT_SPOKEN
    torch.set_num_threads(1)
    model = build(task["layout"])
    trained = [one for one in model.parameters() if one.requires_grad]
    with ParameterServer(model=model, delta_wire=offers[0][0], parameter_wire=offers[1][0]) as ps:
        while not ps.finished:
            for one in trained:
                one.grad = one.detach().clone()  # of 1/2 * sum(theta^2)
            ps.step()
    return 0


if __name__ == "__main__":
    try:
        status = main()
    except ServerRefusedError as refusal:
        print(refusal, file=sys.stderr)
        status = FINAL if refusal.is_final else FAILED
    sys.exit(status)
