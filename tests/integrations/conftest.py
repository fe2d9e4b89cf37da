import pytest


@pytest.fixture(autouse=True)
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    """No test asks the hub for anything."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
