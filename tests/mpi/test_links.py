"""What links MPI, and what doesn't."""

from __future__ import annotations

import pathlib
import re
import subprocess
from importlib import resources

import pytest

from pyddstore import _core


def output(*words: str | pathlib.Path) -> str:
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout


def needed(library: pathlib.Path) -> list[str]:
    return re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "-d", library))


@pytest.fixture
def plugin() -> pathlib.Path:
    return pathlib.Path(str(resources.files("pyddstore") / "libddstore_mpi.so"))


def test_core_links_no_mpi(library_build: pathlib.Path) -> None:
    extension = pathlib.Path(_core.__file__)
    for library in (extension, library_build / "libddstore" / "libddstore.so"):
        assert "libc.so.6" in needed(library)
        assert not [name for name in needed(library) if "mpi" in name]


def test_plugin_links_mpi(plugin: pathlib.Path) -> None:
    assert [name for name in needed(plugin) if "mpi" in name]
    assert not [name for name in needed(plugin) if "ddstore" in name]


def test_plugin_exports(plugin: pathlib.Path) -> None:
    symbols = output("nm", "-D", "--defined-only", plugin).splitlines()
    names = {line.split()[-1] for line in symbols} - {"_init", "_fini"}
    assert "ddstore_mpi_attach" in names
    assert all(re.fullmatch(r"ddstore_mpi_[a-z_]+", name) for name in names), names
