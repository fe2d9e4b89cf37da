"""Wire contract: `gemps.v1` is generated, `gemps.framing` handwritten."""
