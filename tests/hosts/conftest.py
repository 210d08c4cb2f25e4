"""Fixtures of tests over several hosts, which netns.py makes."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
from fault_support import crew
from netns import Host, Net, why_not


@pytest.fixture(scope="session")
def namespaces() -> None:
    """Skips where there are none."""
    if why := why_not():
        pytest.skip(why)


@pytest.fixture
def net(namespaces: None) -> Iterator[Net]:
    """Hosts and members of one test; taken away after it, whatever happened."""
    with crew() as hands:
        one = Net(hands)
        try:
            yield one
        finally:
            one.close()


@pytest.fixture
def pair(net: Net) -> tuple[Host, Host]:
    """Two hosts with a cable, and a dead interface named docker0 on each that has the
    same address on both, as it usually does."""
    a, b = net.host("alpha"), net.host("beta")
    for host in (a, b):
        net.dead(host, "docker0", "172.17.0.1/16")
    net.join(a, b)
    return a, b


@pytest.fixture
def meeting(tmp_path: Path) -> str:
    """A directory that all hosts share."""
    return str(tmp_path / "h")
