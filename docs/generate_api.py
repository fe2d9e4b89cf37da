"""Generate the pages in docs/api from the docstrings of the Python API (`python docs/generate_api.py`).

The pages are committed, so that they can be read in a checkout and on a forge, and not only on the site. `PAGES` has
their text; a line `::: MODULE.NAME` there stands for a class or function. Sources are parsed, so that an optional
library need not be installed. `--out FOLDER` writes elsewhere, for the freshness test.
"""

import argparse
import ast
import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

FOLDER = Path(__file__).resolve().parent / "api"

HEAD = "<!-- Written by docs/generate_api.py from the docstrings: change those, and run it. -->\n"

PAGES = {
    "workers.md": """\
# Python: workers

A training script needs `gemps.ParameterServer`; `Observer`, `evaluate_server` and `evaluate_run` read a run without
joining it. [Settings](../settings.md#client-library) lists the fields of `ClientSettings`, and those of
`EvaluatorSettings`.

::: gem_worker.ParameterServer
::: gem_worker.StepReport
::: gem_worker.Membership
::: gem_worker.ClientSettings
::: gem_worker.Observer
::: gem_worker.evaluate_server
::: gem_worker.evaluate_checkpoint
::: gem_worker.EvaluationResult
::: gem_worker.evaluate_run
::: gem_worker.EvaluatorSettings
::: gem_worker.Followed

## Callbacks

[Trainer, Lightning, Accelerate](../tutorials/trainer.md) shows them.

::: gemps.integrations.transformers.GempsCallback
::: gemps.integrations.lightning.GempsCallback

## Errors

::: gem_worker.RunFinishedError
::: gem_worker.ServerUnavailableError
::: gem_worker.ServerRefusedError
::: gem_worker.UnsupportedModelError
::: gem_worker.UnsupportedOptimizerError
::: gem_worker.DivergedError
""",
    "launch.md": """\
# Python: serve, launch, load

From scripts and notebooks, on one machine. [A notebook](../tutorials/notebook.ipynb) shows all of it.

::: gem_launch.launch
::: gem_launch.LaunchError
::: gem_launch.serve
::: gem_launch.RunningServer
::: gem_launch.ServerProcessError
::: gem_launch.load
::: gem_launch.LoadedRun
::: gem_launch.RunFilesError
""",
    "rules.md": """\
# Python: update rules

[How to write a rule](../rules.md#a-rule-of-your-own) has an example.

::: gem_core.UpdateRule
::: gem_core.Setting
::: gem_core.Statistics
::: gem_core.RuleState
::: gem_core.WorkerStep
::: gem_core.create_rule
::: gem_core.RuleError
""",
    "simulation.md": """\
# Python: simulation

[Simulation](../simulation.md) explains times, exchanges and the columns of `History`;
[settings](../settings.md#simulation) lists the fields of `SimulationSettings`.

::: gem_simulator.simulate
::: gem_simulator.replay_recording
::: gem_simulator.read_recorded
::: gem_simulator.SimulationSettings
::: gem_simulator.SimulationResult
::: gem_simulator.History
::: gem_simulator.Evaluation
::: gem_simulator.Commit
::: gem_simulator.SimulationError
""",
}

Function = ast.FunctionDef | ast.AsyncFunctionDef

# Sections of a Google docstring.
_SECTIONS = {"Args:": "Arguments", "Attributes:": "Attributes", "Raises:": "Raises", "Returns:": "Returns"}
_WIDTH = 100


def page(text: str) -> str:
    """The page in Markdown, with what its `:::` lines stand for."""
    lines = []
    for line in text.splitlines():
        lines += described(line.removeprefix("::: ")) if line.startswith("::: ") else [line]
    return HEAD + "\n".join(lines).rstrip() + "\n"


def described(name: str) -> Iterator[str]:
    """Lines about the class or function `name`, with a heading."""
    node = definition(name)
    module, _, short = name.rpartition(".")
    # Callbacks have the same name in several modules.
    yield f"## `{name if '.integrations.' in module else short}`\n"
    if isinstance(node, ast.ClassDef):
        yield from described_class(node)
    else:
        yield from described_function(node)


def definition(name: str) -> ast.ClassDef | Function:
    """The source of a public class or function. Raises LookupError."""
    module, _, short = name.rpartition(".")
    if ".integrations." in module:
        spec = find_spec(module)
        file = spec.origin if spec is not None else None
    else:
        file = inspect.getsourcefile(getattr(importlib.import_module(module), short))
    if file is None:
        raise LookupError(f"{name}: has no source file")
    for node in ast.parse(Path(file).read_text(encoding="utf-8")).body:
        if isinstance(node, ast.ClassDef | Function) and node.name == short:
            return node
    raise LookupError(f"{name}: is not defined in {file}")


def described_class(node: ast.ClassDef) -> Iterator[str]:
    """Constructor, docstring and public members."""
    members = [one for one in node.body if isinstance(one, Function)]
    creates = next((one for one in members if one.name == "__init__"), None)
    # docs/settings.md has the fields of settings classes.
    has_page = "BaseSettings" in {ast.unparse(base) for base in node.bases}
    fields = [one for one in node.body if isinstance(one, ast.AnnAssign) and is_public(one.target)]
    if creates is not None:
        yield signature(node.name, creates, skip=1)
    elif fields and not has_page:
        yield fenced(f"class {node.name}:", [field(one) for one in fields])
    yield from markdown(ast.get_docstring(node))
    if creates is not None:
        yield from markdown(ast.get_docstring(creates))
    for one in members:
        if one.name.startswith("_") or not ast.get_docstring(one):
            continue
        yield f"### `{node.name}.{one.name}`\n"
        decorators = {ast.unparse(decorator).rpartition(".")[2] for decorator in one.decorator_list}
        if not decorators & {"property", "cached_property"}:
            yield signature(one.name, one, skip=0 if "staticmethod" in decorators else 1)
        elif one.returns is not None:
            yield f"Attribute of type `{type_name(one.returns)}`.\n"
        yield from markdown(ast.get_docstring(one))


def described_function(node: Function) -> Iterator[str]:
    """Return a definition's signature and its docstring, as Markdown."""
    yield signature(node.name, node)
    yield from markdown(ast.get_docstring(node))


def is_public(target: ast.expr) -> bool:
    """Whether an annotated name of a class is public."""
    return isinstance(target, ast.Name) and not target.id.startswith("_")


def signature(name: str, node: Function, *, skip: int = 0) -> str:
    """A fenced block with the signature, without the first `skip` arguments (self)."""
    arguments = node.args
    plain = [*arguments.posonlyargs, *arguments.args]
    defaults = [None] * (len(plain) - len(arguments.defaults)) + list(arguments.defaults)
    parts = [argument(one, default) for one, default in zip(plain, defaults, strict=True)][skip:]
    if arguments.vararg is not None:
        parts.append("*" + argument(arguments.vararg, None))
    elif arguments.kwonlyargs:
        parts.append("*")
    parts += [argument(one, default) for one, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    if arguments.kwarg is not None:
        parts.append("**" + argument(arguments.kwarg, None))
    returns = "" if node.returns is None or node.name == "__init__" else f" -> {type_name(node.returns)}"
    line = f"{name}({', '.join(parts)}){returns}"
    if len(line) <= _WIDTH:
        return fenced(line, [])
    return fenced(f"{name}(", [f"{part}," for part in parts], f"){returns}")


def argument(node: ast.arg, default: ast.expr | None) -> str:
    """An argument with its type and default."""
    annotated = node.arg if node.annotation is None else f"{node.arg}: {type_name(node.annotation)}"
    if default is None:
        return annotated
    equals = "=" if node.annotation is None else " = "
    return f"{annotated}{equals}{ast.unparse(default)}"


def field(node: ast.AnnAssign) -> str:
    """A field of a dataclass with its type, and with its default if that is a plain value."""
    default = f" = {ast.unparse(node.value)}" if node.value is not None and not isinstance(node.value, ast.Call) else ""
    # The formatter, which reads this as a class, wants its own quotes.
    return f"{ast.unparse(node.target)}: {type_name(node.annotation)}{default}".replace("''", '""')


def type_name(annotation: ast.expr) -> str:
    """An annotation as text, without the quotes of one that is a string."""
    if isinstance(annotation, ast.Constant) and isinstance(annotation.value, str):
        return annotation.value
    return ast.unparse(annotation)


def fenced(first: str, lines: list[str], last: str = "") -> str:
    """A block of Python, with `lines` indented."""
    return "\n".join(["```python", first, *(f"    {line}" for line in lines), *([last] if last else []), "```\n"])


def markdown(docstring: str | None) -> Iterator[str]:
    """The paragraphs of a docstring; arguments and errors become lists."""
    if docstring is None:
        return
    section = ""
    for line in docstring.splitlines():
        if line in _SECTIONS:
            section = line
            yield f"**{_SECTIONS[line]}**\n"
        elif not section:
            yield line if line.startswith("    ") else escaped(line)
        elif entry := re.match(r"    (\*{0,2}\w[\w., ]*): (.*)", line):
            yield f"- `{entry[1]}`: {escaped(entry[2])}"
        elif re.match(r"    \w", line) and section != "Returns:":
            yield f"- `{line.strip()}`"
        else:
            yield f"  {escaped(line.strip())}" if line.strip() else ""
    yield ""


def escaped(text: str) -> str:
    """Text in which a forge shows `<` as such, outside of code spans."""
    return "".join(part if part.startswith("`") else part.replace("<", "&lt;") for part in re.split(r"(`[^`]*`)", text))


def main() -> None:
    """Write all pages of docs/api."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=FOLDER)
    folder: Path = parser.parse_args().out
    for name, text in PAGES.items():
        (folder / name).write_text(page(text), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main())
