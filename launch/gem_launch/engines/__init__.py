"""Engines of `gemps launch`."""
