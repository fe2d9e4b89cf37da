"""Self-contained HTML report.

Names are untrusted: every text goes through `words.safe`.
"""

from gem_cli.training.report.contents import Contents
from gem_cli.training.report.page import page

__all__ = ["Contents", "page"]
