"""Fixtures that other folders have."""

from tests.hosts.conftest import hosts

__all__ = ["hosts"]
