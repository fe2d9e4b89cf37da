"""docker-compose.yml lets every setting through. Read as text: `make test` runs without Docker Compose."""

import re
from pathlib import Path

import pytest
from gem_cli.commands.evaluate import EVALUATION_FIELDS
from gem_cli.setting_keys import fields
from gem_server.settings import ServerSettings
from gem_worker.client import ClientSettings
from gem_worker.evaluator_settings import EvaluatorSettings
from gem_worker.settings import WorkerSettings

COMPOSE = Path(__file__).resolve().parents[2] / "docker-compose.yml"
# What the images set themselves, to paths and ports of the container, and what only the container can know.
SET_BY_IMAGES = {"bind", "lane_port", "data_dir", "resume", "ready_file", "dataset_dir", "worker_name"}
CLIENT = {f"client_{name}" for name in ClientSettings.model_fields}


def offered(service: str) -> set[str]:
    """The settings, by their names in Python, that a service takes from the environment of compose."""
    services = re.split(r"^  ([\w-]+):\n", COMPOSE.read_text(encoding="utf-8"), flags=re.MULTILINE)
    text = services[services.index(service) + 1]
    return {name.lower() for name in re.findall(r"^      GEMPS_(\w+):", text, flags=re.MULTILINE)}


@pytest.mark.parametrize(
    ("service", "settings"),
    [
        ("server", {key.replace(".", "_") for key in fields(ServerSettings)}),
        ("worker", set(WorkerSettings.model_fields) | CLIENT),
        ("evaluator", EVALUATION_FIELDS | set(EvaluatorSettings.model_fields) | CLIENT),
    ],
)
def test_every_setting_that_no_image_sets_can_be_given_in_the_environment_of_compose(
    service: str, settings: set[str]
) -> None:
    assert offered(service) == settings - SET_BY_IMAGES
