"""Who may do what, and the files that say so: tokens, certificates, and their reloading. Nothing here knows gRPC."""
