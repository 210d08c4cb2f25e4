"""Fixtures of the tests over MPI.

A test marked `mpi` runs on all ranks of an mpirun at once, each with its own pytest:
`python tests/mpi/mpi_launch.py N pytest --with-mpi -m mpi tests/mpi`.
`mpi(min_size=N)` leaves it out where there are fewer ranks. `pytest tests/mpi` runs the
other tests, which start ranks themselves, by the fixture `mpirun`.
"""

from __future__ import annotations

import faulthandler
import os
import pathlib
import shutil
import signal
import sys
import tempfile
from collections.abc import Generator, Iterator
from typing import Any

import mpi4py
import mpi_launch
import pytest
import pytest_mpi

LIMIT_S = 60.0  # of each step of a test on ranks, unless it is marked `timeout`

# ---- tests on ranks ------------------------------------------------------------------

# Where output goes that isn't captured; None: this is no rank.
stderr: int | None = None
between: Any = None  # a communicator of the fixtures


@pytest.hookimpl(trylast=True)
def pytest_configure(config: pytest.Config) -> None:
    global stderr, between
    if not config.getoption("--with-mpi"):
        mpi4py.rc.initialize = False
        # It would skip all tests of a folder that is called mpi.
        manager = config.pluginmanager
        for plugin in manager.get_plugins():
            if isinstance(plugin, pytest_mpi.MPIPlugin):
                manager.unregister(plugin)
        return
    from mpi4py import MPI

    stderr = os.dup(2)
    between = MPI.COMM_WORLD.Dup()
    # When one rank gives up, mpirun ends the others.
    faulthandler.register(signal.SIGTERM, file=stderr, chain=True)


def pytest_collection_modifyitems(
    config: pytest.Config, items: list[pytest.Item]
) -> None:
    """Leaves out what is for ranks, or for no ranks, or for more ranks."""

    def fits(item: pytest.Item) -> bool:
        marks = list(item.iter_markers("mpi"))
        if between is None or not marks:
            return between is None and not marks
        return all(mark.kwargs.get("min_size", 0) <= between.size for mark in marks)

    left_out = [item for item in items if not fits(item)]
    if left_out:
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if fits(item)]


def watched(item: pytest.Item) -> Generator[None, object, object]:
    """A rank that is stuck, even in a call that holds the interpreter, shows where and
    exits, upon which mpirun ends all."""
    if stderr is None or not item.get_closest_marker("mpi"):
        return (yield)
    mark = item.get_closest_marker("timeout")
    limit = (mark.args or [mark.kwargs["timeout"]])[0] if mark else LIMIT_S
    faulthandler.dump_traceback_later(limit, exit=True, file=stderr)
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


@pytest.hookimpl(wrapper=True)
def pytest_runtest_setup(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from watched(item))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(item: pytest.Item) -> Generator[None, object, object]:
    return (yield from watched(item))


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Failures are told at once: the others may hang, and all be ended."""
    if stderr is not None and report.failed:
        os.write(stderr, f"\n{report.nodeid}\n{report.longreprtext}\n".encode())


@pytest.fixture
def comm() -> Iterator[Any]:
    """All ranks. They leave a test together."""
    from mpi4py import MPI

    yield MPI.COMM_WORLD
    between.Barrier()


@pytest.fixture
def shared_dir(comm: Any) -> Iterator[pathlib.Path]:
    """A directory of this test that all ranks share."""
    made = tempfile.mkdtemp(prefix="ddstore-") if comm.rank == 0 else None
    path = between.bcast(made)
    yield pathlib.Path(path)
    between.Barrier()
    if comm.rank == 0:
        shutil.rmtree(path, ignore_errors=True)


# ---- tests that start ranks ----------------------------------------------------------


@pytest.fixture(scope="session")
def library_build() -> pathlib.Path:
    """The build directory that the package in this environment comes from."""
    build = pathlib.Path(sys.prefix) / "build-wheel"
    assert (build / "build.ninja").exists(), "scripts/test mpi makes the environment"
    return build


@pytest.fixture
def mpirun(tmp_path: pathlib.Path) -> mpi_launch.Mpirun:
    """mpirun(n, program, *arguments, env={}, timeout=60): runs a program as n ranks of
    the MPI that mpi4py is compiled for. The program is Python text, the path of a .py
    file, or that of an executable. To take too long is a failure of the test, unless
    may_hang is set. Nothing is left running."""
    count = 0

    def run(
        n: int,
        program: str | pathlib.Path,
        *arguments: str,
        env: dict[str, str] | None = None,
        timeout: float = 60.0,
        may_hang: bool = False,
    ) -> mpi_launch.Finished:
        nonlocal count
        if isinstance(program, str):
            count += 1
            text, program = program, tmp_path / f"program{count}.py"
            program.write_text(text)
        words = [str(program), *arguments]
        if program.suffix == ".py":
            words.insert(0, sys.executable)
        end = mpi_launch.launch(n, words, env=env, timeout=timeout, cwd=tmp_path)
        assert may_hang or not end.timed_out, str(end)
        return end

    return run
