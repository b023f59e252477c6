"""Values of closed enums that are newer than our own ``pulsar.proto``.

proto2 keeps an enum value it does not know among the unknown fields and then calls a required field missing. A peer
that speaks a later revision is not a broken peer, so such a field counts as present here.
"""

from __future__ import annotations

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message
from google.protobuf.unknown_fields import UnknownFieldSet

_VARINT = 0


def unknown_number(message: Message, field_number: int) -> int | None:
    """The last number that came in enum field ``field_number`` and has no name here; None when there is none."""
    found: int | None = None
    unknown = UnknownFieldSet(message)
    for at in range(len(unknown)):
        field = unknown[at]
        if field.field_number == field_number and field.wire_type == _VARINT:
            found = int(field.data)
    return found


def enum_name(message: Message, field_name: str) -> str | None:
    """Name of the enum in ``field_name``; ``unknown_<number>`` for a later revision's value; None when absent."""
    field = message.DESCRIPTOR.fields_by_name[field_name]
    if message.HasField(field_name):
        enum = field.enum_type
        if enum is None:
            raise TypeError(f"{field.full_name} is no enum")
        return str(enum.values_by_number[getattr(message, field_name)].name)
    number = unknown_number(message, field.number)
    return None if number is None else f"unknown_{number}"


def missing_fields(message: Message) -> list[str]:
    """Paths of required fields that are absent, not counting enums that hold a later revision's value."""
    if message.IsInitialized():
        return []
    missing: list[str] = []
    for field in message.DESCRIPTOR.fields:
        if field.is_required and not message.HasField(field.name):
            if field.type != FieldDescriptor.TYPE_ENUM or unknown_number(message, field.number) is None:
                missing.append(field.name)
        elif field.type == FieldDescriptor.TYPE_MESSAGE:
            value = getattr(message, field.name)
            children = value if field.is_repeated else [value] if message.HasField(field.name) else []
            for child in children:
                missing.extend(f"{field.name}.{path}" for path in missing_fields(child))
    return missing
