"""The options of every command that talks to a server: TLS, and who is calling."""

from gem_worker.client.settings import ClientSettings

from gem_cli.options import OptionGroup

# Not patience, which is for the environment; and not the token itself, since all users see a process's arguments.
_FLAGS = frozenset({"credentials", "tls_ca", "tls_cert", "tls_key", "tls_server_name", "token_file"})
CONNECTION = OptionGroup(ClientSettings, "Connection", frozenset(ClientSettings.model_fields) - _FLAGS)
