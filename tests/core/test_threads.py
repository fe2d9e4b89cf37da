"""Which threads kernels run on, and that their number changes nothing but the time."""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gem_core import ThreadingError, create_rule
from gem_core.rules import interface
from gem_core.threads import configure_threads, require_threads
from tests.core.samples import KINDS, LENGTHS, make_sample

ROOT = Path(__file__).parents[2]
# One factory makes all kernels.
RULES = "gem", "downpour", "adaptive-staleness"


def loads(library: str) -> bool:
    """Whether a new process can load it; this one may have it from PyTorch, which brings a copy of its own."""
    code = f"import ctypes; ctypes.CDLL({library!r})"
    return subprocess.run([sys.executable, "-c", code], capture_output=True).returncode == 0


LAYERS = [
    pytest.param(
        "omp",
        marks=pytest.mark.skipif(
            sys.platform == "linux" and not loads("libgomp.so.1"), reason="GNU OpenMP (libgomp1) is not installed"
        ),
    ),
    pytest.param(
        "tbb",
        marks=pytest.mark.skipif(
            importlib.util.find_spec("tbb") is None and not (Path(sys.prefix) / "lib" / "libtbb.so.12").exists(),
            reason="the package tbb is not installed on this platform",
        ),
    ),
]


def python(code: str, **environment: str) -> subprocess.CompletedProcess[str]:
    """Run `code` in a new interpreter, with the given environment variables in addition."""
    return subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **environment},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


@pytest.fixture(params=LAYERS, scope="module")
def digests(request: pytest.FixtureRequest) -> Iterator[Callable[..., list[str]]]:
    """Ask tests/core/thread_server.py, on every threading layer."""
    with subprocess.Popen(
        [sys.executable, "-m", "tests.core.thread_server"],
        env={**os.environ, "NUMBA_NUM_THREADS": "4", "NUMBA_THREADING_LAYER": request.param},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        stdin, stdout = process.stdin, process.stdout
        assert stdout.readline().strip() == request.param

        def ask(**commit: object) -> list[str]:
            stdin.write(json.dumps(commit) + "\n")
            stdin.flush()
            answer: list[str] = json.loads(stdout.readline())
            return answer

        yield ask
        stdin.close()
        assert process.wait(30) == 0


@pytest.mark.long
@given(
    rule=st.sampled_from(RULES),
    kind=st.sampled_from(KINDS),
    length=st.sampled_from(LENGTHS),
    seed=st.integers(0, 2**32),
)
@settings(deadline=None, max_examples=20)
def test_parameters_and_statistics_do_not_depend_on_the_number_of_threads(
    digests: Callable[..., list[str]], rule: str, kind: str, length: int, seed: int
) -> None:
    found = digests(rule=rule, kind=kind, length=length, seed=seed)
    assert len(found) == 5
    assert set(found) == {found[0]}


@pytest.mark.parametrize("layer", LAYERS)
def test_a_safe_layer_that_is_asked_for_is_used(layer: str) -> None:
    done = python(
        "from gem_core.threads import configure_threads; print(*configure_threads(2))",
        NUMBA_THREADING_LAYER=layer,
        NUMBA_NUM_THREADS="3",
    )
    assert done.stdout.split() == [layer, "2"], done.stderr


@pytest.mark.parametrize("layer", ["workqueue", "nonsense"])
def test_a_layer_that_may_abort_the_process_is_refused(layer: str) -> None:
    done = python("import gem_core; gem_core.create_rule('gem').warm_up()", NUMBA_THREADING_LAYER=layer)
    assert done.returncode == 1
    assert f"ThreadingError: Numba's threading layer '{layer}' is not accepted" in done.stderr
    assert "set NUMBA_THREADING_LAYER=omp or tbb" in done.stderr


def test_a_layer_that_may_abort_the_process_is_refused_when_it_runs_already() -> None:
    done = python(
        "import numba\n"
        "numba.njit(parallel=True)(lambda: None)()\n"
        "numba.set_num_threads(1)\n"
        "assert numba.threading_layer() == 'workqueue'\n"
        "import gem_core.threads\n"
        "gem_core.threads.configure_threads()",
        NUMBA_THREADING_LAYER="workqueue",
    )
    assert "ThreadingError: Numba's threading layer 'workqueue' is not accepted" in done.stderr


def test_without_any_safe_layer_the_error_says_what_to_install() -> None:
    done = python(
        "import sys\n"
        "sys.modules['numba.np.ufunc.omppool'] = sys.modules['numba.np.ufunc.tbbpool'] = None\n"
        "import gem_core; gem_core.create_rule('gem').warm_up()",
        NUMBA_THREADING_LAYER="default",
    )
    assert done.returncode == 1
    assert "ThreadingError: no safe threading layer" in done.stderr
    assert "libgomp1" in done.stderr
    assert "pip install tbb" in done.stderr


def test_tbb_takes_over_where_openmp_is_missing() -> None:
    if not (Path(sys.prefix) / "lib" / "libtbb.so.12").exists():
        pytest.skip("the package tbb is not installed on this platform")
    done = python(
        "import sys; sys.modules['numba.np.ufunc.omppool'] = None\n"
        "from gem_core.threads import configure_threads; print(configure_threads().layer)",
        NUMBA_THREADING_LAYER="default",
    )
    assert done.stdout.strip() == "tbb", done.stderr


def test_more_threads_than_there_are_is_refused_with_the_fix() -> None:
    done = python("from gem_core.threads import configure_threads; configure_threads(3)", NUMBA_NUM_THREADS="2")
    assert done.returncode == 1
    assert "3 threads were asked for, 2 are available: ask for at most 2 (0 means all)" in done.stderr
    assert "NUMBA_NUM_THREADS=3" in done.stderr
    with pytest.raises(ThreadingError, match="-1 threads were asked for"):
        configure_threads(-1)


def test_the_number_of_threads_stays_configured_when_a_rule_warms_up() -> None:
    done = python(
        "from gem_core.threads import configure_threads, require_threads\n"
        "import gem_core\n"
        "configure_threads(2)\n"
        "gem_core.create_rule('gem').warm_up()\n"
        "print(require_threads().number)",
        NUMBA_NUM_THREADS="4",
    )
    assert done.stdout.strip() == "2", done.stderr


def test_the_environment_is_left_as_it_was() -> None:
    done = python(
        "import os; before = dict(os.environ)\n"
        "from gem_core.threads import configure_threads\n"
        "configure_threads(); print(before == dict(os.environ))"
    )
    assert done.stdout.strip() == "True", done.stderr


def test_kernels_may_be_launched_from_several_threads_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    # The server does not, but a test or a simulation may; with the workqueue layer this aborts the process.
    monkeypatch.setattr(interface, "PARALLEL_FROM", 1)
    assert require_threads().layer in ("omp", "tbb")
    results: dict[int, bytes] = {}

    def train(index: int) -> None:
        sample = make_sample("ordinary", 30_001, 5)
        for name in RULES:
            rule = create_rule(name)
            state = rule.new_worker(sample.snapshot)
            for _ in range(2):
                rule.commit(sample.theta, state, sample.delta, 1, 0.05)
        results[index] = sample.theta.tobytes()

    threads = [threading.Thread(target=train, args=(index,)) for index in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 4
    assert len(set(results.values())) == 1
    assert np.isfinite(np.frombuffer(results[0], np.float32)).all()
