"""What a process pays at its start: no Numba for layouts and chunks, no compilation where the cache is warm."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

# Prints, for every kernel of one rule, how often it was found in the cache and how often it was compiled.
WARM_UP = """
import json, sys, gem_core
rule = gem_core.create_rule(sys.argv[1])
rule.warm_up()
drivers = [rule.kernel.serial, rule.kernel.parallel]
count = lambda what: sum(sum(getattr(driver.dispatcher.stats, what).values()) for driver in drivers)
print(json.dumps({"hits": count("cache_hits"), "misses": count("cache_misses"), "from": gem_core.__file__}))
"""


def warm_up(rule: str, root: Path = ROOT, **environment: str) -> tuple[dict[str, object], str]:
    """Warm a rule up in a new process that imports gem_core from `root`: what it counted, and its complaints."""
    done = subprocess.run(
        [sys.executable, "-c", WARM_UP, rule],
        env={**os.environ, **environment},
        cwd=root,  # `python -c` looks there first
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    )
    answer = json.loads(done.stdout)
    assert Path(answer.pop("from")).parents[1] == root
    return answer, done.stderr


@pytest.fixture
def copied_package(tmp_path: Path) -> Path:
    """A folder with a copy of gem_core in which nobody, not even root, can make a cache folder."""
    root = tmp_path / "site"
    shutil.copytree(ROOT / "gem_core", root / "gem_core", ignore=shutil.ignore_patterns("__pycache__"))
    (root / "gem_core" / "rules" / "__pycache__").write_text("a file where Numba would make a folder")
    return root


@pytest.mark.parametrize(
    "rule", ["gem", *(pytest.param(one, marks=pytest.mark.long) for one in ("downpour", "adaptive-staleness"))]
)
def test_the_second_start_compiles_nothing(rule: str, tmp_path: Path) -> None:
    first, _ = warm_up(rule, NUMBA_CACHE_DIR=str(tmp_path))
    assert first == {"hits": 0, "misses": 2}
    second, _ = warm_up(rule, NUMBA_CACHE_DIR=str(tmp_path))
    assert second == {"hits": 2, "misses": 0}


@pytest.mark.long
def test_a_read_only_installation_caches_in_the_users_folder(copied_package: Path, tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path / "home"), "XDG_CACHE_HOME": str(tmp_path / "home" / ".cache"), "NUMBA_CACHE_DIR": ""}
    first, _ = warm_up("gem", copied_package, **home)
    assert first == {"hits": 0, "misses": 2}
    second, complaints = warm_up("gem", copied_package, **home)
    assert second == {"hits": 2, "misses": 0}
    assert complaints == ""
    assert list((tmp_path / "home").rglob("*.nbi"))


@pytest.mark.long
def test_without_any_folder_for_the_cache_it_works_and_says_what_to_do(copied_package: Path) -> None:
    nowhere = {"HOME": os.devnull, "XDG_CACHE_HOME": os.devnull, "NUMBA_CACHE_DIR": ""}
    found, complaints = warm_up("downpour", copied_package, **nowhere)
    assert found["hits"] == 0
    assert "set NUMBA_CACHE_DIR to a folder that this process may write to" in complaints


HELPER = """
from gem_core.compilation import arithmetic
@arithmetic
def helper(value):
    return {formula}
"""
CALLER = """
import numpy as np
from gem_core.compilation import INTEGER, VECTOR, driver
from gem_core.helper import helper
@driver(VECTOR, INTEGER, parallel=False)
def run(values, count):
    for i in range(count):
        values[i] = helper(values[i])
values = np.full(3, 5, np.float32)
run(values, 3)
print(values.tolist(), sum(run.dispatcher.stats.cache_hits.values()))
"""


@pytest.mark.parametrize("folder", ["gem_core", "gem_core/rules"])
def test_a_changed_helper_compiles_its_callers_again(folder: str, tmp_path: Path) -> None:
    shutil.copytree(ROOT / "gem_core", tmp_path / "gem_core", ignore=shutil.ignore_patterns("__pycache__"))
    (tmp_path / folder / "caller.py").write_text(CALLER)

    def call(formula: str) -> str:
        (tmp_path / "gem_core" / "helper.py").write_text(HELPER.format(formula=formula))
        command = [sys.executable, "-c", f"import {folder.replace('/', '.')}.caller"]
        environment = {**os.environ, "NUMBA_CACHE_DIR": ""}
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=True
        )
        return done.stdout.strip()

    assert call("value + value") == "[10.0, 10.0, 10.0] 0"
    assert call("value + value") == "[10.0, 10.0, 10.0] 1"
    assert call("value + value + value") == "[15.0, 15.0, 15.0] 0"


def test_layouts_payloads_chunks_and_checksums_need_no_numba() -> None:
    code = """
import sys
import numpy as np
import gem_core
layout = gem_core.Layout([gem_core.TensorSpec("w", (3,), gem_core.ElementType.FLOAT32, gem_core.TensorKind.PARAMETER)])
for wire_type in sorted(set(gem_core.WireType) - {gem_core.WireType.SHARED_MEMORY}):
    payload = gem_core.PayloadFormat(layout, wire_type)
    splitter = gem_core.Splitter(payload, np.ones(3, np.float32), b"", 1024)
    assembler = gem_core.DecodingAssembler(payload, np.zeros(3, np.float32), memoryview(b""))
    for data in splitter:
        assembler.add(data)
    assembler.finish(splitter.crc32c)
assert "create_rule" in dir(gem_core)
for forbidden in ("numba", "torch", "grpc", "google.protobuf"):
    assert forbidden not in sys.modules, forbidden
gem_core.create_rule("gem")
assert "numba" in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, timeout=60, check=True)


def test_every_public_name_can_be_imported() -> None:
    import gem_core

    assert all(getattr(gem_core, name) is not None for name in gem_core.__all__)
    with pytest.raises(AttributeError, match="has no attribute 'nonsense'"):
        _ = gem_core.nonsense


COMMIT = """
import sys
import numpy as np
from gem_core.rules import create_rule

for settings in sys.argv[1:]:
    rule = create_rule("gem", signed_gap=float(settings), momentum=0.0, kappa=2.0, pi_max=1.0)
    theta = np.zeros(3, np.float32)
    state = rule.new_worker(theta)
    theta += np.float32(1.5)
    rule.commit(theta, state, np.full(3, -1, np.float32), 0, 0.1)
    print(theta.tolist())
"""


def test_kernels_that_different_processes_have_compiled_stay_apart_in_the_cache(tmp_path: Path) -> None:
    """Each of two processes compiles one kernel of a file; a third one loads both."""

    def commit(*signed: str) -> list[str]:
        done = subprocess.run(
            [sys.executable, "-c", COMMIT, *signed],
            env=os.environ | {"NUMBA_CACHE_DIR": str(tmp_path)},
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.splitlines()

    (plain,), (with_signed_gap,) = commit("0"), commit("1")
    assert plain != with_signed_gap
    for order in ("0", "1"), ("1", "0"):
        expected = {"0": plain, "1": with_signed_gap}
        assert commit(*order) == [expected[one] for one in order]
