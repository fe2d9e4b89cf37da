"""Rules that other packages bring by an entry point, from packages as pip leaves them: a module and its dist-info."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from gem_core import ElementType, Layout, RuleError, TensorKind, TensorSpec, create_rule, is_rule, rule_names
from gem_core.rules import known_settings

HALVING = """
from gem_core.rules.downpour import Downpour
from gem_core.rules import Setting

class Halving(Downpour):
    name = "halving"
    known_settings = (Setting("share", 0.5, 0, 1, "how much of a delta is added"),)

    def _commit(self, parameters, state, delta, staleness, eta, parallel):
        scaled = delta * delta.dtype.type(self.settings["share"])
        return super()._commit(parameters, state, scaled, staleness, eta, parallel)
"""


def install(folder: Path, package: str, entry_points: str, code: str) -> None:
    (folder / f"{package}.py").write_text(code)
    info = folder / f"{package}-1.5.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.5\n")
    (info / "entry_points.txt").write_text(f"[gemps.rules]\n{entry_points}\n")


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder of packages that Python finds."""
    monkeypatch.syspath_prepend(tmp_path)
    yield tmp_path
    for name in [name for name, module in sys.modules.items() if str(tmp_path) in str(getattr(module, "__file__", ""))]:
        del sys.modules[name]


def test_a_rule_of_another_package_is_found_by_its_name(folder: Path) -> None:
    install(folder, "gemps_halving", "halving = gemps_halving:Halving", HALVING)
    assert rule_names()[-1] == "halving"
    assert is_rule("halving")
    assert [setting.name for setting in known_settings("halving")] == ["share"]
    rule, theta = create_rule("halving", share=0.25), np.zeros(3, np.float32)
    rule.commit(theta, rule.new_worker(theta), np.full(3, 8, np.float32), 0)
    assert theta.tolist() == [2, 2, 2]
    with pytest.raises(RuleError, match="share = 2 is out of range"):
        create_rule("halving", share=2)


def test_a_rule_sees_the_layout_before_it_is_warm(folder: Path) -> None:
    seeing = HALVING + "    def begin(self, layout):\n        self.names = [one.name for one in layout.parameters]\n"
    seeing = seeing.replace("scaled =", "assert self.names; scaled =")
    install(folder, "gemps_seeing", "halving = gemps_seeing:Halving", seeing)
    rule, theta = create_rule("halving"), np.zeros(1, np.float32)
    rule.begin(Layout([TensorSpec("w", (1,), ElementType.FLOAT32, TensorKind.PARAMETER)]))
    rule.commit(theta, rule.new_worker(theta), np.full(1, 8, np.float32), 0)
    assert (rule.names, theta.tolist()) == (["w"], [4])


def test_a_name_of_gemps_stands_for_the_rule_of_gemps(folder: Path) -> None:
    install(folder, "gemps_other_gem", "gem = gemps_other_gem:Nothing", "raise SystemError('loaded')")
    assert rule_names().count("gem") == 1
    assert type(create_rule("gem")).__module__ == "gem_core.rules.gem"


def test_a_package_that_cannot_be_loaded_is_named_only_when_its_rule_is_chosen(folder: Path) -> None:
    install(folder, "gemps_broken", "broken = gemps_broken:Rule", "import a_package_that_is_not_there")
    assert "broken" in rule_names()
    create_rule("downpour")
    message = "'broken' of gemps_broken 1.5 cannot be loaded from 'gemps_broken:Rule': ModuleNotFoundError: .*not_there"
    with pytest.raises(RuleError, match=message):
        create_rule("broken")


@pytest.mark.parametrize(("name", "what"), [("halving", "int"), ("quartering", "HALVING")])
def test_what_is_no_rule_of_that_name_is_refused(folder: Path, name: str, what: str) -> None:
    code = f"{HALVING}\nHALVING = Halving\n"
    install(folder, "gemps_wrong", f"{name} = gemps_wrong:{what}", code + "int = int\n")
    with pytest.raises(RuleError, match=f"'{name}' of gemps_wrong 1.5 is not one: .*must be a subclass of"):
        create_rule(name)


def test_a_rule_without_an_update_is_refused(folder: Path) -> None:
    code = "from gem_core.rules import UpdateRule\nclass Empty(UpdateRule):\n    name = 'empty'\n"
    install(folder, "gemps_empty", "empty = gemps_empty:Empty", code)
    with pytest.raises(RuleError, match="rule 'empty' has no update: define `kernel` or `_commit`"):
        create_rule("empty")


def test_nothing_is_known_of_a_package_that_has_gone() -> None:
    assert not is_rule("halving")
    with pytest.raises(RuleError, match="there is no update rule 'halving'; choose one of: gem, downpour"):
        create_rule("halving")
