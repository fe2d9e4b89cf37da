"""Faults: what is lost, what is applied twice, and what is refused, when processes and disks fail."""
