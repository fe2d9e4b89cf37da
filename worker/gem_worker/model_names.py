"""Model names, without importing PyTorch."""

import difflib
import re
from collections.abc import Iterable
from importlib.util import find_spec
from pathlib import Path

OWN = ("mlp", "cnn", "transformer")
_REGISTERED = re.compile(r"^@register_model\(\).*?^def (\w+)\(", re.MULTILINE | re.DOTALL)


def explain_unknown(name: str, known: Iterable[str]) -> str:
    """Error message with a similar name."""
    near = difflib.get_close_matches(name, [*OWN, *known], n=1)
    hint = (
        f"did you mean {near[0]}?"
        if near
        else "there are mlp, cnn, transformer and torchvision's classification models"
    )
    return f"there is no model {name!r}; {hint}"


def explain_unsuitable(name: str, *, is_text: bool) -> str:
    """Error message if a model does not fit a task; else ""."""
    if is_text == (name == "transformer"):
        return ""
    if is_text:
        return f"the model {name} takes images, and the task text has none; leave --model out, or use transformer"
    return "the model transformer takes text, and this task has images; use --task text or another --model"


def torchvision_models() -> list[str]:
    """Names in torchvision's source; [] if not installed."""
    package = find_spec("torchvision")
    folders = (package.submodule_search_locations if package is not None else None) or ()
    files = (path for folder in folders for path in sorted((Path(folder) / "models").glob("*.py")))
    return [name for path in files for name in _REGISTERED.findall(path.read_text(encoding="utf-8"))]
