"""Fixtures that other folders have."""

from tests.hosts.conftest import hosts
from tests.wire.conftest import each_transport, each_transport_and_tls

__all__ = ["each_transport", "each_transport_and_tls", "hosts"]
