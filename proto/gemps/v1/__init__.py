"""Generated code; do not edit."""
