"""Generate docs/reproduction.md from docs/reproduction.json (`python docs/generate_reproduction.py`).

`--from FOLDER` first takes results.json and the pictures over from what `gemps reproduce` wrote there. `--out FILE`
writes the page elsewhere, for the freshness test.
"""

import argparse
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from gem_reproduction.figures import choose, figure_names

DOCS = Path(__file__).resolve().parent
RESULTS = DOCS / "reproduction.json"
PAGE = DOCS / "reproduction.md"
PICTURES = DOCS / "images" / "reproduction"

INTRODUCTION = """\
<!-- Written by docs/generate_reproduction.py from docs/reproduction.json: run `gemps reproduce all`, then it. -->
# The paper's figures, done again

Hermans and Louppe, "Gradient Energy Matching for Distributed Asynchronous Gradient Descent", 2018, arXiv 1805.08469.
Each figure of the paper is an experiment that `gemps reproduce all` runs, with the update rules that the server applies
and the models that the workers train; only time is simulated (gem_simulator). This page was made from its results:

{made_with}

```sh show
gemps reproduce {command}
python docs/generate_reproduction.py --from runs/reproduction
```

## How to read it

- **L** is the final training loss: the mean cross-entropy of the central variable over the whole training set, without
  dropout; over the seeds the geometric mean. **minibatches** is the mean loss of the batches that the workers trained
  on in the last tenth of the run, with dropout: what the curves show. inf: a run diverged.
- Every worker takes the same number of steps, so n workers apply n times as many updates as one. The paper's curves
  are against worker steps, too.
- Commits are applied in a constant round-robin order, unless a figure says otherwise. The order of arrival is part of
  the experiment: see 1b.
- A claim that **must hold** and does not is a fault of gemps, and the command exits with 1. Whether the others
  are met depends on data and length as well.
- One worker under GEM is not momentum SGD: its update is sign(delta) · min(|m|, 5 |delta|). Nothing here expects it.
"""


def page(results: Mapping[str, Any]) -> str:
    """Return the page of what `gemps reproduce` found."""
    figures: Mapping[str, Any] = results["figures"]
    parts = [INTRODUCTION.format(made_with=_made_with(results), command=_command(results)), "## Verdicts\n"]
    parts.append("\n".join(_summary(figures)) + "\n")
    for name, figure in figures.items():
        parts.append("\n".join(_section(name, figure)))
    return "\n".join(parts)


def _made_with(results: Mapping[str, Any]) -> str:
    scope = results["scope"]
    return (
        f"{scope['model']} on {scope['task']}, {scope['steps']} steps a worker, {scope['seeds']} seeds; "
        f"gemps {results['gemps']}, PyTorch {results['torch']}, Python {results['python']}."
    )


def _command(results: Mapping[str, Any]) -> str:
    scope = results["scope"]
    whole = "all" if set(results["figures"]) == set(figure_names()) else " ".join(results["figures"])
    flags = [whole, *(["--quick"] if scope["quick"] else [])]
    flags += [
        f"--{name} {scope[name]}" for name, usual in (("task", "digits"), ("model", "cnn")) if scope[name] != usual
    ]
    return " ".join(flags)


def _summary(figures: Mapping[str, Any]) -> Iterator[str]:
    yield "| figure | claim | must hold | met |"
    yield "|---|---|---|---|"
    for name, figure in figures.items():
        for verdict in figure["verdicts"]:
            must = "yes" if verdict["must_hold"] else "-"
            yield f"| {name} | {verdict['claim']} | {must} | {_word(verdict)} |"


def _section(name: str, figure: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {figure['title']}\n"
    yield f"![{figure['title']}](images/reproduction/{figure['picture']})\n"
    yield _wrapped(f"**{'The claim' if name == 'exchanges' else 'The paper claims'}:** {figure['claim']}")
    yield _wrapped(f"**What was run:** {figure['runs']} runs: {figure['subtitle']}. {figure['about']}")
    if figure["remark"]:
        yield _wrapped(f"**What to make of it:** {figure['remark']}")
    for verdict in figure["verdicts"]:
        yield _wrapped(f"**{_word(verdict).capitalize()}:** {verdict['claim']}.")
        yield from _table(verdict["numbers"])
        yield ""


def _wrapped(text: str) -> str:
    return textwrap.fill(text, 120, break_long_words=False, break_on_hyphens=False) + "\n"


def _table(numbers: Mapping[str, Mapping[str, float | None]]) -> Iterator[str]:
    columns = list(dict.fromkeys(column for row in numbers.values() for column in row))
    yield _row(["", *columns])
    yield "|---" + "|---:" * len(columns) + "|"
    for row, values in numbers.items():
        yield _row([row, *(_number(values.get(column, math.nan)) for column in columns)])


def _row(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _number(value: float | None) -> str:
    if value is None:
        return "inf"
    return "" if math.isnan(value) else f"{value:.3g}"


def _word(verdict: Mapping[str, Any]) -> str:
    return "met" if verdict["met"] else "not met"


def take_over(folder: Path) -> None:
    """Copy results and pictures from there. Exits where a figure is missing."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    missing = {figure.name for figure in choose(["all"])} - set(results["figures"])
    if missing:
        sys.exit(f"{folder} has no figure {', '.join(sorted(missing))}: run `gemps reproduce all --output {folder}`")
    PICTURES.mkdir(parents=True, exist_ok=True)
    for figure in results["figures"].values():
        shutil.copy(folder / figure["picture"], PICTURES / figure["picture"])
    RESULTS.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--from", type=Path, dest="folder", metavar="FOLDER")
    parser.add_argument("--out", type=Path, default=PAGE)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        take_over(arguments.folder)
    arguments.out.write_text(page(json.loads(RESULTS.read_text(encoding="utf-8"))), encoding="utf-8")
