"""Generated from the protos beside it (`make proto`); do not edit."""
