"""The server held to its wire contract by a client that shares no code with gem_core or gem_worker."""
