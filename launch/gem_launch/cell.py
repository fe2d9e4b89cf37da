"""Progress in a notebook."""

import time
from html import escape
from typing import Any

from gem_cli import status_view
from gem_cli.status_view import Status
from gem_cli.top.progress import progress
from gem_cli.training.report.charts import Curve, Point, line_chart
from gem_cli.training.reporters import Reporter
from IPython.display import HTML, display
from typing_extensions import override

REDRAW_SECONDS = 1.0
MOST_POINTS = 2000

_STYLE = """<style>
.gemps { max-width: 560px; color: inherit; }
.gemps p { margin: 0 0 4px; } .gemps progress { width: 100%; }
.gemps .plot { display: block; width: 100%; height: auto; overflow: visible; }
.gemps .plot text { fill: currentColor; font: 12px sans-serif; } .gemps .grid { stroke: #8884; fill: none; }
.gemps .end { text-anchor: end; } .gemps .middle { text-anchor: middle; }
.gemps .line { fill: none; stroke: #1463c7; stroke-width: 1.8; } .gemps .dot { fill: #1463c7; }
</style>"""


class CellReporter(Reporter):
    """Bar, figures and loss curve."""

    def __init__(self) -> None:
        self._points: list[Point] = []
        self._status: Status = {}
        self._drawn = 0.0
        self._handle = display(HTML("starting ..."), display_id=True)  # type: ignore[no-untyped-call]

    @override
    def close(self) -> None:
        self._draw()

    @override
    def phase(self, name: str, text: str) -> None:
        self._handle.update(HTML(f"<p>{escape(text)} ...</p>"))  # type: ignore[no-untyped-call]

    @override
    def event(self, name: str, text: str, **_: Any) -> None:
        print(text, flush=True)

    @override
    def status(self, status: Status) -> None:
        self._status = status
        loss = status_view.figures(status)["loss"]
        if status.get("commits"):
            self._points.append((float(status.get("run_seconds", 0)), None if loss is None else float(loss)))
            if len(self._points) > MOST_POINTS:
                del self._points[1::2]
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if not self._status:
            return
        found = progress(self._status)
        bar = "" if found.fraction is None else f'<progress value="{found.fraction:.4f}"></progress>'
        text = f"{status_view.plain_line(self._status)}  {found.text}"
        chart = line_chart("Loss over time", [Curve("training loss", "blue", self._points)], end=0, from_zero=False)
        page = f'{_STYLE}<div class="gemps">{bar}<p>{text}</p>{chart}</div>'
        self._handle.update(HTML(page))  # type: ignore[no-untyped-call]
