"""The chart's tests need helm, kubectl and Kubernetes' schemas, which `make` installs from wheels."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from .chart import VERSIONS, Helm, Rendered, opened
from .value_sets import VALUE_SETS


@pytest.fixture(scope="package")
def helm(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Helm]:
    environment = (Path(sys.prefix) / "helm").resolve()
    if not (environment / "bin" / "helm").exists():
        pytest.skip("helm is not installed: `make test` installs it, where there is a package index")
    with opened(environment, tmp_path_factory.mktemp("helm")) as found:
        yield found


@pytest.fixture(scope="package")
def releases(helm: Helm) -> dict[str, Rendered]:
    """Each set of values, rendered, and validated for every version."""
    return {name: helm.template(values, versions=VERSIONS) for name, values in VALUE_SETS.items()}


@pytest.fixture(params=VALUE_SETS)
def release(request: pytest.FixtureRequest, releases: dict[str, Rendered]) -> Rendered:
    return releases[request.param]
