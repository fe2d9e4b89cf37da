from gemps.v1 import history_pb2 as _history_pb2
from gemps.v1 import operations_pb2 as _operations_pb2
from gemps.v1 import status_pb2 as _status_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
