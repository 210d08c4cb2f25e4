"""Fixtures of the tests on a Slurm cluster, which cluster.py makes once a session."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from cluster import Cluster, Jobs, why_no_cluster


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


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any) -> Generator[None, Any, Any]:
    """A test that fails shows the logs."""
    report = yield
    one = getattr(item, "funcargs", {}).get("cluster")
    if report.failed and one is not None:
        report.sections.append((f"Slurm's logs, from {one.log}", one.logs()))
    return report
