"""Telemetry in bounded memory."""
