"""Decodes the layout of a Join request. The kit has its own decoder, because it shares no code with the server."""

from gemps.v1 import layout_pb2

from gem_core.errors import LayoutError
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

__all__ = ["layout_from_message"]

_TYPES = {
    layout_pb2.ElementType.Value(f"ELEMENT_TYPE_{one.name}"): one
    for one in ElementType
}  # fmt: skip
_KINDS = {layout_pb2.TensorKind.Value(f"TENSOR_KIND_{one.name}"): one for one in TensorKind}


def layout_from_message(message: layout_pb2.Layout) -> Layout:
    """Return the layout that a Join request describes.

    Raises:
        LayoutError: a tensor has an unknown element type or kind, or the layout breaks a rule of layout.proto.
    """
    tensors = []
    for index, spec in enumerate(message.tensors):
        if spec.element_type not in _TYPES or spec.kind not in _KINDS:
            raise LayoutError(f"tensor {index} ({spec.name[:100]!r}) has no known element_type or kind")
        tensors.append(
            TensorSpec(
                spec.name,
                tuple(spec.shape),
                _TYPES[spec.element_type],
                _KINDS[spec.kind],
                tuple(spec.aliases),
                sha256=spec.sha256,
            )
        )
    return Layout(tensors)
