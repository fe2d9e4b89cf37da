"""Every command of README.md and docs/deploy.md, as printed and in order, on clean machines (`pytest -m printed`).

Pages and checkouts are those of HEAD. One newcomer reads both pages at `here`; each page has a server and workers
of its own. GEMPS_WHEELHOUSE names a folder for the
wheels (3 GB) other than the one in the user's cache; TORCH="torch==2.13.0+cpu" makes the images with another PyTorch.
"""

from collections.abc import Iterator
from functools import partial

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.machines import ADDRESSES, Container, Place, place, why_not
from tests.docs.reader import Outcome, Reader

pytestmark = pytest.mark.printed


@pytest.fixture(scope="module")
def machines() -> Iterator[Place]:
    if why := why_not():
        pytest.skip(f"clean machines are containers, and {why}")
    with place() as made:
        yield made


@pytest.fixture(scope="module")
def here(machines: Place) -> Container:
    return machines.start("here")


@pytest.fixture(scope="module")
def reader() -> Reader:
    return Reader(things=frozenset({"systemd"}), tell=partial(print, flush=True))


@pytest.mark.timeout(0)  # each block has a limit of its own
@pytest.mark.parametrize("page", ["README.md", "docs/deploy.md"])
def test_every_command_runs_as_printed(
    page: str,
    machines: Place,
    here: Container,
    reader: Reader,
    outcomes: list[Outcome],
    capsys: pytest.CaptureFixture[str],
) -> None:
    others = {name: machines.start(name) for name in ADDRESSES if name != here.name}
    with capsys.disabled():
        found = reader.read(blocks_of(here.checkout / page), {here.name: here, **others})
    outcomes.extend(found)
    failed = [one for one in found if one.failed]
    report = [f"{one.page}:{one.line} on {one.machine}: {one.command}\n{one.last_words()}" for one in failed]
    assert found
    assert not failed, "\n\n".join(report)
