"""The client library, against the real server, and against a scripted one for what a correct server never does."""
