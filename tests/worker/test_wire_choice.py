"""A worker whose user named no wire types chooses them by its first exchanges (gem_worker/wire_choice.py)."""

import math
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import ClientSettings, Observer, ParameterServer
from gem_worker.client import ClientEvent, EventKind, ServerRefusedError
from gem_worker.settings import NetworkName, WireName
from gem_worker.wire_choice import EXCHANGES, LADDER, MOST_MEASUREMENTS, Pair, Timing, WireChoice, choose, offer
from gem_worker.wire_names import WIRE_TYPES
from torch import nn
from torch.optim import SGD

from gem_core.wire_types import WireType
from tests.client.cutting_proxy import CuttingProxy, Direction
from tests.shards.behind_proxies import HOST
from tests.shards.group import serving
from tests.worker.loops import train
from tests.worker.serving import ServerThread
from tests.worker.zoo import make

PLAIN, HALF, QUARTER, EIGHTH = LADDER
MILLION = 1_000_000
FEATURES = 40_000  # 160 kB as float32, each way
MEASURED = 1 + EXCHANGES  # steps of a measurement
CHANGED = "WIRE_TYPE_INT4_BLOCK", "WIRE_TYPE_INT4_BLOCK"
UNCHANGED = "WIRE_TYPE_FLOAT32", "WIRE_TYPE_FLOAT32"


@pytest.mark.parametrize(
    ("timing", "current", "elements", "expected"),
    [
        # Rest, exchange and round trip in seconds. 1 M parameters at 1000, 100 and 10 Mbit/s take 64, 640 and 6400 ms.
        pytest.param(Timing(0.3, 0.064, 0.001), PLAIN, MILLION, PLAIN, id="fast-enough"),
        pytest.param(Timing(0.3, 0.1, 0.001), PLAIN, MILLION, PLAIN, id="exactly-a-quarter"),
        pytest.param(Timing(0.1, 0.064, 0.001), PLAIN, MILLION, HALF, id="half-the-bytes-suffice"),
        pytest.param(Timing(0.08, 0.08, 0.001), PLAIN, MILLION, QUARTER, id="narrow-deltas-suffice"),
        pytest.param(Timing(0.3, 0.64, 0.001), PLAIN, MILLION, EIGHTH, id="narrow-parameters-too"),
        pytest.param(Timing(0.1, 6.4, 0.001), PLAIN, MILLION, EIGHTH, id="nothing-suffices"),
        pytest.param(Timing(0.0, 1.0, 0.0), PLAIN, MILLION, EIGHTH, id="no-computing-at-all"),
        # An exchange that is all round trips does not become shorter: nothing is gained by rounding.
        pytest.param(Timing(0.01, 0.2, 0.1), PLAIN, MILLION, PLAIN, id="only-round-trips"),
        pytest.param(Timing(0.01, 0.2, 0.3), PLAIN, MILLION, PLAIN, id="round-trips-measured-too-long"),
        pytest.param(Timing(0.01, 0.24, 0.1), PLAIN, MILLION, QUARTER, id="mostly-round-trips"),
        # 20 000 parameters of float32 are sent after a round trip, and without it as int4.
        pytest.param(Timing(0.01, 0.2, 0.1), PLAIN, 20_000, HALF, id="a-whole-delta-saves-a-round-trip"),
        # The second measurement goes on from the pair in use, and never back.
        pytest.param(Timing(0.3, 0.15, 0.001), HALF, MILLION, QUARTER, id="narrower-again"),
        pytest.param(Timing(0.3, 0.01, 0.001), HALF, MILLION, HALF, id="not-back"),
        pytest.param(Timing(0.1, 6.4, 0.001), EIGHTH, MILLION, EIGHTH, id="the-end-of-the-ladder"),
    ],
)
def test_the_widest_pair_with_which_the_exchange_takes_a_quarter_is_chosen(
    timing: Timing, current: Pair, elements: int, expected: Pair
) -> None:
    choice = choose(timing, current, elements)
    assert choice.pair == expected
    assert choice.exchange <= timing.exchange


def test_a_prediction_takes_the_time_beyond_round_trips_to_grow_with_the_bytes() -> None:
    assert choose(Timing(0.4, 0.22, 0.01), PLAIN, MILLION) == (HALF, pytest.approx(0.02 + 0.2 / 2))


@pytest.mark.parametrize(
    ("wires", "network", "environment", "expected", "is_open"),
    [
        ((None, None), None, {}, PLAIN, True),
        ((None, None), "auto", {}, PLAIN, True),
        ((None, None), "fast", {}, PLAIN, False),
        ((None, None), "slow", {}, EIGHTH, False),
        ((None, None), None, {"GEMPS_NETWORK": "slow"}, EIGHTH, False),
        ((None, None), "fast", {"GEMPS_NETWORK": "slow"}, PLAIN, False),
        (("float32", None), None, {}, PLAIN, False),
        ((None, "bfloat16"), "slow", {}, ("float32", "bfloat16"), False),
        ((None, None), None, {"GEMPS_DELTA_WIRE": "sparse"}, ("sparse", "float32"), False),
    ],
)
def test_named_wire_types_and_networks_leave_nothing_to_choose(
    wires: tuple[WireName | None, WireName | None],
    network: NetworkName | None,
    environment: dict[str, str],
    expected: Pair,
    is_open: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    offered = offer(*wires, network)
    assert (offered.deltas[0], offered.parameters[0]) == tuple(WIRE_TYPES[one] for one in expected)
    assert offered.is_open is is_open
    assert {offered.deltas[-1], offered.parameters[-1]} == {WireType.FLOAT32}


def test_an_unknown_network_is_refused_with_its_source(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ValueError, match=r"network='wifi' is no network here; use one of auto, fast, slow"):
        offer(None, None, "wifi")  # type: ignore[arg-type]
    monkeypatch.setenv("GEMPS_NETWORK", "lan")
    with pytest.raises(ValueError, match="GEMPS_NETWORK='lan' is no network here"):
        offer(None, None, None)


class ScriptedClient:
    """A client, and a transfer, that only note what is chosen; `refuses`: parameters without memory at the server."""

    is_server_here = False

    def __init__(self, refuses: WireType | None = None) -> None:
        self._refuses = refuses
        self.chosen: list[tuple[WireType, WireType]] = []
        self.membership: Any = Membership()

    def round_trip(self) -> float:
        return 0.001

    def change_wire_types(self, deltas: WireType, parameters: WireType) -> Any:
        if parameters is self._refuses:
            raise ServerRefusedError("MEMORY", "no room", retry_after=10.0)
        self.chosen.append((deltas, parameters))
        self.membership.wire_types = self.membership.delta_wire_type, self.membership.parameter_wire_type = (
            deltas,
            parameters,
        )
        return self.membership


class Membership:
    """Of a run in first-come order."""

    shards = ()
    wire_types = (WireType.FLOAT32, WireType.FLOAT32)
    delta_wire_type = parameter_wire_type = WireType.FLOAT32

    class run_settings:  # noqa: N801 - an attribute's name
        order = "fifo"


def scripted(client: ScriptedClient) -> Callable[[float, float], list[ClientEvent]]:
    """A choice by this client; the result feeds it a whole measurement, and returns what it told."""
    transfer: Any = ScriptedClient()
    choice = WireChoice(client, transfer, client.membership, MILLION)  # type: ignore[arg-type]

    def measure(rest: float, exchange: float) -> list[ClientEvent]:
        told = [choice.add(0.0, 60.0), *(choice.add(rest, exchange) for _ in range(EXCHANGES))]
        assert transfer.chosen[-1:] == [(one[0], one[1].of_whole) for one in client.chosen[-1:]]
        return [one for one in told if one is not None]

    return measure


def test_a_measurement_is_repeated_once_and_only_makes_the_types_narrower() -> None:
    client = ScriptedClient()
    measure = scripted(client)
    assert "deltas travel as bfloat16 and parameters as bfloat16" in measure(0.1, 0.064)[0].message
    assert "deltas travel as int4 and parameters as bfloat16" in measure(0.1, 0.04)[0].message
    for exchange in (10.0, 0.001, 10.0):
        assert measure(0.1, exchange) == []
    assert len(client.chosen) == MOST_MEASUREMENTS


def test_a_change_that_saves_nothing_is_undone_for_good() -> None:
    client = ScriptedClient()
    measure = scripted(client)
    measure(0.1, 6.4)
    (event,) = measure(0.1, 6.2)
    assert "with fewer bytes, and 6.4 s before: the network does not limit it" in event.message
    assert [one[0] for one in client.chosen] == [WireType.INT4_BLOCK, WireType.FLOAT32]
    assert measure(0.1, 6.4) == []


def test_an_exchange_that_is_short_enough_is_measured_once_without_a_word() -> None:
    client = ScriptedClient()
    measure = scripted(client)
    assert measure(0.3, 0.064) == measure(0.3, 9.0) == []
    assert client.chosen == []


def test_where_even_the_narrowest_types_do_not_suffice_the_line_names_local_steps_once() -> None:
    client = ScriptedClient()
    measure = scripted(client)
    (event,) = measure(0.1, 6.4)
    assert event.kind is EventKind.WIRE_TYPES
    assert "the exchange takes 6.4 s of a step's 6.5 s (98%)" in event.message
    assert "should take 827 ms" in event.message
    assert "--network fast" in event.message
    assert "--local-steps" in event.message
    assert measure(0.1, 0.9) == []


def test_round_trips_that_narrow_types_do_not_save_are_told_and_nothing_changes() -> None:
    client = ScriptedClient()
    (event,) = scripted(client)(0.0005, 0.0021)
    assert "narrower wire types would save little. To shorten it further, take more steps between" in event.message
    assert client.chosen == []


def test_without_memory_for_differences_parameters_stay_whole() -> None:
    client = ScriptedClient(refuses=WireType.INT4_BLOCK)
    (event,) = scripted(client)(0.1, 6.4)
    assert client.chosen == [(WireType.INT4_BLOCK, WireType.BFLOAT16)]
    assert "deltas travel as int4 and parameters as bfloat16" in event.message


class SlowProxy(CuttingProxy):
    """Forwards so many bytes a second in each direction of a connection."""

    def __init__(self, port: int, rate: float) -> None:
        self._rate = rate
        super().__init__(port, listen=(HOST, port))

    def _take(self, direction: Direction, count: int) -> int:
        time.sleep(count / self._rate)
        return super()._take(direction, count)


@contextmanager
def far_away(shards: int, lane: bool, rate: float = 1e6, **settings: Any) -> Iterator[tuple[str, str]]:
    """Servers behind slow links; yields the primary's address there, and the near one."""
    with serving(shards, lane_port=0 if lane else -1, eta=0.05, **settings) as group, ExitStack() as stack:
        for server in group.servers:
            for port in (server.port, *([server.server.lane.port] if lane else [])):
                stack.callback(SlowProxy(port, rate).close)
        yield f"{HOST}:{group.servers[0].port}", group.address


def model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Linear(FEATURES, 1, bias=False)


def take_steps(ps: ParameterServer, count: int) -> list[float]:
    """Fit the sum of the inputs; return the losses."""
    losses = []
    inputs = torch.randn(8, FEATURES, generator=torch.Generator().manual_seed(1)) / FEATURES**0.5
    for _ in range(count):
        loss = (ps.model(inputs).squeeze(1) - inputs.sum(1)).square().mean()
        loss.backward()
        losses.append(ps.step(loss, 8).loss or 0.0)
    return losses


def connect(address: str, events: list[ClientEvent], **settings: Any) -> ParameterServer:
    lane = settings.pop("lane", False)
    client_settings = ClientSettings(connect_timeout=60, lane=lane)
    return ParameterServer(
        address, model(), on_event=events.append, client_settings=client_settings, **({"name": "w"} | settings)
    )


def statuses(address: str) -> dict[str, Any]:
    with Observer(address) as observer:
        return {one["name"]: one for one in observer.get_status()["workers"]}


def wires_of(status: Any) -> tuple[str, str]:
    return status["delta_wire_type"], status["parameter_wire_type"]


@pytest.mark.parametrize("shards", [1, 2])
@pytest.mark.parametrize("lane", [False, True], ids=["gRPC", "lane"])
def test_a_worker_behind_a_slow_link_changes_its_wire_types_once_and_trains_on(shards: int, lane: bool) -> None:
    events: list[ClientEvent] = []
    steps = MOST_MEASUREMENTS * MEASURED + 3
    with far_away(shards, lane) as (address, near), connect(address, events, lane=lane) as ps:
        losses = take_steps(ps, MEASURED)
        assert wires_of(statuses(near)["w"]) != UNCHANGED
        losses += take_steps(ps, MEASURED)
        settled = wires_of(statuses(near)["w"])
        losses += take_steps(ps, steps - 2 * MEASURED)
        seen = statuses(near)["w"]
        assert ps.client.transport == ("lane" if lane else "grpc")
        # Each step was applied, once, in the same session.
        assert ps.applied_steps == int(seen["commits"]) == steps
        assert (int(seen["sessions"]), wires_of(seen)) == (1, settled)
        assert settled != UNCHANGED
        assert ps.version is not None
        assert ps.version.clock == 1 + steps
        installed = ps.model.weight.detach().clone()
        _, newest, _ = ps._require_joined()
        ps.client.pull(newest.reply)
        newest.arrived()
        newest.install()
        torch.testing.assert_close(installed, ps.model.weight.detach(), atol=2e-3, rtol=0)
    # A busy machine computes for longer, so a pair in between may do at first.
    assert 1 <= sum("travel as" in event.message for event in events) <= MOST_MEASUREMENTS
    assert losses == sorted(losses, reverse=True)
    assert losses[-1] < 0.8 * losses[0]


def test_movements_of_an_optimizer_go_on_in_the_new_wire_types() -> None:
    """The worker's parameters stay those of the run, as near as int4 differences bring them."""
    events: list[ClientEvent] = []
    with far_away(1, lane=True) as (address, near):
        trained = model()
        optimizer = SGD(trained.parameters(), lr=0.01)
        ps = ParameterServer(address, trained, optimizer=optimizer, name="w", on_event=events.append)
        with ps:
            losses = take_steps(ps, MEASURED + 5)
            seen = statuses(near)["w"]
            assert wires_of(seen) != UNCHANGED
            assert int(seen["commits"]) == MEASURED + 5
    assert [event.kind for event in events if "travel as" in event.message] == [EventKind.WIRE_TYPES]
    assert losses == sorted(losses, reverse=True)


def test_of_two_workers_only_the_one_behind_the_slow_link_changes() -> None:
    events: list[ClientEvent] = []
    with (
        far_away(1, lane=True) as (address, near),
        connect(near, events, name="near", lane=True) as first,
        connect(address, events, name="far", lane=True) as second,
    ):
        for _ in range(MEASURED + 2):
            take_steps(first, 1)
            take_steps(second, 1)
        found = statuses(near)
        assert wires_of(found["near"]) == UNCHANGED != wires_of(found["far"])
        assert [int(one["commits"]) for one in found.values()] == [MEASURED + 2] * 2
        assert first.version is not None
        assert second.version is not None
        assert second.version.clock == 1 + 2 * (MEASURED + 2)
    assert [event.kind for event in events] == [EventKind.WIRE_TYPES]


@pytest.mark.parametrize("kind", ["perceptron", "batch-norm", "channels-last", "mixed-types", "tied-weights"])
def test_models_of_every_memory_layout_follow_a_change_and_undo_steps_of_their_own(kind: str) -> None:
    """What was received before a change can still be installed after it."""
    with ServerThread(rule="downpour", eta=0.01) as server, ParameterServer(server.address, make(kind)) as ps:
        _, transfer, _ = ps._require_joined()
        for pair in (*LADDER, PLAIN):
            ps.client.change_wire_types(*(WIRE_TYPES[one] for one in pair))
            wire_types = ps.client.membership.wire_types
            transfer.change_wire_types(wire_types[0], wire_types[1].of_whole)
            before = {name: value.clone() for name, value in ps.model.state_dict().items()}
            with torch.no_grad():
                for parameter in ps.model.parameters():
                    parameter.add_(1.0)
            transfer.install()
            after = ps.model.state_dict()
            assert all(torch.equal(value, after[name]) for name, value in before.items())
            assert all(map(math.isfinite, train(ps, 2)))
        trained = {name: value.clone() for name, value in ps.model.state_dict().items()}
        ps.client.pull(transfer.reply)
        transfer.arrived()
        transfer.install()
        assert all(torch.equal(value, trained[name]) for name, value in ps.model.state_dict().items())


@pytest.mark.parametrize(
    ("of_worker", "of_server", "expected"),
    [
        pytest.param({"delta_wire": "float32"}, {}, UNCHANGED, id="named"),
        pytest.param({"network": "fast"}, {}, UNCHANGED, id="fast"),
        pytest.param({"network": "slow"}, {}, CHANGED, id="slow"),
        pytest.param({}, {"order": "round-robin", "min_workers": 1}, UNCHANGED, id="round-robin"),
    ],
)
def test_named_types_networks_and_repeatable_runs_measure_nothing(
    of_worker: dict[str, Any], of_server: dict[str, Any], expected: tuple[str, str]
) -> None:
    events: list[ClientEvent] = []
    with far_away(1, lane=True, rate=20e6, **of_server) as (address, near):
        with connect(address, events, lane=True, **of_worker) as ps:
            assert wires_of(statuses(near)["w"]) == expected
            take_steps(ps, MEASURED + 1)
            assert wires_of(statuses(near)["w"]) == expected
        # What a worker had is told after it has left, too.
        assert wires_of(statuses(near)["w"]) == expected
    assert events == []


def test_shared_memory_is_kept(tmp_path: Path) -> None:
    events: list[ClientEvent] = []
    with serving(1, sockets=tmp_path) as group, connect(group.address, events) as ps:
        assert ps.shares_memory
        take_steps(ps, MEASURED + 1)
        assert ps.shares_memory
        assert wires_of(statuses(group.address)["w"]) == UNCHANGED
    assert events == []
