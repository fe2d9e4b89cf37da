from pathlib import Path

import pytest
from PIL import Image

from benchmarks import bench_picture
from benchmarks.harness.results import Spread
from benchmarks.peers.interface import Case
from tests.benchmarks.samples import MIDDLE, results, run

FEW = (run("gemps-float32", 20), run("ray-actor", 50), run("memory-copy", 300))
MORE = (run("gemps-float32", 18, case=Case(4_194_304, 16)), run("ray-actor", 40, case=Case(4_194_304, 16)))


def test_bars_are_sorted_and_named() -> None:
    found = bench_picture.bars(results(*FEW), MIDDLE)
    assert [(bar.title, bar.kind, bar.rates.median) for bar in found] == [
        ("gemps, float32", "gemps", 20),
        ("Ray actor", "peer", 50),
        ("memory copy", "limit", 300),
    ]


def test_curves_need_two_points() -> None:
    assert bench_picture.curves(results(*FEW), MIDDLE.parameters) == {}
    found = bench_picture.curves(results(*FEW, *MORE), MIDDLE.parameters)
    assert found["gemps-float32"] == [(4, Spread(20, 20, 20)), (16, Spread(18, 18, 18))]
    assert list(found) == ["gemps-float32", "ray-actor"]


@pytest.mark.parametrize("runs", [FEW, FEW + MORE])
def test_both_pictures_are_drawn_from_a_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, runs: tuple) -> None:
    results(*runs).save(tmp_path / "bench.json")
    picture = tmp_path / "docs" / "picture.png"
    monkeypatch.setattr("sys.argv", ["bench_picture.py", str(tmp_path / "bench.json"), str(picture)])
    bench_picture.main()
    light, dark = (
        Image.open(file).convert("RGB").getpixel((0, 0)) for file in (picture, picture.with_stem("picture-dark"))
    )
    assert (light, dark) == ((255, 255, 255), (13, 17, 23))


def test_curves_may_come_from_another_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    results(*FEW).save(tmp_path / "bench.json")
    results(*FEW, *MORE).save(tmp_path / "more.json")
    monkeypatch.chdir(tmp_path)
    plain, both, own = "plain.png", "both.png", "own.png"
    for arguments in (
        ["bench.json", plain],
        ["bench.json", both, "--curves", "more.json"],
        ["more.json", own, "--parameters", str(MIDDLE.parameters)],
    ):
        monkeypatch.setattr("sys.argv", ["bench_picture.py", *arguments])
        bench_picture.main()
    found = {name: Image.open(name).convert("RGB").tobytes() for name in (plain, both, own)}
    assert found[both] == found[own] != found[plain]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["none.json"], "none.json is not there: `make bench` writes it"),
        (["bench.json", "p.png", "--curves", "no.json"], "no.json is not there"),
        (["bench.json", "p.png", "--workers", "7"], "7 workers"),
    ],
)
def test_what_is_not_there_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], said: str
) -> None:
    results(*FEW).save(tmp_path / "bench.json")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["bench_picture.py", *arguments])
    with pytest.raises(SystemExit, match=said):
        bench_picture.main()
