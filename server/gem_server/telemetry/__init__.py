"""Measurements for display, in bounded memory."""
