"""The texts on which peft_lora.py and transformers_trainer.py fine-tune a pretrained model.

They are the documentation of Python's own standard library, read from its source files, so nothing is downloaded.
"""

import ast
import sysconfig
from pathlib import Path
from typing import NamedTuple


class Documented(NamedTuple):
    """A class or function: its top-level module, its name in words, and the first paragraph of its docstring."""

    module: str
    name: str
    text: str


def read_documentation() -> list[Documented]:
    """All documented public classes and functions of the standard library, each text once, in a fixed order."""
    found: dict[str, Documented] = {}
    root = Path(sysconfig.get_path("stdlib"))
    for path in sorted([*root.glob("*.py"), *root.glob("[a-z]*/*.py")]):
        module = path.relative_to(root).parts[0].removesuffix(".py")
        if module in ("site-packages", "dist-packages", "test", "idlelib", "lib2to3") or module.startswith("_"):
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            text = " ".join((ast.get_docstring(node) or "").split("\n\n")[0].split())
            if len(text) >= 20 and not node.name.startswith("_"):
                found.setdefault(text, Documented(module, node.name, text))
    return list(found.values())
