"""Write the settings of gemps/values.schema.json from the settings classes (`make settings`).

The rest of the file is written by hand. `--out FILE` writes elsewhere, for the freshness test.
"""

import argparse
import json
from pathlib import Path
from typing import Any

from gem_cli.setting_keys import tables
from gem_server.settings import ServerSettings
from gem_worker.client.settings import ClientSettings
from gem_worker.settings import WorkerSettings
from pydantic_settings import BaseSettings

SCHEMA = Path(__file__).resolve().parent / "gemps" / "values.schema.json"
# Set by the images and the chart, or without effect there: a server that exits would be restarted.
NOT_OF_SERVER = {
    "bind", "lane_port", "insecure", "credentials", "tls_cert", "tls_key", "tls_client_ca", "tls_tokens",
    "dashboard", "dashboard_hosts", "shared_memory_socket", "data_dir", "resume", "ready_file",
    "exit_when_finished", "limits_exit_grace", "limits_exit_linger",
    "shard", "primary", "primary_credentials", "shard_address", "run",
}  # fmt: skip
NOT_OF_WORKER = {"server", "worker_name", "run", "dataset_dir"}
NOT_OF_CLIENT = {
    "credentials", "tls_ca", "tls_cert", "tls_key", "token_file", "token", "insecure", "shared_memory",
}  # fmt: skip
KEPT = ("type", "enum", "minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength")


def properties(settings: type[BaseSettings], without: set[str], prefix: str = "") -> dict[str, Any]:
    """Return the schema of each setting but `without`; null leaves a setting out.

    Settings are named as their variables, in lower case: `limits_threads`.
    """
    found: dict[str, Any] = {}
    own = settings.model_json_schema()["properties"]
    of_tables = {
        f"{table}_{name}": field
        for table, kind in tables(settings).items()
        for name, field in kind.model_json_schema()["properties"].items()
    }
    for name, field in ({name: one for name, one in own.items() if name not in tables(settings)} | of_tables).items():
        if name not in without:
            one = {**field, **field.get("anyOf", [{}])[0]}
            kept = {key: one[key] for key in KEPT if key in one} | {"type": [one["type"], "null"]}
            if "enum" in kept:
                kept["enum"] = [*kept["enum"], None]
            found[prefix + name] = kept
    return found


def schema() -> dict[str, Any]:
    """Return the file's content with current settings."""
    found: dict[str, Any] = json.loads(SCHEMA.read_text(encoding="utf-8"))
    of_client = properties(ClientSettings, NOT_OF_CLIENT, "client_")
    for name, of in (
        ("serverSettings", properties(ServerSettings, NOT_OF_SERVER)),
        ("workerSettings", properties(WorkerSettings, NOT_OF_WORKER) | of_client),
    ):
        found["definitions"][name] = {"type": "object", "additionalProperties": False, "properties": of}
    return found


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--out", type=Path, default=SCHEMA)
    text = json.dumps(schema(), indent=2, ensure_ascii=False)
    parser.parse_args().out.write_text(text + "\n", encoding="utf-8")
