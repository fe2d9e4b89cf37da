"""Servers, as the tests of the wire make them."""

from tests.wire.conftest import serve

__all__ = ["serve"]
