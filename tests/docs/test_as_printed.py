"""Every command of README.md and docs/deploy.md, as printed and in order, on clean machines (`make test-docs`).

Pages and checkouts are those of HEAD. One newcomer reads both pages at `here`; each page has a server and workers
of its own. GEMPS_TEST_DOCS=quick leaves out the two longest lines, and says so; GEMPS_WHEELHOUSE names a folder for the
wheels (3 GB) other than the one in the user's cache; TORCH="torch==2.13.0+cpu" makes the images with another PyTorch.
"""

import os
from collections.abc import Iterator
from functools import partial

import pytest

from tests.docs.blocks import blocks_of
from tests.docs.machines import ADDRESSES, Container, Place, place, run, why_not
from tests.docs.reader import Outcome, Reader

HOW = os.environ.get("GEMPS_TEST_DOCS", "")
LONG = ("make train", "make test")


@pytest.fixture(scope="module")
def machines() -> Iterator[Place]:
    if HOW not in ("1", "quick"):
        pytest.skip("runs all commands of README.md and docs/deploy.md on clean containers: run `make test-docs`")
    if why := why_not():
        pytest.skip(f"clean machines are containers, and {why}")
    with place() as made:
        yield made


@pytest.fixture(scope="module")
def here(machines: Place) -> Container:
    newcomer = machines.start("here")
    if HOW == "quick":
        run(*newcomer.on("make", "install"))
    return newcomer


@pytest.fixture(scope="module")
def reader() -> Reader:
    left_out = dict.fromkeys(LONG, "left out by GEMPS_TEST_DOCS=quick") if HOW == "quick" else {}
    return Reader(things=frozenset({"systemd"}), left_out=left_out, tell=partial(print, flush=True))


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
