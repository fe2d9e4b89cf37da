"""`gemps serve`."""

from gem_server.settings import ServerSettings

from gem_cli.commands.known import KNOWN
from gem_cli.environment import misspelt_logged
from gem_cli.extras import require, require_server_system
from gem_cli.options import Given, OptionGroup, with_options

_COMMON = (
    "bind", "insecure", "credentials", "dashboard",
    "rule", "eta", "rule_settings", "direction",
    "steps", "epochs", "commits", "exit_when_finished", "min_workers",
    "data_dir", "resume",
)  # fmt: skip


@with_options(OptionGroup(ServerSettings, "Server"), known=KNOWN, common=_COMMON)
def serve(given: Given) -> None:
    """Run the parameter server until it is stopped or, with --exit-when-finished, until the run has finished.

    On SIGTERM it writes a checkpoint, if it has a --data-dir, and exits with code 0; also when its terminal closes,
    unless it was started by nohup.

    [bold]Examples[/bold]

      gemps serve --eta 0.1 --commits 20000 --data-dir state

      gemps serve --bind 0.0.0.0:50051 --insecure --data-dir state --resume
    """
    require_server_system("serve")
    with misspelt_logged():
        settings = given.load(ServerSettings)
        require("server", "serve")
        from gem_server.process import run_server as run

        from gem_cli.logs import configure_logs

        configure_logs(settings.log_format)
    code = run(settings)
    if code:
        raise SystemExit(code)
