"""The report of a run: one HTML page that needs nothing else, made from the files of a run folder.

`contents.py` reads the files, `page.py` lays the page out, `charts.py` draws, `words.py` writes numbers; none of them
knows a server. Everything that has a name in a run may hold anything, so every text goes through `words.safe`.
"""

from gem_cli.training.report.contents import Contents
from gem_cli.training.report.page import page

__all__ = ["Contents", "page"]
