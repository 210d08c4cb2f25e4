"""Two hosts under mpirun, network namespaces joined by a cable; two ranks each."""

from __future__ import annotations

import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from pathlib import Path

import mpi_launch
import pytest
from fault_support import crew
from netns import Net, why_not

PROGRAM = """
import sys
import numpy as np
from mpi4py import MPI
import pyddstore

comm = MPI.COMM_WORLD
rows = np.arange(50 * comm.rank, 50 * comm.rank + 50)
try:
    store = pyddstore.PyDDStore(comm, method=int(sys.argv[1]))
    store.add("x", np.repeat(rows, 768).reshape(50, 768))
    wanted = np.random.default_rng(comm.rank).permutation(50 * comm.size)
    out = np.empty((len(wanted), 768), int)
    store.get_batch("x", out, wanted)
    assert (out == wanted[:, None]).all()
    for row in wanted[:20]:
        store.get("x", out[:1], row)
        assert (out[0] == row).all()
    words = " ".join(peer["path"] for peer in store.transports())
    comm.Barrier()
    store.free()
except pyddstore.DDStoreError as exc:
    words = f"{type(exc).__name__} {exc}"
told = comm.gather(words)
if comm.rank == 0:
    print("\\n".join(told))
"""

Run = Callable[..., list[str]]


@pytest.fixture
def two_hosts(tmp_path: Path) -> Iterator[Run]:
    """Runs the program on alpha and beta; what the four ranks told."""
    if why := why_not():
        pytest.skip(why)
    if mpi_launch.vendor() != "Open MPI":
        pytest.skip(
            "optional: only Open MPI starts ranks by an agent of the test's own"
        )
    program, agent = tmp_path / "program.py", tmp_path / "agent"
    program.write_text(PROGRAM)
    with crew() as hands:
        net = Net(hands)
        try:
            alpha, beta = net.host("alpha"), net.host("beta")
            net.join(alpha, beta)
            # In place of ssh. mpirun sees all processes, since it has to enter beta.
            agent.write_text(
                f'#!/bin/sh\nshift\nexec {" ".join(beta.prefix)} sh -c "cd /; $*"\n'
            )
            agent.chmod(0o755)
            enter = ["nsenter", "-t", str(alpha.init), "-n", "-u", "--"]
            hosts = ["--mca", "plm_rsh_agent", str(agent), "--host", "alpha:2,beta:2"]
            words = [*enter, *mpi_launch.command(4), *hosts]

            def run(method: int, **env: str) -> list[str]:
                passed = [part for name in env for part in ("-x", name)]
                program_words = [sys.executable, str(program), str(method)]
                return told_by([*words, *passed, *program_words], env)

            yield run
        finally:
            net.close()


def told_by(words: list[str], env: dict[str, str]) -> list[str]:
    mark = uuid.uuid4().hex
    env = mpi_launch.environment(env) | {mpi_launch.MARK: mark}
    try:
        end = subprocess.run(
            words, env=env, capture_output=True, text=True, timeout=60, check=False
        )
    finally:
        mpi_launch.sweep(mark)
    assert end.returncode == 0, end.stdout + end.stderr
    # UCX logs there too.
    return [line for line in end.stdout.splitlines() if " UCX  " not in line]


def test_method_1_needs_nothing(two_hosts: Run) -> None:
    assert two_hosts(1) == [
        "self local tcp tcp",
        "local self tcp tcp",
        "tcp tcp self local",
        "tcp tcp local self",
    ]


def test_method_0_where_mpi_has_no_windows(two_hosts: Run) -> None:
    """Open MPI's defaults may not reach another host's memory: then all ranks get the
    same exception, which names the ways out."""
    told = two_hosts(0)
    if mpi_launch.version() < (5,):
        assert told[0].startswith("FabricError")
    if told[0].startswith("FabricError"):
        assert len(set(told)) == 1
        for word in ("MPI_Win_create", "OMPI_MCA_osc=ucx", "method=1"):
            assert word in told[0]
    else:
        assert told[0] == "self local mpi mpi"


def test_method_0_by_ucx(two_hosts: Run) -> None:
    if mpi_launch.version() >= (5,):
        pytest.skip("optional: Open MPI 5 leaves UCX aside on Ethernet")
    # UCX takes namespaces of one kernel for one host, and fails to share its memory.
    assert two_hosts(0, OMPI_MCA_osc="ucx", UCX_TLS="self,tcp") == [
        "self local mpi mpi",
        "local self mpi mpi",
        "mpi mpi self local",
        "mpi mpi local self",
    ]
