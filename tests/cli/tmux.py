"""A real terminal for tests: a tmux server of the test's own, whose one window runs a command."""

import shlex
import subprocess
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tests.cli.processes import PATIENCE
from tests.waiting import eventually

ENDED = "it ended with"


class Window:
    """What runs in it is followed by a line with its exit code, and the terminal's modes."""

    def __init__(self, folder: Path, command: Sequence[str], env: Mapping[str, str], width: int, height: int) -> None:
        self._socket = folder / "tmux"
        settings = folder / "tmux.conf"
        settings.write_text("set -g status off\nset -g history-limit 0\n", encoding="utf-8")
        script = folder / "window.sh"
        told = " ".join(f"{name}={shlex.quote(value)}" for name, value in env.items())
        script.write_text(
            f"trap : INT\nstty -a > {folder}/before\n{told} {shlex.join(command)}\n"
            f'echo "{ENDED} $?"\nstty -a > {folder}/after\nexec sleep 600\n',
            encoding="utf-8",
        )
        self.folder = folder
        self._call(
            "-f",
            str(settings),
            "new-session",
            "-d",
            "-x",
            str(width),
            "-y",
            str(height),
            f"sh {shlex.quote(str(script))}",
        )

    def screen(self) -> list[str]:
        """The lines on the screen; those that were wrapped are one line."""
        return self._call("capture-pane", "-p", "-J").splitlines()

    def press(self, *keys: str) -> None:
        """Type these keys, by tmux's names."""
        self._call("send-keys", *keys)

    def resize(self, width: int, height: int) -> None:
        self._call("resize-window", "-x", str(width), "-y", str(height))

    def says(self, variable: str) -> str:
        """One of tmux's own variables, such as alternate_on."""
        return self._call("display-message", "-p", f"#{{{variable}}}").strip()

    def until(self, condition: Callable[[list[str]], bool]) -> list[str]:
        """The screen, once this holds of it."""
        lines: list[str] = []

        def look() -> bool:
            lines[:] = self.screen()
            return condition(lines)

        eventually(look, lambda: "never happened:\n" + "\n".join(lines), patience=PATIENCE, interval=0.1)
        return lines

    def until_it_says(self, text: str) -> list[str]:
        return self.until(lambda lines: any(text in line for line in lines))

    def modes(self) -> tuple[str, str]:
        """The terminal's modes before the command, and after it."""
        before, after = (self.folder / name for name in ("before", "after"))
        return before.read_text(encoding="utf-8"), after.read_text(encoding="utf-8")

    def close(self) -> None:
        subprocess.run(["tmux", "-S", str(self._socket), "kill-server"], capture_output=True)

    def _call(self, *arguments: str) -> str:
        done = subprocess.run(["tmux", "-S", str(self._socket), *arguments], capture_output=True, text=True, timeout=60)
        assert done.returncode == 0, done.stderr
        return done.stdout
