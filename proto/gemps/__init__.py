"""The wire contract of gemps: `gemps.v1` is generated from the protos beside it; `gemps.framing` is written by hand."""
