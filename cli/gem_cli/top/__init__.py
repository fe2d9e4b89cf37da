"""`gemps top`."""
