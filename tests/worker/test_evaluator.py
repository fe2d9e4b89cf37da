"""An evaluator beside a real server and real workers: what it evaluates, when it ends, what it keeps."""

import base64
import json
import math
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
from gem_worker import (
    ClientSettings,
    EvaluatorSettings,
    Followed,
    Observer,
    ServerRefusedError,
    TaskError,
    WorkerSettings,
    evaluate_checkpoint,
    evaluate_run,
    work,
)
from gem_worker.best import BestCheckpoint
from gem_worker.client import ClientEvent, EventKind
from safetensors.torch import load_file, save_file

from tests.waiting import eventually
from tests.worker.serving import PATIENCE, ServerThread

SETTINGS = WorkerSettings(device="cpu", batch_size=32)
IMPATIENT = {"backoff_first": 0.01, "backoff_limit": 0.05, "connect_timeout": 60.0}
FOR_EVER = {"commits": 100_000_000, "eta": 0.1, "threads": 1}


@contextmanager
def working(address: str, name: str = "w", **client: Any) -> Iterator[threading.Thread]:
    """A worker on a thread; it ends with its run."""
    codes: list[int] = []
    settings = SETTINGS.model_copy(update={"server": address, "worker_name": name, "log_interval": 1000.0})
    thread = threading.Thread(target=lambda: codes.append(work(settings, ClientSettings(**(IMPATIENT | client)))))
    thread.start()
    yield thread
    thread.join(PATIENCE)
    assert codes == [0]


def follow(address: str, *, client: dict[str, Any] | None = None, **evaluator: Any) -> Iterator[Followed]:
    return evaluate_run(
        address,
        SETTINGS,
        EvaluatorSettings(**({"evaluation_interval": 0.2} | evaluator)),
        name="me",
        client_settings=ClientSettings(**(IMPATIENT | (client or {}))),
        on_event=lambda _: None,
    )


def clock(found: Followed) -> int:
    assert found.result.version is not None
    return found.result.version.clock


def test_the_run_ends_at_the_target_and_the_best_parameters_are_kept(tmp_path: Path) -> None:
    best = tmp_path / "best"
    with ServerThread(**FOR_EVER) as server, working(server.address):
        found = list(follow(server.address, stop_at_accuracy=0.9, keep_best=best))
        with Observer(server.address) as observer:
            status, history = observer.get_status(), observer.get_history()
    accuracies = [one.result.accuracy for one in found]
    assert [one.is_best for one in found] == [one > max([-1.0, *accuracies[:at]]) for at, one in enumerate(accuracies)]
    assert [one.stops_run for one in found] == [
        one >= 0.9 and max([0.0, *accuracies[:at]]) < 0.9 for at, one in enumerate(accuracies)
    ]
    assert sum(one.stops_run for one in found) == 1
    assert [clock(one) for one in found] == sorted({clock(one) for one in found})
    # The last version was evaluated, too, and the server has the curve.
    assert status["run_state"] == "RUN_STATE_FINISHED"
    assert clock(found[-1]) == status["version"]["clock"]
    assert [one["accuracy"] for one in history["evaluations"]] == accuracies
    assert {one["evaluator"] for one in history["evaluations"]} == {"me"}
    kept = json.loads((best / "best.json").read_text(encoding="utf-8"))
    assert kept["accuracy"] == max(accuracies) == status["best_evaluation"]["accuracy"]
    digest = base64.b64decode(status["layout_digest"]).hex()
    assert (kept["task"], kept["model"], kept["layout_digest"]) == ("digits", "mlp", digest)
    assert evaluate_checkpoint(best, SETTINGS).accuracy == max(accuracies)
    assert sorted(path.name for path in best.iterdir()) == ["best.json", "model.safetensors"]


def test_a_server_that_ends_with_its_run_waits_for_the_last_evaluation() -> None:
    with ServerThread(steps=20, min_workers=2, exit_when_finished=True, exit_grace=1e6, threads=1) as server:
        serving = threading.Thread(target=lambda: server.run(server.server.wait_until_done()))
        serving.start()
        # So seldom that nothing but the first version is due before the end.
        following = follow(server.address, evaluation_interval=1000.0)
        with working(server.address, "first"):
            assert clock(next(following)) == 1
            with working(server.address, "second"):
                assert clock(next(following)) == 41
        assert serving.is_alive()  # though both have left
        assert list(following) == []
        serving.join(PATIENCE)
        assert not serving.is_alive()


def test_it_waits_for_a_server_that_comes_later_and_goes_on_with_one_that_is_restarted(tmp_path: Path) -> None:
    with ServerThread() as first:
        address = first.address  # a port that is free afterwards
    events: list[ClientEvent] = []
    met: list[Followed] = []
    following = evaluate_run(
        address,
        SETTINGS,
        EvaluatorSettings(evaluation_interval=0.2),
        client_settings=ClientSettings(**IMPATIENT),
        on_event=events.append,
    )
    evaluator = threading.Thread(target=lambda: met.extend(following))

    def saw(kind: EventKind) -> bool:
        return any(event.kind is kind for event in events)

    durable = {**FOR_EVER, "bind": address, "data_dir": tmp_path, "resume": True}
    evaluator.start()
    eventually(lambda: saw(EventKind.WAITING_FOR_SERVER))
    with ServerThread(**durable) as server, working(address) as worker:
        eventually(lambda: server.server.evaluations.newest is not None)
        server.stop()
        eventually(lambda: saw(EventKind.CONNECTION_LOST))
        with ServerThread(**durable) as again:
            eventually(lambda: again.server.evaluations.newest is not None)
            with Observer(address) as observer:
                observer.control("finish", "enough")
            evaluator.join(PATIENCE)
            assert not evaluator.is_alive()
            worker.join(PATIENCE)  # it must hear of the end before the server goes
    assert len({one.result.version.incarnation for one in met if one.result.version}) == 2


def test_who_may_only_watch_is_told_that_ending_a_run_takes_an_operator(tmp_path: Path) -> None:
    secrets = {role: f"{role}-0123456789abcdef" for role in ("worker", "observer", "operator")}
    tokens = tmp_path / "tokens"
    tokens.write_text("".join(f"{role} {secret}\n" for role, secret in secrets.items()), encoding="utf-8")
    tokens.chmod(0o600)
    with ServerThread(**FOR_EVER, tokens=tokens) as server, working(server.address, token=secrets["worker"]):
        with pytest.raises(ServerRefusedError, match=r"may not end the run: .* operator") as refusal:
            list(follow(server.address, stop_at_accuracy=0.01, client={"token": secrets["observer"]}))
        assert refusal.value.reason == "ROLE"
        with Observer(server.address, settings=ClientSettings(token=secrets["operator"])) as observer:
            assert observer.get_status()["run_state"] == "RUN_STATE_TRAINING"
            observer.control("finish", "enough")


# -- what is kept ------------------------------------------------------------------------------------------------------


def facts(accuracy: float, layout_digest: str = "00") -> dict[str, Any]:
    return {"accuracy": accuracy, "layout_digest": layout_digest}


def model(value: float) -> dict[str, torch.Tensor]:
    """With two names for one tensor, as tied weights have."""
    weight = torch.full((2, 3), value)
    return {"weight": weight, "tied": weight}


def kept(folder: Path) -> tuple[float, float]:
    """(accuracy as best.json has it, value of the parameters)."""
    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["weight"], tensors["tied"])
    return json.loads((folder / "best.json").read_text())["accuracy"], float(tensors["weight"][0, 0])


def test_only_better_ones_replace_what_is_kept_also_after_a_restart(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "best"
    first = BestCheckpoint(folder)
    assert first.offer(model(1), facts(0.5))
    assert not first.offer(model(2), facts(0.5))
    again = BestCheckpoint(folder)
    assert not again.offer(model(3), facts(0.4))
    assert kept(folder) == (0.5, 1)
    assert again.offer(model(4), facts(0.6))
    assert kept(folder) == (0.6, 4)


@pytest.mark.parametrize(
    "broken",
    [{"loss": math.inf}, {"loss": -math.inf}, {"loss": math.nan}, {"loss": 0.5, "bits_per_character": math.inf}],
)
def test_parameters_whose_loss_is_not_finite_are_never_the_best(broken: dict[str, Any], tmp_path: Path) -> None:
    folder = BestCheckpoint(tmp_path)
    assert not folder.offer(model(1), facts(0.9) | broken)
    assert folder.accuracy is None
    assert folder.offer(model(2), facts(0.1) | {"loss": 2.5})
    assert not folder.offer(model(3), facts(1.0) | broken)
    assert kept(tmp_path) == (0.1, 2)


def test_finite_parameters_replace_infinite_ones_that_an_older_version_kept(tmp_path: Path) -> None:
    old = facts(0.95) | {"loss": math.inf}
    save_file({"weight": torch.zeros(2, 3)}, tmp_path / "model.safetensors", {"gemps_best": json.dumps(old)})
    assert BestCheckpoint(tmp_path).offer(model(1), facts(0.2) | {"loss": 2.0})
    assert kept(tmp_path) == (0.2, 1)


def test_a_crash_between_the_two_files_is_mended_by_the_next_start(tmp_path: Path) -> None:
    BestCheckpoint(tmp_path).offer(model(1), facts(0.5))
    (tmp_path / "best.json").write_text(json.dumps(facts(0.1)), encoding="utf-8")
    BestCheckpoint(tmp_path)
    assert kept(tmp_path) == (0.5, 1)


def test_anothers_model_is_left_as_it_is(tmp_path: Path) -> None:
    file = tmp_path / "model.safetensors"
    save_file({"weight": torch.zeros(1)}, file)
    before = file.read_bytes()
    with pytest.raises(TaskError, match="another folder"):
        BestCheckpoint(tmp_path)
    file.write_bytes(b"damaged")
    with pytest.raises(TaskError, match="damaged"):
        BestCheckpoint(tmp_path)
    file.write_bytes(before)
    assert [path.name for path in tmp_path.iterdir()] == ["model.safetensors"]


def test_one_folder_is_for_one_model(tmp_path: Path) -> None:
    BestCheckpoint(tmp_path).offer(model(1), facts(0.5))
    with pytest.raises(TaskError, match="one for each run"):
        BestCheckpoint(tmp_path).offer(model(2), facts(0.9, layout_digest="01"))
    assert kept(tmp_path) == (0.5, 1)


def test_a_folder_that_cannot_be_made_is_told_before_anything_else(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(TaskError, match="cannot be kept in"):
        next(follow("127.0.0.1:9", keep_best=tmp_path / "file" / "best"))
