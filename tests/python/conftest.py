"""Fixtures of the Python tests: members in processes of their own, and a store here."""

from __future__ import annotations

import pathlib
from collections.abc import Iterator
from typing import Any

import pytest
from members import Members

import pyddstore


@pytest.fixture
def members(
    request: pytest.FixtureRequest, tmp_path: pathlib.Path
) -> Iterator[Members]:
    """Runs functions of this test file as members, see members.py."""
    group = Members(str(request.path), tmp_path)
    yield group
    group.end()


@pytest.fixture
def store(tmp_path: pathlib.Path) -> Iterator[Any]:
    """A store of one rank in this process."""
    with pyddstore.PyDDStore(
        None, method=1, handshake_dir=str(tmp_path / "h"), rank=0, size=1
    ) as one:
        yield one
