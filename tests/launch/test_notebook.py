"""`gemps.launch` in a real kernel."""

import asyncio
import os
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.cli.processes import CLEAN
from tests.docs.blocks import blocks_of
from tests.launch.scripts import JOINS
from tests.waiting import eventually

nbclient = pytest.importorskip("nbclient")
nbformat = pytest.importorskip("nbformat")
pytest.importorskip("ipykernel")
pytest.importorskip("torch", exc_type=ImportError)

PATIENCE = 600.0  # seconds for a cell; nothing is measured by it
pytestmark = pytest.mark.timeout(1200)
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = ROOT / "docs" / "tutorials" / "notebook.ipynb"


@pytest.fixture(autouse=True)
def _own_folders(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of a user's Jupyter is read or written; the kernel is the one of this environment."""
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name))
    for name in {*os.environ} - {*CLEAN}:
        monkeypatch.delenv(name)


def client_of(folder: Path, *cells: str) -> Any:
    notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(cell) for cell in cells])
    return nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=_in(folder))


def _in(folder: Path) -> dict[str, Any]:
    return {"metadata": {"path": str(folder)}}


def printed(cell: Any) -> str:
    return "".join(output["text"] for output in cell["outputs"] if output["output_type"] == "stream")


def shown(cell: Any) -> str:
    """The last state of the progress display."""
    return "".join(output["data"]["text/html"] for output in cell["outputs"] if output["output_type"] == "display_data")


@pytest.mark.long
def test_the_tutorial_has_no_outputs_and_runs_to_its_end(tmp_path: Path) -> None:
    notebook = nbformat.read(TUTORIAL, as_version=4)
    code = [cell for cell in notebook.cells if cell["cell_type"] == "code"]
    assert all(cell["outputs"] == [] and cell["execution_count"] is None for cell in code)
    nbclient.NotebookClient(notebook, timeout=PATIENCE, kernel_name="python3", resources=_in(tmp_path)).execute()
    launched, plot, last = code[-3:]
    assert sorted(re.findall(r"rank (\d) is done", printed(launched))) == list("0123")
    (html,) = [shown(launched)]
    assert 'value="1.0000"' in html
    assert "updates/s" in html
    assert "█" in html[html.index("<pre>") :]  # the curve of the loss
    (result,) = (one for one in launched["outputs"] if one["output_type"] == "execute_result")
    assert re.findall(r"\((\d), 500,", result["data"]["text/plain"]) == list("0123")
    assert any("image/png" in output["data"] for output in plot["outputs"])
    assert re.fullmatch(r"accuracy of version 2001: 0\.9\d+\n", printed(last))


@pytest.mark.long
def test_the_example_of_the_readme_runs_in_a_notebook(tmp_path: Path) -> None:
    (example,) = (one.text for one in blocks_of(ROOT / "README.md") if "gemps.launch" in one.text)
    client = client_of(tmp_path, example)
    client.execute()
    assert re.search(r"^accuracy 0\.9\d+$", printed(client.nb.cells[0]), re.MULTILINE)


@pytest.mark.long
def test_an_exception_in_a_cells_function_shows_the_cells_line(tmp_path: Path) -> None:
    client = client_of(tmp_path, JOINS, "def work():\n    assert 1 > 2\n", "gemps.launch(work, 2, min_workers=1)")
    client.allow_errors = True
    client.execute()
    error = client.nb.cells[2]["outputs"][-1]
    assert error["ename"] == "LaunchError"
    assert error["evalue"].startswith("2 of 2 workers failed\nrank 0 (worker-0): \nTraceback")
    assert "    assert 1 > 2\n" in error["evalue"]
    assert error["evalue"].endswith("rank 1 (worker-1): as rank 0")
    assert "def results" not in "".join(error["traceback"])


INTERRUPTIBLE = """
def work():
    open(f"began-{os.environ[INDEX]}", "x").close()
    while True:
        time.sleep(0.01)

gemps.launch(work, 2)
"""


def test_an_interrupted_cell_ends_all_and_the_kernel_stays(tmp_path: Path) -> None:
    client = client_of(tmp_path, JOINS, INTERRUPTIBLE, "print('still here')")
    client.allow_errors = True

    def interrupt() -> None:
        eventually(lambda: len(list(tmp_path.glob("began-*"))) == 2, patience=PATIENCE)
        asyncio.run(client.km.interrupt_kernel())

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    client.execute()
    interrupting.join()
    (error,) = client.nb.cells[1]["outputs"][-1:]
    assert error["ename"] == "KeyboardInterrupt"
    assert len(error["traceback"]) <= 5
    assert printed(client.nb.cells[2]) == "still here\n"
