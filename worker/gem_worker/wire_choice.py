"""Chooses the wire types of a worker whose user named none.

The goal is an exchange that takes at most a quarter of a step. What a narrower type saves depends on the network, which
only a run can tell, so the first exchanges are measured: the time beyond the round trips is taken to grow with the
bytes that travel, and the widest pair of a short ladder that reaches the goal is used from then on. After a change the
same is measured once more. That may lead to a still narrower pair or, if fewer bytes took as long as before (a server
without processor time, for example), back to the first. That is all, so a run cannot go on changing.

Nothing is chosen where the user named wire types or the network, where the server is on this machine (shared memory, or
a loopback that no bytes can fill), and in round-robin runs, which repeat bit for bit. The number of steps between two
exchanges changes what a run computes, so it stays the user's decision; the log names it where it would be needed.
"""

import os
from statistics import median
from typing import NamedTuple, get_args

from gem_core.wire_types import WireType, encoded_bytes
from gem_worker.client import Client, ClientEvent, EventKind, Membership, ServerRefusedError
from gem_worker.client.outgoing_commit import round_trips
from gem_worker.client.settings import NETWORK_VARIABLE, WIRE_VARIABLES
from gem_worker.settings import REMOVED_WIRE_TYPES, NetworkName, WireName
from gem_worker.transfer import Transfer
from gem_worker.wire_names import WIRE_TYPES

Pair = tuple[WireName, WireName]

# Of deltas and parameters, from 8 bytes a parameter to 1. What they cost in loss: docs/deploy.md, "Capacity".
LADDER: tuple[Pair, ...] = (
    ("float32", "float32"),
    ("bfloat16", "bfloat16"),
    ("int4", "bfloat16"),
    ("int4", "int4"),
)
LARGEST_SHARE = 0.25
# Narrower types that shorten a step by less are not worth their rounding.
LEAST_GAIN = 0.05
# A change that saves less of what was predicted is undone: something else than the network limits the exchange.
LEAST_SAVED = 0.1
# Exchanges of a measurement, after one that also opens a connection and allocates memory.
EXCHANGES = 5
MOST_MEASUREMENTS = 2
MORE_LOCAL_STEPS = "take more steps between two exchanges (gemps serve --local-steps 4, or every=8 with optimizer=)"


class Offer(NamedTuple):
    """Wire types that a worker offers, best first; `is_open`: whether they may be changed after a measurement."""

    deltas: tuple[WireType, ...]
    parameters: tuple[WireType, ...]
    is_open: bool


class Timing(NamedTuple):
    """Medians over a few steps, in seconds.

    Attributes:
        rest: computing and copying, from the end of one exchange to the begin of the next.
        exchange: from the begin of a commit to the last byte of its reply.
        round_trip: of an empty call.
    """

    rest: float
    exchange: float
    round_trip: float

    @property
    def share(self) -> float:
        """The exchange's share of a step."""
        return self.exchange / (self.rest + self.exchange)


class Choice(NamedTuple):
    """A pair of wire types, and how long the exchange then takes by the prediction, in seconds."""

    pair: Pair
    exchange: float


def offer(delta_wire: WireName | None, parameter_wire: WireName | None, network: NetworkName | None) -> Offer:
    """What a worker offers, by its arguments and the environment. Raises ValueError for an unknown name."""
    chosen = network if network is not None else os.environ.get(NETWORK_VARIABLE) or "auto"
    if chosen not in get_args(NetworkName):
        source = NETWORK_VARIABLE if network is None else "network"
        raise ValueError(f"{source}={chosen!r} is no network here; use one of {', '.join(get_args(NetworkName))}")
    named = [_named("delta_wire", delta_wire), _named("parameter_wire", parameter_wire)]
    is_open = named == [None, None]
    default = LADDER[-1] if is_open and chosen == "slow" else LADDER[0]
    deltas, parameters = (
        tuple(dict.fromkeys((WIRE_TYPES[wire or other], WireType.FLOAT32)))
        for wire, other in zip(named, default, strict=True)
    )
    return Offer(deltas, parameters, is_open and chosen == "auto")


def _named(argument: str, name: WireName | None) -> WireName | None:
    variable = WIRE_VARIABLES[argument]
    chosen, source = (os.environ.get(variable) or None, variable) if name is None else (name, argument)
    if chosen in REMOVED_WIRE_TYPES:
        raise ValueError(f"{source}={chosen!r} is gone: use {REMOVED_WIRE_TYPES[chosen]}")
    found: WireName | None = next((known for known in WIRE_TYPES if known == chosen), None)
    if chosen is not None and found is None:
        raise ValueError(f"{source}={chosen!r} is no wire type here; use one of {', '.join(WIRE_TYPES)}")
    return found


def choose(timing: Timing, current: Pair, elements: int) -> Choice:
    """Choose among `current` and the narrower pairs.

    The widest pair with which the exchange takes at most a quarter of a step by the prediction; if there is none, the
    widest whose steps are at most LEAST_GAIN longer than those with the fastest.

    Args:
        timing: what was measured with `current`.
        current: a pair of LADDER.
        elements: parameters that one server holds.
    """
    known = Choice(current, timing.exchange)
    if timing.share <= LARGEST_SHARE:
        return known
    choices = [known, *(_predict(timing, current, pair, elements) for pair in LADDER[LADDER.index(current) + 1 :])]
    for one in choices:
        if one.exchange <= LARGEST_SHARE * (timing.rest + one.exchange):
            return one
    fastest = timing.rest + min(one.exchange for one in choices)
    return next(one for one in choices if timing.rest + one.exchange <= (1 + LEAST_GAIN) * fastest)


def _predict(timing: Timing, current: Pair, pair: Pair, elements: int) -> Choice:
    for_bytes = max(0.0, timing.exchange - _waits(timing, current, elements))
    ratio = _bytes(pair, elements) / max(1, _bytes(current, elements))
    return Choice(pair, min(timing.exchange, _waits(timing, pair, elements)) + for_bytes * ratio)


def _bytes(pair: Pair, elements: int) -> int:
    return sum(encoded_bytes(WIRE_TYPES[wire], elements) for wire in pair)


def _waits(timing: Timing, pair: Pair, elements: int) -> float:
    """Seconds of an exchange's round trips."""
    return timing.round_trip * round_trips(encoded_bytes(WIRE_TYPES[pair[0]], elements))


class WireChoice:
    """Measures a worker's exchanges, and changes its wire types. Used in the training thread alone.

    Attributes:
        is_settled: nothing more is measured.
    """

    def __init__(self, client: Client, transfer: Transfer, membership: Membership, elements: int) -> None:
        """Begin to measure, unless this run or its server leaves nothing to choose; `elements`: the model's."""
        self._client = client
        self._transfer = transfer
        self._elements = elements // (1 + len(membership.shards))
        self._pair = LADDER[0]
        self._measurements = 0
        self._times: list[tuple[float, float]] = []
        self._round_trip: float | None = None
        self._has_named_local_steps = False
        # What was measured before the last change, and how long the exchange should take since.
        self._before: tuple[Choice, float] | None = None
        is_plain = membership.wire_types == (WireType.FLOAT32, WireType.FLOAT32)
        is_repeatable = membership.run_settings.order == "round-robin"
        self.is_settled = client.is_server_here or is_repeatable or not is_plain

    def add(self, rest: float, exchange: float) -> ClientEvent | None:
        """Take the times of a step whose commit was applied; change the wire types if it is time to.

        Args:
            rest: seconds of computing and copying before the exchange.
            exchange: seconds of the exchange.

        Returns:
            What to tell the user, after a measurement that changes something, or that finds nothing that would help.
        """
        if self.is_settled:
            return None
        if not self._times:
            self._ask_round_trip()
        self._times.append((rest, exchange))
        if len(self._times) <= EXCHANGES:
            return None
        self._ask_round_trip()
        rests, exchanges = zip(*self._times[1:], strict=True)
        timing = Timing(median(rests), median(exchanges), self._round_trip or 0.0)
        self._times.clear()
        self._measurements += 1
        choice = self._decide(timing)
        changes = choice.pair != self._pair
        self.is_settled = not changes or self._measurements == MOST_MEASUREMENTS
        if changes:
            choice = self._change(timing, choice)
        is_too_long = choice.exchange > LARGEST_SHARE * (timing.rest + choice.exchange)
        if not changes and not (is_too_long and not self._has_named_local_steps):
            return None
        self._has_named_local_steps |= is_too_long
        is_back = changes and choice.pair == LADDER[0]
        text = _describe(timing, choice, changes=changes, is_back=is_back, is_too_long=is_too_long)
        return ClientEvent(EventKind.WIRE_TYPES, text)

    def _decide(self, timing: Timing) -> Choice:
        if self._before is not None:
            before, predicted = self._before
            if timing.exchange > before.exchange - LEAST_SAVED * (before.exchange - predicted):
                return before
        return choose(timing, self._pair, self._elements)

    def _ask_round_trip(self) -> None:
        """Keep the fastest round trip: others meet busy processors, and what other workers send."""
        found = self._client.round_trip()
        known = (one for one in (found, self._round_trip) if one is not None)
        self._round_trip = min(known, default=None)

    def _change(self, timing: Timing, choice: Choice) -> Choice:
        """Change to the chosen pair; without memory at the server for differences, to the one before."""
        try:
            membership = self._client.change_wire_types(*map(WIRE_TYPES.__getitem__, choice.pair))
        except ServerRefusedError as refusal:
            before = LADDER[LADDER.index(choice.pair) - 1]
            if refusal.reason != "MEMORY" or before == self._pair:
                raise
            return self._change(timing, _predict(timing, self._pair, before, self._elements))
        self._transfer.change_wire_types(membership.delta_wire_type, membership.parameter_wire_type.of_whole)
        self._before = Choice(self._pair, timing.exchange), choice.exchange
        self._pair = choice.pair
        return choice


def _describe(timing: Timing, choice: Choice, *, changes: bool, is_back: bool, is_too_long: bool) -> str:
    step = timing.rest + timing.exchange
    told = f"the exchange takes {_shown(timing.exchange)} of a step's {_shown(step)} ({timing.share:.0%})"
    if is_back:
        told += (
            f" with fewer bytes, and {_shown(choice.exchange)} before: the network does not limit it, so deltas and "
            "parameters travel as float32 again"
        )
    elif changes:
        deltas, parameters = choice.pair
        told += (
            f", so from now on deltas travel as {deltas} and parameters as {parameters}, which should take "
            f"{_shown(choice.exchange)}. To fix it: --network fast or slow, {NETWORK_VARIABLE}, or name the wire types "
            "(delta_wire=, parameter_wire=)"
        )
    else:
        told += ", and narrower wire types would save little"
    return told + (f". To shorten it further, {MORE_LOCAL_STEPS}" if is_too_long else "")


def _shown(seconds: float) -> str:
    return f"{1000 * seconds:.3g} ms" if seconds < 1 else f"{seconds:.3g} s"
