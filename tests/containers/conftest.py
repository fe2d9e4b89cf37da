"""Container tests need an engine and build images, so they run only when they are asked for.

They build the images from this checkout with `docker compose build`, in whatever way its environment says (BASE_IMAGE,
TORCH, TORCH_INDEX, wheels in docker/wheels), and remove the containers and volumes that they made, not the images.
"""

import os
import time
from collections.abc import Iterator

import pytest

from tests.figures import Figures

from .project import ROOT, Project, docker


@pytest.fixture(scope="session")
def workers() -> int:
    """How many workers the whole run has (WORKERS)."""
    return int(os.environ.get("WORKERS", "4"))


@pytest.fixture(scope="session")
def images(figures: Figures) -> None:
    """Both images, built from this checkout."""
    began = time.monotonic()
    docker("compose", "--project-directory", str(ROOT), "build", timeout=1800)
    figures("images", f"built in {time.monotonic() - began:.0f} s")
    for image in (os.environ.get("SERVER_IMAGE", "gemps-server"), os.environ.get("WORKER_IMAGE", "gemps-worker")):
        size = int(docker("image", "inspect", "--format", "{{.Size}}", image))
        figures(image, f"{size / 1e6:.0f} MB")


@pytest.fixture
def project(images: None, request: pytest.FixtureRequest) -> Iterator[Project]:
    """A compose project of this test's own, removed with its volumes afterwards."""
    name = f"gemps-{request.node.name.replace('_', '-')[:40].lower()}-{os.getpid()}"
    made = Project(name)
    try:
        yield made
    finally:
        made.remove()
