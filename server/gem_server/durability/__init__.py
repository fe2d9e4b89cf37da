"""Checkpoints and log."""
