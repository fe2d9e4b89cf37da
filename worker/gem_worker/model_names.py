"""Model names, without the slow import of PyTorch."""

import difflib
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OWN = ("mlp", "cnn")
_REGISTERED = re.compile(r"^@register_model\(\).*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def explain_unknown(name: str, known: Iterable[str]) -> str:
    """Return an error message with a similar name."""
    near = difflib.get_close_matches(name, [*OWN, *known], n=1)
    hint = f"did you mean {near[0]}?" if near else "there are mlp, cnn and torchvision's classification models"
    return f"there is no model {name!r}; {hint}"


def torchvision_models() -> list[str]:
    """Return the names in torchvision's source; [] if not installed."""
    package = find_spec("torchvision")
    folders = (package.submodule_search_locations if package is not None else None) or ()
    files = (path for folder in folders for path in sorted((Path(folder) / "models").glob("*.py")))
    return [name for path in files for name in _REGISTERED.findall(path.read_text(encoding="utf-8"))]
