"""`gemps train`."""
