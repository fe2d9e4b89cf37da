import pytest
from gem_server.state.schedule import EtaSchedule


def test_constant_eta_stays() -> None:
    schedule = EtaSchedule("constant", 0.05)
    assert [schedule.at(commits) for commits in (0, 1, 10**9)] == [0.05] * 3


def test_warm_up_rises_linearly_to_the_full_value() -> None:
    schedule = EtaSchedule("constant", 0.1, warmup=4)
    assert [schedule.at(commits) for commits in range(6)] == pytest.approx([0.025, 0.05, 0.075, 0.1, 0.1, 0.1])


def test_step_schedule_multiplies_after_every_interval_counted_from_the_warm_up() -> None:
    schedule = EtaSchedule("step", 1.0, warmup=10, step_every=100, step_factor=0.5)
    assert [schedule.at(commits) for commits in (10, 109, 110, 209, 210)] == pytest.approx([1, 1, 0.5, 0.5, 0.25])


def test_cosine_schedule_goes_from_eta_to_eta_min_and_stays_there() -> None:
    schedule = EtaSchedule("cosine", 1.0, decay_commits=100, eta_min=0.2)
    assert [schedule.at(commits) for commits in (0, 50, 100, 500)] == pytest.approx([1.0, 0.6, 0.2, 0.2])
