"""An unfinished run that nobody trains says so in the server's log."""

import pytest
from gem_server import lifecycle

from tests.waiting import eventually_async
from tests.wire.serving import Serving


async def test_a_server_that_its_workers_have_left_says_that_it_waits_for_some(
    serving: Serving, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = await serving.joined()
    monkeypatch.setattr(lifecycle, "IDLE_SECONDS", 0.0)
    await worker.leave()
    await eventually_async(lambda: any("the run waits for workers" in text for text in caplog.messages))
