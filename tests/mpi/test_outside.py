"""A C program outside the tree, built by pkg-config against installed libraries."""

from __future__ import annotations

import os
import pathlib
import shutil
import subprocess

import mpi_launch
import pytest
from mpi_launch import Mpirun

HERE = pathlib.Path(__file__).parent


@pytest.fixture
def root(library_build: pathlib.Path, tmp_path: pathlib.Path) -> pathlib.Path:
    """Where the C library is installed."""
    to = tmp_path / "root"
    words = ["meson", "install", "--no-rebuild", "--quiet", "--tags", "runtime,devel"]
    subprocess.run([*words, "-C", library_build, "--destdir", to], check=True)
    return to


def flags(root: pathlib.Path) -> list[str]:
    (file,) = root.rglob("ddstore_mpi.pc")
    more = {
        "PKG_CONFIG_PATH": str(file.parent),
        "PKG_CONFIG_SYSROOT_DIR": str(root),
        # System folders are left out unless it is told to keep them.
        "PKG_CONFIG_ALLOW_SYSTEM_CFLAGS": "1",
        "PKG_CONFIG_ALLOW_SYSTEM_LIBS": "1",
    }
    words = ["pkg-config", "--cflags", "--libs", "ddstore_mpi"]
    done = subprocess.run(
        words, env=os.environ | more, check=True, capture_output=True, text=True
    )
    return done.stdout.split()


STRICT = ["-std=c11", "-Wall", "-Wextra", "-Wpedantic", "-Werror"]


def test_program(root: pathlib.Path, tmp_path: pathlib.Path, mpirun: Mpirun) -> None:
    program = tmp_path / "outside"
    words = [mpi_launch.tool("mpicc"), *STRICT, str(HERE / "outside.c")]
    subprocess.run([*words, "-o", program, *flags(root)], check=True)
    (library,) = root.rglob("libddstore_mpi.so.0")
    end = mpirun(2, program, env={"LD_LIBRARY_PATH": str(library.parent)})
    assert end.returncode == 0, end
    assert sorted(end.stdout.splitlines()) == [
        f"rank {rank} of 2: the rows are right" for rank in range(2)
    ]


def test_header_in_cpp(root: pathlib.Path, tmp_path: pathlib.Path) -> None:
    """Without mpi.h it serves bindings of other languages, with it C++ programs."""
    if not shutil.which("c++"):
        pytest.skip("optional: no C++ compiler")
    include = [word for word in flags(root) if word.startswith("-I")]
    show = subprocess.run(
        [mpi_launch.tool("mpicc"), "-show"], check=True, capture_output=True, text=True
    )
    theirs = [w.replace("-I", "-isystem") for w in show.stdout.split() if w[:2] == "-I"]
    more = ["-DOMPI_SKIP_MPICXX", "-DMPICH_SKIP_MPICXX"]
    for name, first in ("bare", ""), ("mpi", "#include <mpi.h>\n"):
        source = tmp_path / f"{name}.cc"
        source.write_text(
            first + "#include <ddstore_mpi.h>\nint main() { return 0; }\n"
        )
        words = ["c++", "-Wall", "-Wextra", "-Werror", *more, *include, *theirs]
        subprocess.run([*words, "-c", source, "-o", tmp_path / "o"], check=True)
