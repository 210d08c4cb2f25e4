"""Fixtures of the tests on a Slurm cluster, which cluster.py makes once a session."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Jobs, why_no_cluster
from spank_build import HOSTS, built
from spank_node import Node


@pytest.fixture(scope="session")
def plugins() -> list[str]:
    """Lines of the cluster's plugstack.conf."""
    return []


@pytest.fixture(scope="session")
def cluster(request: pytest.FixtureRequest, plugins: list[str]) -> Iterator[Cluster]:
    """A head and two nodes. After a failure its logs stay."""
    if why := why_no_cluster():
        pytest.skip(why)
    one = Cluster(plugins)
    good = False
    try:
        one.start()
        failed = request.session.testsfailed
        yield one
        good = request.session.testsfailed == failed
    finally:
        one.close(keep=not good)


@pytest.fixture
def jobs(cluster: Cluster, tmp_path: Path) -> Iterator[Jobs]:
    """The jobs of one test; what is left of them is cancelled after it."""
    own = Jobs(cluster, tmp_path)
    try:
        yield own
    finally:
        own.close()


@pytest.fixture(scope="session")
def spank_program() -> Path:
    """What plays slurmstepd."""
    if os.geteuid() != 0:
        pytest.skip("slurmstepd is root's; so must be what plays it")
    return built() / HOSTS[0]


@pytest.fixture
def node(spank_program: Path) -> Iterator[Node]:
    """One that has the SPANK plugin."""
    # Not below pytest's own directory, which other users can't search.
    with tempfile.TemporaryDirectory(prefix="ddstore-spank-") as name:
        Path(name).chmod(0o755)
        yield Node(Path(name), spank_program)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Generator[None, Any, Any]:
    """A test that fails shows the logs."""
    report = yield
    one = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and one is not None:
        report.sections.append((f"Slurm's logs, from {one.log}", one.logs()))
    return report
