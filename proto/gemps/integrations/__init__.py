"""Callbacks; each module needs its library."""
