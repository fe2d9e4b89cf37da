"""Argument checks."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from gem_server.settings import ServerSettings
from gem_worker.client.settings import ClientSettings
from gem_worker.model_names import OWN, explain_unknown, explain_unsuitable, torchvision_models

from gem_cli.errors import USAGE, CommandError, refused
from gem_cli.options import Given, OptionGroup
from gem_cli.training import shards
from gem_cli.training.run_folder import RunFolder
from gem_cli.training.settings import TrainSettings

SHARDS = OptionGroup(TrainSettings, "Shards", frozenset(TrainSettings.model_fields) - {"shards"})


def check_address(address: str) -> None:
    """Raise CommandError if invalid."""
    from gem_worker.client import AddressError
    from gem_worker.client.channel import check_address as check

    try:
        check(address)
    except AddressError as error:
        raise refused(error) from None


def check_running_server(address: str, given: Given) -> None:
    """Raise CommandError for an invalid address, or a server's settings."""
    check_address(address)
    if flags := given.arguments(ServerSettings) + given.arguments(TrainSettings):
        raise CommandError(f"--server names a running server, which has its settings: leave out {flags[0]}", USAGE)


def check_credentials(settings: ClientSettings) -> None:
    """Raise CommandError for unusable credential files."""
    if settings.tls_ca or settings.token_file is not None:
        from gem_worker.client import CredentialsError
        from gem_worker.client.credentials import Credentials

        try:
            Credentials(settings)
        except CredentialsError as error:
            raise refused(error) from None


def check_has_credentials(server: ServerSettings, client: ClientSettings) -> None:
    """Raise CommandError if the server would refuse the client."""
    has_token = client.token is not None or client.token_file is not None
    lacking = {
        "speak TLS": server.tls.cert is not None and not client.tls_ca,
        "ask for a client certificate": server.tls.client_ca is not None and client.tls_cert is None,
        "ask for a token": server.tls.tokens is not None and not has_token,
    }
    fix = "set GEMPS_CLIENT_CREDENTIALS to the operator's folder of gemps certs, as certs/operator"
    for what, is_lacking in lacking.items():
        if is_lacking:
            raise CommandError(f"the server would {what}, and its workers have no credentials for that: {fix}", USAGE)
    if server.tls.tokens is not None and not _is_operator(server.tls.tokens, client):
        raise CommandError(f"gemps train needs a token of the role operator, to train and to watch: {fix}", USAGE)


def _is_operator(tokens: Path, client: ClientSettings) -> bool:
    from gem_server.security.tokens import Role, read_tokens
    from gem_server.security.watched_files import UnusableFileError
    from gem_worker.client import CredentialsError
    from gem_worker.client.credentials import Token

    try:
        return read_tokens(tokens).role_of(Token(client).value) is Role.OPERATOR
    except CredentialsError as error:
        raise refused(error) from None
    except UnusableFileError as error:
        raise CommandError(str(error), USAGE) from None


def restartable_group(
    given: Given, own: Mapping[str, Any], fallback: Mapping[str, Any]
) -> tuple[ServerSettings, list[dict[str, Any]]]:
    """Return the first server's settings, and what to set for each besides what is given. Raises CommandError.

    `own` and `fallback`: as of `Given.load`.
    """
    count, client = given.load(TrainSettings).shards, given.load(ClientSettings)
    asked = given.load(ServerSettings, fallback=fallback, **own)
    if asked.data_dir is None:
        raise CommandError("--data-dir DIRECTORY is missing: a restarted server resumes there", USAGE)
    folder = RunFolder(asked.data_dir)
    folder.check_shards(count)
    own = {**own, **shards.primary_settings(asked, client, count)}
    primary = given.load(ServerSettings, fallback=fallback, **own)
    return primary, shards.group_settings(primary, own, client, folder.data_dirs(count))


def check_model(name: str, task: str) -> None:
    """Raise CommandError for an unknown or unsuitable model."""
    if name == "":
        return
    if unsuitable := explain_unsuitable(name, is_text=task == "text"):
        raise CommandError(f"--model {name}: {unsuitable}", USAGE)
    if name in OWN:
        return
    known = torchvision_models()
    if known and name not in known:
        raise CommandError(f"--model {name}: {explain_unknown(name, known)}", USAGE)
