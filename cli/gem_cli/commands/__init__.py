"""One module per command; slow imports are deferred."""
