"""Memory that workers on this machine share with the server; how they get it is `service/shared_memory_socket.py`."""
