"""Which runs the study has: methods, and the cells in which they are compared (docs/default.md)."""

from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.default_study.arithmetic import Gem
from benchmarks.default_study.training import EXPONENTIAL, ROUND_ROBIN, SLOW_QUARTER, Method, Run

# Text: of an AdamW script. Digits: of an Adam script, PyTorch's defaults.
_DECAY = 0.1
_ADAMW = Method("", beta2=0.99, decay=_DECAY, schedule=True)
_ADAM = Method("", beta2=0.999)
_AHEAD = Method("spectral", momentum=0.9)
_THIRD = 1 / 3
_SIGNED = Gem(momentum=0.0, kappa=2.0, pi_max=1.0, signed_gap=True)


def _script(optimizer: str, *, schedule: bool = False, **options: object) -> dict[str, Method]:
    own = Method("synchronous", optimizer=optimizer, options=options, schedule=schedule)
    return {f"{optimizer} alone": own, f"{optimizer} moved": replace(own, kind="movement", rule=_SIGNED)}


# The one that the pilot chose.
_AHEAD_OF_ALL = "ahead, kappa 2, signed"

METHODS: Mapping[str, Method] = {
    **_script("AdamW", schedule=True, betas=(0.9, 0.99), weight_decay=_DECAY),
    **_script("Adam"),
    **_script("Adadelta"),
    **_script("SGD", momentum=0.9),
    "AdamW: rms, a third": replace(_ADAMW, kind="rms", factor=_THIRD),
    "AdamW: rms": replace(_ADAMW, kind="rms"),
    "AdamW: spectral, a third": replace(_ADAMW, kind="spectral", factor=_THIRD),
    "AdamW: spectral": replace(_ADAMW, kind="spectral"),
    "AdamW: ahead": replace(_ADAMW, kind="spectral", momentum=0.9, rule=_SIGNED),
    "Adam: rms, a third": replace(_ADAM, kind="rms", factor=_THIRD),
    "Adam: rms": replace(_ADAM, kind="rms"),
    "gem": Method("gradient"),
    "auto": Method("spectral"),
    "ahead": replace(_AHEAD, rule=Gem(0.0, 1.0, 1.0)),
    "ahead, signed": replace(_AHEAD, rule=Gem(0.0, 1.0, 1.0, signed_gap=True)),
    _AHEAD_OF_ALL: replace(_AHEAD, rule=_SIGNED),
    "auto, signed": Method("spectral", rule=Gem(signed_gap=True)),
}

_OF_ADAMW = ("AdamW: spectral", "AdamW: spectral, a third", "AdamW: rms, a third")
_OF_ADAM = ("Adam: rms", "Adam: rms, a third")
Cells = tuple[tuple[int, str], ...]

TEXT, MLP, CNN = "text, 28 k", "digits, mlp", "digits, cnn"
TEXT_107, TEXT_388, FASHION = "text, 107 k", "text, 388 k", "fashion-mnist, cnn"
# Steps of each worker.
_STEPS, _STEPS_OF_MANY = 300, 75
_CELLS = ((1, ROUND_ROBIN), (3, EXPONENTIAL), (8, EXPONENTIAL))
_MORE_CELLS = ((8, ROUND_ROBIN), (32, EXPONENTIAL))
_RATES = (0.002, 0.0005, 0.004, 0.001)


def translations(
    case: str, alone: str, methods: tuple[str, ...], rates: tuple[float, ...], seed: int, cells: Cells = _CELLS
) -> Iterator[Run]:
    """A script's optimizer as n workers have it, and alone with the steps of one worker and of all together.

    The longest of these, of 8 workers, only with the first rate.
    """
    for rate in rates:
        for workers, order in cells:
            steps = steps_of(workers)
            yield Run(case, alone, rate, 1, ROUND_ROBIN, steps, seed)
            for method in methods:
                yield Run(case, method, rate, workers, order, workers * steps, seed)
            if workers <= 3 or rate == rates[0]:
                yield Run(case, alone, rate, 1, ROUND_ROBIN, workers * steps, seed)


def high_rates(methods: tuple[str, ...], seed: int) -> Iterator[Run]:
    """Rates above those that are compared; besides, synchronous AdamW with an 8-fold batch, and `rms` with factor 1."""
    yield Run(TEXT, "AdamW alone", 0.002, 8, ROUND_ROBIN, 8 * _STEPS, seed)
    yield Run(TEXT, "AdamW: rms", 0.002, 8, EXPONENTIAL, 8 * _STEPS, seed)
    for rate in (0.008, 0.016):
        yield Run(TEXT, "AdamW alone", rate, 1, ROUND_ROBIN, _STEPS, seed)
        for workers, order in ((1, ROUND_ROBIN), (8, EXPONENTIAL)):
            for method in methods[:2]:
                yield Run(TEXT, method, rate, workers, order, workers * _STEPS, seed)


def steps_of(workers: int) -> int:
    """Return how many steps each worker takes."""
    return _STEPS if workers <= 8 else _STEPS_OF_MANY


# Of many workers: as in docs/transformer.json, whose gem and synchronous runs are compared with.
TEXT_GRADIENTS, TEXT_GRADIENTS_OF_MANY, DIGITS_GRADIENTS = 2400, 4685, 2694
TEXT_CELLS = ((1, ROUND_ROBIN), (8, EXPONENTIAL), (32, EXPONENTIAL), (100, EXPONENTIAL), (32, ROUND_ROBIN))
DIGITS_CELLS = ((1, ROUND_ROBIN), (8, EXPONENTIAL), (32, EXPONENTIAL), (32, ROUND_ROBIN))


def defaults(case: str, methods: Mapping[str, tuple[float, ...]], cells: Cells, seed: int) -> Iterator[Run]:
    """Declare the runs that compare defaults for scripts without an optimizer."""
    for workers, order in cells:
        many = TEXT_GRADIENTS_OF_MANY if workers >= 32 else TEXT_GRADIENTS
        gradients = many if case.startswith("text") else DIGITS_GRADIENTS
        for method, rates in methods.items():
            for rate in rates:
                yield Run(case, method, rate, workers, order, gradients, seed)


def pilot() -> Iterator[Run]:
    """Learning rates of the candidates with momentum ahead of the direction, before they are compared with `auto`."""
    tried = {"auto": (0.002,), "ahead, signed": (0.004, 0.008), "ahead": (0.004,)}
    tried |= {_AHEAD_OF_ALL: (0.004,), "auto, signed": (0.002,)}
    for method, rates in tried.items():
        for rate in rates:
            yield Run(TEXT, method, rate, 8, EXPONENTIAL, 2400, 0)


def own_steps(seed: int) -> Iterator[Run]:
    """Any other optimizer: its own step, at every step."""
    scripts = ((MLP, "Adadelta", 1.0), (MLP, "SGD", 0.02), (TEXT, "AdamW", 0.002))
    for case, optimizer, rate in scripts:
        for workers in (1, 3, 8):
            yield Run(case, f"{optimizer} alone", rate, 1, ROUND_ROBIN, workers * _STEPS, seed)
            for order in (ROUND_ROBIN, EXPONENTIAL) if workers > 1 else (ROUND_ROBIN,):
                yield Run(case, f"{optimizer} moved", rate, workers, order, workers * _STEPS, seed)


# The second part: momentum before the direction, more models, and what decides.
_AHEAD_OF_ADAMW = ("AdamW: ahead", "AdamW: spectral")
_SECOND_CELLS = ((1, ROUND_ROBIN), (8, EXPONENTIAL), (32, ROUND_ROBIN), (100, EXPONENTIAL), (32, SLOW_QUARTER))
_SECOND_RATES = (0.002, 0.001, 0.004)


def second_adamw(seed: int) -> Iterator[Run]:
    """Declare the runs that decide about a translated AdamW: rule 4."""
    for rate in _SECOND_RATES:
        for case in (TEXT_107, TEXT):
            cells: Cells = (*_CELLS, (8, ROUND_ROBIN))
            yield from translations(case, "AdamW alone", _AHEAD_OF_ADAMW, (rate,), seed, cells)
    yield from translations(TEXT_107, "AdamW alone", _AHEAD_OF_ADAMW, (0.002,), seed, ((32, EXPONENTIAL),))


def second_default(seed: int) -> Iterator[Run]:
    """Declare the runs that decide about the default without an optimizer: rule 5, and claims D1 and D2."""
    candidates = {_AHEAD_OF_ALL: (0.002,), "auto": (0.002,)}
    images = candidates | {"gem": (0.05, 0.2)}
    yield from defaults(TEXT_107, candidates, _SECOND_CELLS, seed)
    yield from defaults(CNN, images, _SECOND_CELLS, seed)
    yield from defaults(MLP, images, _SECOND_CELLS, seed)
    yield from defaults(TEXT, candidates, _SECOND_CELLS, seed)
    for workers, order in ((1, ROUND_ROBIN), (8, EXPONENTIAL), (32, ROUND_ROBIN)):
        for method in candidates:
            yield Run(TEXT_388, method, 0.002, workers, order, TEXT_GRADIENTS // 2, seed)
    for workers, order in _SECOND_CELLS[:3]:
        for method, rates in images.items():
            for rate in rates:
                yield Run(FASHION, method, rate, workers, order, TEXT_GRADIENTS, seed)


def second_etas(seed: int) -> Iterator[Run]:
    """Declare the runs of a wrong eta: 3 times too small and too large."""
    for case in (TEXT, TEXT_107, MLP, CNN):
        yield from defaults(case, {_AHEAD_OF_ALL: (0.0007, 0.006)}, _SECOND_CELLS[1:3], seed)


# Case, script, methods and stages of a table.
TRANSLATED = (
    (TEXT, "AdamW alone", _OF_ADAMW, ("adamw",)),
    (MLP, "Adam alone", _OF_ADAM, ("adam", "high rates of adam")),
    (CNN, "Adam alone", _OF_ADAM, ("adam",)),
    (TEXT, "AdamW alone", _AHEAD_OF_ADAMW, ("second adamw",)),
    (TEXT_107, "AdamW alone", _AHEAD_OF_ADAMW, ("second adamw",)),
)
# What is compared as the default, with its eta.
DEFAULTS = (("auto", 0.002), (_AHEAD_OF_ALL, 0.004), ("gem", 0.05), ("gem", 0.2))
SECOND_DEFAULTS = (("auto", 0.002), (_AHEAD_OF_ALL, 0.002), ("gem", 0.05), ("gem", 0.2))


def stage(name: str, seed: int) -> Iterator[Run]:
    """Declare a stage's runs, those that decide most first."""
    match name:
        case "pilot":
            yield from pilot()
        case "adamw":
            yield from translations(TEXT, "AdamW alone", _OF_ADAMW, _RATES, seed)
            yield from translations(TEXT, "AdamW alone", _OF_ADAMW, (0.002,), seed, _MORE_CELLS)
            for workers, order in _CELLS:
                yield Run(TEXT, "auto", 0.002, workers, order, workers * steps_of(workers), seed)
        case "high rates":
            yield from high_rates(_OF_ADAMW, seed)
        case "high rates of adam":
            yield from translations(MLP, "Adam alone", _OF_ADAM, (0.008, 0.016), seed)
            yield from translations(MLP, "Adam alone", _OF_ADAM, (0.002,), seed, _MORE_CELLS)
        case "adam":
            yield from translations(MLP, "Adam alone", _OF_ADAM, _RATES, seed)
            yield from translations(CNN, "Adam alone", _OF_ADAM, (0.001, 0.002), seed)
        case "default":
            for method, rate in ((_AHEAD_OF_ALL, 0.004), ("auto", 0.002)):
                yield from defaults(TEXT, {method: (rate,)}, TEXT_CELLS, seed)
        case "less":
            yield from defaults(MLP, {_AHEAD_OF_ALL: (0.002,)}, DIGITS_CELLS, seed)
            yield from defaults(TEXT, {_AHEAD_OF_ALL: (0.002,)}, TEXT_CELLS[:2], seed)
        case "many":
            yield Run(TEXT, _AHEAD_OF_ALL, 0.008, 100, EXPONENTIAL, TEXT_GRADIENTS_OF_MANY, seed)
            yield Run(TEXT, _AHEAD_OF_ALL, 0.004, 100, ROUND_ROBIN, TEXT_GRADIENTS_OF_MANY, seed)
            yield Run(TEXT, "auto", 0.002, 100, ROUND_ROBIN, TEXT_GRADIENTS_OF_MANY, seed)
        case "seeds":
            for method, rate in ((_AHEAD_OF_ALL, 0.004), ("auto", 0.002)):
                yield from defaults(TEXT, {method: (rate,)}, TEXT_CELLS[:2], seed)
        case "etas":
            yield from defaults(TEXT, {_AHEAD_OF_ALL: (0.002,)}, TEXT_CELLS[3:], seed)
            yield from defaults(TEXT, {"auto": (0.0007, 0.006), _AHEAD_OF_ALL: (0.0013, 0.012)}, TEXT_CELLS[1:2], seed)
        case "digits":
            yield from defaults(
                MLP, {"auto": (0.002,), _AHEAD_OF_ALL: (0.004,), "gem": (0.05, 0.2)}, DIGITS_CELLS, seed
            )
        case "second adamw":
            yield from second_adamw(seed)
        case "second default":
            yield from second_default(seed)
        case "second etas":
            yield from second_etas(seed)
        case "own":
            yield from own_steps(seed)
        case _:
            raise ValueError(f"{name}: there is no such stage")
