"""Nothing is pickled, so that no file and no message can run code."""

import ast
from collections.abc import Iterator
from pathlib import Path

from tests.structure.source_files import FRAMING, LAUNCH, PACKAGES, ROOT, imports, sources

MODULES = ("pickle", "_pickle", "cPickle", "cloudpickle", "dill", "joblib", "marshal", "shelve")


def test_nothing_is_pickled() -> None:
    """This holds for the product, and for the code that shows, measures and packs it.

    The one exception are functions that a process hands to its own children, through a private folder.
    """
    beside = [ROOT / name for name in ("examples", "benchmarks", "docs", "docker")]
    exception = LAUNCH / "functions.py"
    code = [path for folder in (*PACKAGES, FRAMING, *beside) for path in sources(folder) if path != exception]
    assert [f"{path.relative_to(ROOT)}:{line}: {what}" for path in code for line, what in pickling(path)] == []


def pickling(path: Path) -> Iterator[tuple[int, str]]:
    """Find imports of MODULES, and calls of torch, NumPy and pandas that read or write pickles."""
    yield from ((line, module) for line, module in imports(path) if module.partition(".")[0] in MODULES)
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.Call):
            continue
        called = ast.unparse(node.func)
        loads = called in ("torch.load", "torch.save", "torch.hub.load") or called.endswith(("_pickle", "load_object"))
        if loads or any(one.arg == "allow_pickle" and ast.unparse(one.value) != "False" for one in node.keywords):
            yield node.lineno, ast.unparse(node)


def test_pickling_would_be_seen(tmp_path: Path) -> None:
    text = tmp_path / "imagined.py"
    text.write_text(
        "import numpy, pandas, torch\ntorch.load('a')\nnumpy.load('b', allow_pickle=True)\npandas.read_pickle('c')\n"
        "numpy.load('d', allow_pickle=False)\n",
        encoding="utf-8",
    )
    assert [line for line, _ in pickling(text)] == [2, 3, 4]
