"""An unfinished run that nobody trains says so in the server's log, once each time."""

import pytest
from gem_server.server import DESERTED_SECONDS

from .serving import Serving


async def test_a_run_without_workers_says_that_it_waits_for_some(
    serving: Serving, caplog: pytest.LogCaptureFixture
) -> None:
    def told() -> int:
        return len([text for text in caplog.messages if "the run waits for workers" in text])

    tell = serving.server._tell_when_deserted
    for seconds in (1e6, 1e6 + DESERTED_SECONDS - 1):
        tell(seconds)
    assert told() == 0
    for seconds in (1e6 + DESERTED_SECONDS, 1e6 + 5 * DESERTED_SECONDS):
        tell(seconds)
    assert told() == 1
    worker = await serving.joined()
    tell(2e6)
    await worker.leave()
    for seconds in (3e6, 3e6 + DESERTED_SECONDS + 1):
        tell(seconds)
    assert told() == 2
