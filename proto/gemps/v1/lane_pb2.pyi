from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from typing import ClassVar as _ClassVar, Optional as _Optional

DESCRIPTOR: _descriptor.FileDescriptor

class LaneHello(_message.Message):
    __slots__ = ("magic", "version", "incarnation", "session_id", "authorization")
    MAGIC_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    SESSION_ID_FIELD_NUMBER: _ClassVar[int]
    AUTHORIZATION_FIELD_NUMBER: _ClassVar[int]
    magic: bytes
    version: int
    incarnation: int
    session_id: bytes
    authorization: str
    def __init__(self, magic: _Optional[bytes] = ..., version: _Optional[int] = ..., incarnation: _Optional[int] = ..., session_id: _Optional[bytes] = ..., authorization: _Optional[str] = ...) -> None: ...

class LaneWelcome(_message.Message):
    __slots__ = ("incarnation",)
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    incarnation: int
    def __init__(self, incarnation: _Optional[int] = ...) -> None: ...
