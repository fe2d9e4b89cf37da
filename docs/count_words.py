"""Count the words of the project's prose: `python docs/count_words.py`. tests/structure/test_prose.py holds the limits.

A word is a token with a letter or a digit. Pages count without code blocks, code counts with its docstrings and
comments, and apart from these with its messages (strings of several words, comments of protos). Generated pages,
generated code and tests do not count. Dialect markers are turns of phrase that plain technical English does not have.
"""

import ast
import io
import re
import subprocess
import tokenize
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED_PAGES = tuple(
    f"docs/{name}.md" for name in ("settings", "reproduction", "beyond", "transformer", "own-optimizer", "time-to-loss")
)
PRODUCT = (
    "cli",
    "conformance",
    "gem_core",
    "gem_trace",
    "launch",
    "proto/gemps",
    "reproduction",
    "server",
    "simulator",
    "worker",
)
DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
MARKERS = re.compile(
    r"\b(whoever|(is|are|was|were) told|of (its|their) own|goes on|so many|nobody|beside|there is none|in the midst"
    r"|who (finds|has|asks|comes|waits|reads|says|holds|wants))\b",
    re.IGNORECASE,
)


@dataclass
class Count:
    """Words and dialect markers of some texts."""

    words: int = 0
    markers: int = 0

    def add(self, text: str) -> None:
        """Count this text as well."""
        self.words += sum(any(map(str.isalnum, token)) for token in text.split())
        self.markers += len(MARKERS.findall(text))

    @property
    def markers_per_1000(self) -> float:
        """Markers in 1 000 words."""
        return 1000 * self.markers / max(self.words, 1)


def page_text(markdown: str) -> str:
    """A page without its code blocks."""
    return re.sub(r"^ *```.*?^ *```", "", markdown, flags=re.MULTILINE | re.DOTALL)


def code_text(source: str) -> str:
    """The docstrings and comments of a Python file."""
    found = [ast.get_docstring(node) or "" for node in ast.walk(ast.parse(source)) if isinstance(node, DOCUMENTED)]
    found += [
        token.string[1:]
        for token in tokenize.generate_tokens(io.StringIO(source).readline)
        if token.type == tokenize.COMMENT and not token.string.startswith(("#!", "# type:", "# noqa", "# fmt:"))
    ]
    return "\n".join(found)


def message_text(source: str) -> str:
    """The strings of several words in a Python file, without docstrings."""
    tree = ast.parse(source)
    docstrings = {id(node.body[0].value) for node in ast.walk(tree) if _has_docstring(node)}
    found = (node for node in ast.walk(tree) if isinstance(node, ast.Constant) and id(node) not in docstrings)
    return "\n".join(node.value for node in found if isinstance(node.value, str) and len(node.value.split()) > 1)


def _has_docstring(node: ast.AST) -> bool:
    return isinstance(node, DOCUMENTED) and ast.get_docstring(node) is not None


def proto_text(source: str) -> str:
    """The comments of a proto file."""
    return "\n".join(re.findall(r"//(.*)", source))


def count() -> dict[str, Count]:
    """By kind: the README, all pages (README included), docstrings with comments, and messages."""
    listing = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True)  # noqa: S607
    tracked = listing.stdout.split()
    counts = {"README.md": Count(), "pages": Count(), "docstrings and comments": Count(), "messages": Count()}
    for name in tracked:
        path = ROOT / name
        if not path.is_file():
            continue
        if name.endswith(".md") and name not in GENERATED_PAGES:
            text = page_text(path.read_text(encoding="utf-8"))
            counts["pages"].add(text)
            if name == "README.md":
                counts[name].add(text)
        elif name.endswith(".py") and name.startswith(PRODUCT) and not name.endswith("_pb2.py"):
            source = path.read_text(encoding="utf-8")
            counts["docstrings and comments"].add(code_text(source))
            counts["messages"].add(message_text(source))
        elif name.endswith(".proto"):
            counts["messages"].add(proto_text(path.read_text(encoding="utf-8")))
    return counts


if __name__ == "__main__":
    for kind, counted in count().items():
        print(f"{kind:24} {counted.words:7,} words, {counted.markers_per_1000:.2f} dialect markers in 1 000")
