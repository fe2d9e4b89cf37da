"""Convert messages to plain Python values."""

from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.json_format import MessageToDict
from google.protobuf.message import Message

_WIDE = frozenset(
    {
        FieldDescriptor.CPPTYPE_INT64,
        FieldDescriptor.CPPTYPE_UINT64,
    }
)
_FLOATING = frozenset({FieldDescriptor.CPPTYPE_DOUBLE, FieldDescriptor.CPPTYPE_FLOAT})


def to_dict(message: Message) -> dict[str, Any]:
    """Apply protobuf's JSON mapping, with proto names and defaults; numbers stay numbers."""
    report = MessageToDict(message, preserving_proto_field_name=True, always_print_fields_with_no_presence=True)
    _restore_numbers(message, report)
    return report


def _restore_numbers(message: Message, report: dict[str, Any]) -> None:
    for field in message.DESCRIPTOR.fields:
        if field.name not in report:
            continue
        value = getattr(message, field.name)
        shown = report[field.name]
        is_map = field.message_type is not None and field.message_type.GetOptions().map_entry
        if is_map:
            report[field.name] = dict(value)
        elif field.cpp_type == FieldDescriptor.CPPTYPE_MESSAGE:
            pairs = zip(value, shown, strict=True) if isinstance(shown, list) else [(value, shown)]
            for part, part_shown in pairs:
                _restore_numbers(part, part_shown)
        elif field.cpp_type in _WIDE or field.cpp_type in _FLOATING:
            report[field.name] = list(value) if isinstance(shown, list) else value
