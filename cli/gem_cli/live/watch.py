"""Main loop of the live view."""

import os
import sys
import time
from typing import TYPE_CHECKING

from gem_cli.live.feed import Feed, History, Lost, Over, Report
from gem_cli.live.frame import frame
from gem_cli.live.glyphs import glyphs_for
from gem_cli.live.terminal import Terminal
from gem_cli.live.view import View
from gem_cli.status_view import Status

if TYPE_CHECKING:
    from gem_worker.client import Observer

_TICK_SECONDS = 1.0


def watch(observer: "Observer", first: Status, interval: float) -> View:
    """Show a run until q; close `observer`, restore the terminal, return the last view."""
    encoding = sys.stdout.encoding
    glyphs = glyphs_for(os.environ.get("TERM", ""), encoding)
    view = View(observer.address, interval, first, time.monotonic())
    terminal = Terminal(sys.stdin.fileno(), sys.stdout.fileno(), encoding)
    with Feed(observer, interval, terminal.wake) as feed, terminal:
        while True:
            _update_view(feed, view)
            width, height = terminal.size
            terminal.show(frame(view, width, height, time.monotonic(), glyphs))
            keys = terminal.wait(_TICK_SECONDS)
            if keys is None or "quit" in keys:
                return view
            for key in keys:
                view.press(key)


def _update_view(feed: Feed, view: View) -> None:
    for news in feed.get_all():
        match news:
            case History(history):
                view.curves.restart(history)
            case Report(status):
                view.report(status, time.monotonic())
            case Lost(why):
                view.lost = why
            case Over():
                view.is_over = True
