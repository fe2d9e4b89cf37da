"""Server and workers on a cluster's engine, which places and restarts them."""
