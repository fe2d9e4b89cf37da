"""Converts layouts."""

from gemps.v1 import layout_pb2

from gem_core.errors import LayoutError
from gem_core.layout import ElementType, Layout, TensorKind, TensorSpec

__all__ = ["layout_from", "layout_to"]

_TYPES = {
    layout_pb2.ElementType.Value(f"ELEMENT_TYPE_{one.name}"): one
    for one in ElementType
}  # fmt: skip
_KINDS = {layout_pb2.TensorKind.Value(f"TENSOR_KIND_{one.name}"): one for one in TensorKind}
_TYPE_NUMBERS = {one: number for number, one in _TYPES.items()}
_KIND_NUMBERS = {one: number for number, one in _KINDS.items()}


def layout_from(message: layout_pb2.Layout) -> Layout:
    """Decode. Raises LayoutError."""
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


def layout_to(layout: Layout) -> layout_pb2.Layout:
    """Encode."""
    message = layout_pb2.Layout()
    for spec in layout.tensors:
        message.tensors.add(
            name=spec.name,
            shape=spec.shape,
            element_type=_TYPE_NUMBERS[spec.element_type],
            kind=_KIND_NUMBERS[spec.kind],
            aliases=spec.aliases,
            sha256=spec.sha256,
        )
    return message
