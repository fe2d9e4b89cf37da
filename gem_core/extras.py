"""The distribution's extras."""

__all__ = ["PACKAGES", "distribution", "explain_missing", "how_to_install"]

_SERVER = ("aiohttp", "grpc_health", "grpc_reflection", "numba", "prometheus_client", "safetensors", "structlog")
_WORKER = ("cloudpickle", "safetensors", "sklearn", "structlog", "torch", "torchvision")

# Import names by extra, as in pyproject.toml.
PACKAGES: dict[str, tuple[str, ...]] = {
    "server": _SERVER,
    "worker": _WORKER,
    "train": (*_SERVER, *_WORKER, "matplotlib", "tensorboard"),
    "lab": (*_WORKER, "matplotlib", "numba"),
    "certs": ("cryptography",),
    "digits": ("sklearn",),
    "plot": ("matplotlib",),
    "tensorboard": ("tensorboard",),
    "wandb": ("wandb",),
    "mlflow": ("mlflow",),
    "ray": ("ray",),
    "spark": ("pyspark",),
}

# Where the name differs by more than "-" for "_".
_DISTRIBUTIONS = {
    "grpc_health": "grpcio-health-checking",
    "grpc_reflection": "grpcio-reflection",
    "mlflow": "mlflow-skinny",
    "sklearn": "scikit-learn",
}


def distribution(package: str) -> str:
    """Distribution that brings an import name."""
    return _DISTRIBUTIONS.get(package, package.replace("_", "-"))


def how_to_install(extra: str) -> str:
    """The line that installs an extra; gemps is on no index."""
    return f'pip install ".[{extra}]" in a checkout of gemps'


def explain_missing(package: str, extra: str, needed_by: str) -> str:
    """The fix for a missing package of `extra`, by import name."""
    return f"{needed_by} needs {distribution(package)}, which is not installed: {how_to_install(extra)}"
