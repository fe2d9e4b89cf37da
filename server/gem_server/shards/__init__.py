"""Several servers with one model: the primary orders, the secondaries follow (docs/design.md, section 9)."""
