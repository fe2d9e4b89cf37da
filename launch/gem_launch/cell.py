"""Progress in a notebook."""

import time
from html import escape
from typing import Any

from gem_cli import status_view
from gem_cli.live.charts import bars
from gem_cli.live.curves import Curves
from gem_cli.live.glyphs import glyphs_for
from gem_cli.live.progress import progress
from gem_cli.status_view import Status
from gem_cli.training.reporters import Reporter
from IPython.display import HTML, display
from typing_extensions import override

REDRAW_SECONDS = 1.0
COLUMNS, ROWS = 64, 8

_STYLE = """<style>
.gemps { max-width: 560px; color: inherit; }
.gemps p { margin: 0 0 4px; } .gemps progress { width: 100%; }
.gemps pre { margin: 0; color: #1463c7; line-height: 1; }
</style>"""


class CellReporter(Reporter):
    """Bar, figures and loss curve."""

    def __init__(self) -> None:
        self._curves = Curves()
        self._glyphs = glyphs_for("", "utf-8")
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
        self._curves.add(status)
        if time.monotonic() - self._drawn >= REDRAW_SECONDS:
            self._draw()

    def _draw(self) -> None:
        self._drawn = time.monotonic()
        if not self._status:
            return
        found = progress(self._status)
        bar = "" if found.fraction is None else f'<progress value="{found.fraction:.4f}"></progress>'
        text = f"{status_view.plain_line(self._status)}  {found.text}"
        loss = bars(self._curves.columns("loss", COLUMNS), ROWS, self._glyphs, from_zero=False)
        chart = "<p>training loss over time</p><pre>" + "\n".join(loss) + "</pre>"
        page = f'{_STYLE}<div class="gemps">{bar}<p>{text}</p>{chart}</div>'
        self._handle.update(HTML(page))  # type: ignore[no-untyped-call]
