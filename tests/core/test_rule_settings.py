from __future__ import annotations

import math

import numpy as np
import pytest

from gem_core import RuleError, RuleState, SizeMismatchError, create_rule, rule_names
from gem_core.rules import known_settings


def test_every_rule_of_the_design_is_known() -> None:
    field = ("dc-asgd", "gap-aware", "ringmaster", "easgd", "dana", "agn", "delayed-nesterov")
    later = ("fedbuff", "fadas", "ace", "ormo", "ringmaster-lmo")
    assert rule_names() == ("gem", "downpour", "adaptive-staleness", *field, *later)
    for name in rule_names():
        assert create_rule(name).name == name


def test_defaults_of_gem_are_those_of_the_design() -> None:
    expected = {"momentum": 0.9, "kappa": 1.0, "pi_min": 0.0, "pi_max": 5.0, "epsilon": 1e-12, "weight_decay": 0.0}
    expected |= {"local_steps": 1.0, "local_rate": 0.3, "signed_gap": 0.0}
    assert dict(create_rule("gem").settings) == expected
    assert {setting.name: setting.default for setting in known_settings("gem")} == expected
    assert dict(create_rule("downpour").settings) == {"weight_decay": 0.0}
    assert dict(create_rule("ringmaster").settings) == {"threshold": 16.0}
    assert dict(create_rule("gem", kappa=2).settings) == expected | {"kappa": 2.0}


def test_settings_cannot_be_changed_afterwards() -> None:
    with pytest.raises(TypeError):
        create_rule("gem").settings["kappa"] = 2  # type: ignore[index]


def test_memory_of_a_worker_is_as_many_vectors_as_announced() -> None:
    parameters = np.zeros(10, np.float32)
    for rule in (*map(create_rule, rule_names()), create_rule("easgd", momentum=0.5)):
        state = rule.new_worker(parameters)
        vectors = (state.snapshot, *state.vectors)
        assert [vector.nbytes for vector in vectors] == [40] * rule.vectors_per_worker
        assert not any(np.shares_memory(vector, parameters) for vector in vectors)


def test_an_unknown_rule_is_refused_with_those_that_exist() -> None:
    with pytest.raises(RuleError, match="no update rule 'adam'; choose one of: gem, downpour, adaptive-staleness"):
        create_rule("adam")
    with pytest.raises(RuleError, match="no update rule"):
        known_settings("adam")


def test_an_unknown_setting_is_refused_with_those_that_exist() -> None:
    with pytest.raises(RuleError, match="'gem' has no setting 'mu'; its settings are: momentum, kappa, pi_min, pi_max"):
        create_rule("gem", mu=0.9)
    with pytest.raises(RuleError, match="'downpour' has no setting 'kappa'; its settings are: weight_decay"):
        create_rule("downpour", kappa=1)


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("momentum", 1.0, r"momentum = 1 is out of range; choose 0 to 0\.9999"),
        ("momentum", -0.1, r"momentum = -0\.1 is out of range"),
        ("kappa", -1, "kappa = -1 is out of range; choose 0 to"),
        ("epsilon", 0, "epsilon = 0 is out of range; choose 1e-30 to 1"),
        ("pi_min", 6, "pi_min = 6 is above pi_max = 5"),
        ("pi_max", -1, "pi_min = 0 is above pi_max = -1"),
        ("kappa", math.nan, "kappa = nan is not a finite number"),
        ("pi_max", math.inf, "pi_max = inf is not a finite number"),
        ("kappa", "2", "kappa = '2' is not a finite number"),
        ("kappa", True, "kappa = True is not a finite number"),
    ],
)
def test_values_out_of_range_are_refused_with_the_range(setting: str, value: float, message: str) -> None:
    with pytest.raises(RuleError, match=message):
        create_rule("gem", **{setting: value})


@pytest.mark.parametrize("what", ["parameters", "snapshot", "delta"])
@pytest.mark.parametrize(
    "wrong",
    [np.zeros(9, np.float32), np.zeros(10, np.float64), np.zeros(20, np.float32)[::2], np.zeros((10, 1), np.float32)],
    ids=["length", "type", "strides", "dimensions"],
)
def test_vectors_that_do_not_fit_are_refused_and_nothing_changes(what: str, wrong: np.ndarray) -> None:
    rule = create_rule("downpour")
    arrays = {name: np.ones(10, np.float32) for name in ("parameters", "snapshot", "delta")}
    state = rule.new_worker(arrays["snapshot"])
    if what == "snapshot":
        state.snapshot = wrong
    else:
        arrays[what] = wrong
    with pytest.raises(SizeMismatchError, match="float32 vectors of one length"):
        rule.commit(arrays["parameters"], state, arrays["delta"], 0)
    assert all(array.min() == array.max() for array in (*arrays.values(), state.snapshot))


def test_arrays_of_several_dimensions_are_refused() -> None:
    rule, theta = create_rule("downpour"), np.ones((5, 2), np.float32)
    with pytest.raises(SizeMismatchError, match="float32 vectors of one length"):
        rule.commit(theta, RuleState(theta.copy()), theta.copy(), 0)


@pytest.mark.parametrize("what", ["parameters", "snapshot", "moment"])
def test_vectors_that_cannot_be_written_are_refused_and_nothing_changes(what: str) -> None:
    rule = create_rule("gem")
    arrays = {name: np.ones(10, np.float32) for name in ("parameters", "snapshot", "moment")}
    arrays[what].flags.writeable = False
    with pytest.raises(TypeError, match="readonly array"):
        rule.commit(
            arrays["parameters"], RuleState(arrays["snapshot"], (arrays["moment"],)), np.ones(10, np.float32), 0
        )
    assert all(array.min() == array.max() == 1 for array in arrays.values())


def test_a_delta_between_addresses_of_elements_is_refused() -> None:
    rule, theta = create_rule("downpour"), np.ones(10, np.float32)
    delta = np.frombuffer(bytes(41), np.float32, 10, 1)
    with pytest.raises(SizeMismatchError, match=r"delta: float32 of shape \(10,\); .* aligned"):
        rule.commit(theta, rule.new_worker(theta), delta, 0)


def test_restored_vectors_that_a_commit_cannot_use_are_refused() -> None:
    rule = create_rule("gap-aware")
    vectors = [np.zeros(10, np.float32) for _ in range(rule.kept_vectors)]
    unaligned = np.frombuffer(bytearray(41), np.float32, 10, 1)
    for wrong in (unaligned, np.zeros(20, np.float32)[::2], np.zeros((10, 1), np.float32)):
        with pytest.raises(SizeMismatchError, match="a vector of the run"):
            rule.restore_run([*vectors[1:], wrong], rule.kept_scalars)


def test_a_negative_staleness_is_refused() -> None:
    rule, theta = create_rule("adaptive-staleness"), np.zeros(3, np.float32)
    with pytest.raises(RuleError, match="staleness -1"):
        rule.commit(theta, rule.new_worker(theta), theta, -1)
