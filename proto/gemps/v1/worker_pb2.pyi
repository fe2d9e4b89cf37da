from gemps.v1 import commit_pb2 as _commit_pb2
from gemps.v1 import parameters_pb2 as _parameters_pb2
from gemps.v1 import session_pb2 as _session_pb2
from google.protobuf import descriptor as _descriptor
from typing import ClassVar as _ClassVar

DESCRIPTOR: _descriptor.FileDescriptor
