"""Generates docs/reproduction.md from docs/reproduction.json (`python docs/generate_reproduction.py`).

With `--beyond` it generates docs/beyond.md from docs/beyond.json, which has what is not in the paper. `--from FOLDER`
first copies results.json and the pictures that `gemps reproduce` wrote to a folder. Figures that are not in the folder
are kept, if they were made with the same versions and scope. `--out FILE` writes the page to another file, for the test
that compares it with the committed one.
"""

import argparse
import json
import math
import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gem_reproduction.figures import ALL, BEYOND, choose

DOCS = Path(__file__).resolve().parent
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
  are against worker steps, too. At equal samples one worker's loss is lower:
  [beyond.md](beyond.md#samples--training-loss-against-samples-and-against-worker-steps).
- Commits are applied in a constant round-robin order, unless a figure says otherwise. The order of arrival is part of
  the experiment: see 1b.
- A claim that **must hold** and does not is a fault of gemps, and the command exits with 1. Whether the others
  are met depends on data and length as well.
- One worker under GEM is not momentum SGD: its update is sign(delta) · min(|m|, 5 |delta|). Nothing here expects it.
"""

BEYOND_INTRODUCTION = """\
<!-- Written by docs/generate_reproduction.py from docs/beyond.json: run `gemps reproduce beyond`, then it. -->
# Beyond the paper

What the paper has no figure of: ten update rules on one server, GEM's settings, fewer bits on the wire, workers that
are not alike, a search for a better default, and losses at equal samples. The runs are as those of
[the paper's figures](reproduction.md), and **L** is the same: the mean cross-entropy of the central variable over the
whole training set at the end. The **held-out loss** is over samples outside of the training set, as is accuracy.
None of these claims must hold; the page reports what came. This page was made from its results:

{made_with}

```sh show
gemps reproduce {command}
python docs/generate_reproduction.py --beyond --from runs/reproduction
```

In the tables n = 1 is one worker alone. Sweeps, wire types and heterogeneity compare settings of several workers, and
one worker alone has not run there; [samples](#samples--training-loss-against-samples-and-against-worker-steps) sets it
beside them. Over the seeds losses are geometric means; inf: a run diverged. A claim was written down before its runs
were made. What was run stands with each figure. These are short runs of small models: they compare rules under equal
terms, and do not say how far each could be tuned.
"""


@dataclass(frozen=True, slots=True)
class Page:
    """One of the two pages: its name, its group of figures in `gemps reproduce`, its beginning, whose claims it has."""

    name: str
    group: str
    introduction: str
    claim: str

    @property
    def results(self) -> Path:
        """The path of the results that the page is made from."""
        return DOCS / f"{self.name}.json"

    @property
    def text(self) -> Path:
        """Return the path of the page that is generated."""
        return DOCS / f"{self.name}.md"

    def figures(self) -> list[str]:
        """The names of the figures that the page shows."""
        return [figure.name for figure in choose([self.group])]


THE_PAPER = Page("reproduction", ALL, INTRODUCTION, "The paper claims:")
BEYOND_IT = Page("beyond", BEYOND, BEYOND_INTRODUCTION, "What was asked:")


def page(which: Page, results: Mapping[str, Any]) -> str:
    """Return the page of what `gemps reproduce` found."""
    figures: Mapping[str, Any] = results["figures"]
    parts = [
        which.introduction.format(made_with=_made_with(which, results), command=_command(which, results)),
        "## Verdicts\n",
    ]
    parts.append("\n".join(_summary(figures) if figures else ["None yet."]) + "\n")
    for name, figure in figures.items():
        parts.append("\n".join(_section(which, name, figure)))
    return "\n".join(parts)


def _made_with(which: Page, results: Mapping[str, Any]) -> str:
    scope = results["scope"]
    if not results["figures"]:
        return "nothing yet."
    versions = f"gemps {results['gemps']}, PyTorch {results['torch']}, Python {results['python']}."
    if which is BEYOND_IT:  # where models, steps and seeds differ by figure
        return f"{scope['task']}, {'the quick form' if scope['quick'] else 'the full form'}; {versions}"
    return f"{scope['model']} on {scope['task']}, {scope['steps']} steps a worker, {scope['seeds']} seeds; {versions}"


def _command(which: Page, results: Mapping[str, Any]) -> str:
    scope = results["scope"]
    flags = [which.group, *(["--quick"] if scope["quick"] else [])]
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


def _section(which: Page, name: str, figure: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {figure['title']}\n"
    yield f"![{figure['title']}](images/reproduction/{figure['picture']})\n"
    yield _wrapped(f"**{'The claim:' if name == 'exchanges' else which.claim}** {figure['claim']}")
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


def take_over(which: Page, folder: Path) -> None:
    """Copy the results and pictures of the page's figures from a folder. Ends the process if a figure is missing."""
    results = json.loads((folder / "results.json").read_text(encoding="utf-8"))
    new = {name: figure for name, figure in results["figures"].items() if name in which.figures()}
    before = json.loads(which.results.read_text(encoding="utf-8"))
    is_alike = all(results[key] == before[key] for key in ("gemps", "torch", "python", "scope"))
    known = (before["figures"] if is_alike else {}) | new
    missing = [name for name in which.figures() if name not in known]
    if missing:
        sys.exit(f"{folder} has no figure {', '.join(missing)}: run `gemps reproduce {which.group} --output {folder}`")
    results["figures"] = {name: known[name] for name in which.figures()}
    PICTURES.mkdir(parents=True, exist_ok=True)
    for figure in new.values():
        shutil.copy(folder / figure["picture"], PICTURES / figure["picture"])
    which.results.write_text(json.dumps(results, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--beyond", action="store_const", dest="which", const=BEYOND_IT, default=THE_PAPER)
    parser.add_argument("--from", type=Path, dest="folder", metavar="FOLDER")
    parser.add_argument("--out", type=Path)
    arguments = parser.parse_args()
    if arguments.folder is not None:
        take_over(arguments.which, arguments.folder)
    text = page(arguments.which, json.loads(arguments.which.results.read_text(encoding="utf-8")))
    (arguments.out or arguments.which.text).write_text(text, encoding="utf-8")
