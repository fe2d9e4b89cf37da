"""Argument checks before slow imports."""

from gem_worker.client.settings import ClientSettings
from gem_worker.model_names import OWN, explain_unknown, explain_unsuitable, torchvision_models

from gem_cli.errors import USAGE, CommandError, refused


def check_address(address: str) -> None:
    """Raise CommandError for an invalid address."""
    from gem_worker.client import AddressError
    from gem_worker.client.channel import check_address as check

    try:
        check(address)
    except AddressError as error:
        raise refused(error) from None


def check_credentials(settings: ClientSettings) -> None:
    """Raise CommandError for unusable credential files."""
    if settings.tls_ca or settings.token_file is not None:
        from gem_worker.client import CredentialsError
        from gem_worker.client.credentials import Credentials

        try:
            Credentials(settings)
        except CredentialsError as error:
            raise refused(error) from None


def check_model(name: str, task: str) -> None:
    """Raise CommandError for a certainly unknown model, or one that does not suit the task."""
    if name == "":
        return
    if unsuitable := explain_unsuitable(name, is_text=task == "text"):
        raise CommandError(f"--model {name}: {unsuitable}", USAGE)
    if name in OWN:
        return
    known = torchvision_models()
    if known and name not in known:
        raise CommandError(f"--model {name}: {explain_unknown(name, known)}", USAGE)
