"""A real browser: Chromium, driven by playwright-core in a Node.js process (browser.mjs)."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
PATIENCE = 60.0


def missing() -> str:
    """What the tests with a browser lack here; empty: nothing."""
    if shutil.which("node") is None:
        return "there is no Node.js here"
    if chromium() is None:
        return "there is no Chromium here: apt-get install chromium"
    if not (HERE / "node_modules").is_dir():
        return "tests/web/node_modules is missing: `npm ci` in tests/web installs it"
    return ""


def chromium() -> str | None:
    return shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Browser:
    """One window. Every method waits until what it asks for is done; scripts are JavaScript expressions."""

    def __init__(self) -> None:
        path = chromium()
        assert path is not None
        command = ["node", str(HERE / "browser.mjs"), path]
        self._process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def close(self) -> None:
        self._process.communicate(timeout=PATIENCE)

    def open(self, url: str, *, width: int = 1440, height: int = 1000, scheme: str = "dark", **options: str) -> None:
        self._do("open", url=url, width=width, height=height, scheme=scheme, **options)

    def reload(self) -> None:
        self._do("reload")

    def see(self, script: str) -> Any:
        """What the expression is."""
        return self._do("evaluate", script=script)

    def until(self, script: str, seconds: float = PATIENCE) -> None:
        """Until the expression is true."""
        self._do("wait", script=script, seconds=seconds)

    def text(self, selector: str) -> str:
        return str(self.see(f"document.querySelector({json.dumps(selector)}).innerText"))

    def press(self, keys: str) -> None:
        self._do("press", keys=keys)

    def hover(self, selector: str) -> None:
        self._do("hover", selector=selector)

    def click(self, selector: str) -> None:
        self._do("click", selector=selector)

    def resize(self, width: int, height: int) -> None:
        self._do("resize", width=width, height=height)

    def prefer(self, scheme: str) -> None:
        self._do("media", scheme=scheme)

    def keep(self, path: Path, *, whole: bool = True) -> None:
        """Keep a picture of the whole page, or of what the window shows."""
        self._do("screenshot", path=str(path), whole=whole)

    def serious(self) -> list[dict[str, Any]]:
        """What axe-core finds that is serious or critical."""
        return [one for one in self._do("accessibility") if one["impact"] in ("serious", "critical")]

    def problems(self) -> list[str]:
        """Errors of the page so far, and requests that went elsewhere; each is told once."""
        return list(self._do("problems"))

    def _do(self, act: str, **given: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"act": act, **given}) + "\n")
        self._process.stdin.flush()
        answer = json.loads(self._process.stdout.readline())
        assert "error" not in answer, f"{act} {given}: {answer['error']}"
        return answer["value"]
