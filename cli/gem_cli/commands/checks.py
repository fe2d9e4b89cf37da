"""Mistakes that are told before anything is started, or imported that takes long."""

from gem_worker.client.settings import ClientSettings
from gem_worker.model_names import OWN, explain_unknown, torchvision_models

from gem_cli.errors import USAGE, CommandError, refused


def check_address(address: str) -> None:
    """Raise CommandError unless a server may have this address."""
    from gem_worker.client import AddressError
    from gem_worker.client.channel import check_address as check

    try:
        check(address)
    except AddressError as error:
        raise refused(error) from None


def check_credentials(settings: ClientSettings) -> None:
    """Raise CommandError when files that the settings name cannot be used."""
    if settings.tls_ca or settings.token_file is not None:
        from gem_worker.client import CredentialsError
        from gem_worker.client.credentials import Credentials

        try:
            Credentials(settings)
        except CredentialsError as error:
            raise refused(error) from None


def check_model(name: str) -> None:
    """Raise CommandError when there is certainly no model of this name; empty is the task's own."""
    if name in ("", *OWN):
        return
    known = torchvision_models()
    if known and name not in known:
        raise CommandError(f"--model {name}: {explain_unknown(name, known)}", USAGE)
