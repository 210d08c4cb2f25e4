"""What import does, what settings do in Python, and where the log goes."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from members import environment

OPEN = """
import logging, sys, threading
{before}
import pyddstore
store = pyddstore.PyDDStore(None, method=1, handshake_dir=sys.argv[1], rank=0, size=1)
{after}
"""


def run(tmp_path: Any, before: str = "", after: str = "", **env: str) -> Any:
    """A process that opens a store, with some lines before and after."""
    return subprocess.run(
        [
            sys.executable,
            "-c",
            OPEN.format(before=before, after=after),
            tmp_path / "h",
        ],
        cwd=tmp_path,
        env=environment(**env),
        capture_output=True,
        text=True,
        timeout=60,
    )


def test_import_is_quiet(tmp_path: Any) -> None:
    """No torch, no mpi4py, no thread, no file, no word."""
    code = """
import os, sys, threading
before = set(os.listdir("/proc/self/fd"))
import pyddstore
for name in ("torch", "mpi4py", "ml_dtypes", "click", "rich", "matplotlib"):
    assert name not in sys.modules, name
assert threading.active_count() == 1
assert len(os.listdir("/proc/self/task")) == THREADS
assert set(os.listdir("/proc/self/fd")) <= before
assert pyddstore.HAVE_MPI in (False, True)
assert set(pyddstore.__all__) >= {
    "HAVE_MPI", "FileComm", "PyDDStore", "DDStoreError", "PeerLostError",
    "StoreClosedError", "FabricError", "HandshakeTimeout", "__version__"}
for name in pyddstore.__all__:
    assert hasattr(pyddstore, name)
"""
    # NumPy may bring a BLAS that starts threads of its own.
    code = "import os, numpy\n" + code.replace("THREADS", "threads").replace(
        "import pyddstore\n",
        "threads = len(os.listdir('/proc/self/task'))\nimport pyddstore\n",
        1,
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    "setting",
    [
        "DDSTORE_SHM=yes",
        "DDSTORE_READ_TIMEOUT_S=-1",
        "DDSTORE_READ_TIMEOUT_S=0",
        "DDSTORE_HANDSHAKE_TIMEOUT_S=nan",
        "DDSTORE_MAX_READ_BYTES=4T",
        "DDSTORE_MAX_READ_BYTES=1.5G",
        "DDSTORE_MAX_READ_BYTES=-4",
        "DDSTORE_FABRIC=carrier-pigeon",
        "DDSTORE_LOG=loud",
        "DDSTORE_EXCHANGE=smoke",
        "DDSTORE_PROFILE=2",
    ],
)
def test_bad_settings(tmp_path: Any, setting: str) -> None:
    done = run(tmp_path, **dict([setting.split("=")]))
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last.startswith("ValueError: "), last
    assert setting in last
    assert "give" in last


@pytest.mark.parametrize(
    "setting",
    [
        "DDSTORE_MAX_READ_BYTES=4k",
        "DDSTORE_MAX_READ_BYTES=2G",
        "DDSTORE_READ_TIMEOUT_S=0.25",
        "DDSTORE_FABRIC=tcp",
        "DDSTORE_SHM=",
        "DDSTORE_SHM=0",
    ],
)
def test_good_settings(tmp_path: Any, setting: str) -> None:
    done = run(tmp_path, **dict([setting.split("=")]))
    assert (done.returncode, done.stderr) == (0, "")


def test_nic_map(tmp_path: Any) -> None:
    """The argument is refused where no interface of this machine is in it, or taken."""
    done = run(
        tmp_path,
        after="""
for words in ("lo=0-1023", None):
    pyddstore.PyDDStore(None, method=1, handshake_dir=sys.argv[1], rank=0, size=1,
                        nic_map=words).free()
""",
    )
    assert done.returncode == 0, done.stderr


def test_unknown_settings_warn(tmp_path: Any) -> None:
    # DDSTORE_MPI is of the build, and may be left set.
    done = run(
        tmp_path, DDSTORE_HANDSHAKE_TIMEOUT="3", DDSTORE_RANK="0", DDSTORE_MPI="0"
    )
    assert done.returncode == 0
    assert "DDSTORE_HANDSHAKE_TIMEOUT " in done.stderr
    assert "DDSTORE_HANDSHAKE_TIMEOUT_S" in done.stderr
    assert done.stderr.count("did you mean") == 1
    done = run(
        tmp_path,
        "lines = []\n"
        "class Keep(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        lines.append((record.name, record.levelname, record.getMessage()))\n"
        "logging.getLogger().addHandler(Keep())",
        "print(lines)",
        DDSTORE_SHN="1",
    )
    assert "('pyddstore', 'WARNING', 'DDSTORE_SHN is no setting" in done.stdout
    assert "DDSTORE_SHM" in done.stdout
    assert done.stderr == ""


LINE = "interface"  # in the line that tells how the members are reached


@pytest.mark.parametrize(
    ("before", "level", "shown"),
    [
        ("", "", False),
        ("", "warn", False),
        ("", "info", True),
        ("", "debug", True),
        ("", "error", False),
        ("", "off", False),
        ("logging.basicConfig(level=logging.DEBUG)", "", False),
        ("logging.basicConfig(level=logging.DEBUG)", "info", True),
        ("logging.basicConfig(level=logging.WARNING)", "info", True),
        ("logging.getLogger('pyddstore').setLevel(40)", "info", False),
        ("logging.disable()", "info", False),
    ],
)
def test_levels(tmp_path: Any, before: str, level: str, shown: bool) -> None:
    done = run(tmp_path, before, DDSTORE_LOG=level)
    assert done.returncode == 0, done.stderr
    assert (LINE in done.stderr) is shown, done.stderr
    assert done.stderr.count(LINE) <= 1, done.stderr


def test_loggers_that_fail(tmp_path: Any) -> None:
    """What a handler raises stays out of the library."""
    done = run(
        tmp_path,
        "class Bad(logging.Handler):\n"
        "    def emit(self, record):\n"
        "        raise SystemError('bad handler')\n"
        "logging.getLogger().addHandler(Bad())",
        "print(store.names())",
        DDSTORE_LOG="debug",
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "[]\n"


def test_settings_are_told() -> None:
    from pyddstore import _core

    rows = {row["name"]: row for row in _core.settings()}
    assert rows["DDSTORE_READ_TIMEOUT_S"]["default"] == "60"
    assert rows["DDSTORE_HANDSHAKE_TIMEOUT_S"]["default"] == "300"
    assert rows["DDSTORE_MAX_READ_BYTES"]["default"] == "1G"
    assert rows["DDSTORE_ALLTOALL_MAX_BYTES"]["default"] == "2M"
    assert rows["DDSTORE_FABRIC"]["default"] == "auto"
    assert rows["DDSTORE_SHM"]["default"] == "1"
    assert rows["DDSTORE_LOG"]["default"] == "warn"
    assert set(rows) >= {
        *("FABRIC_IFACE", "DDSTORE_NIC_MAP", "DDSTORE_HANDSHAKE_DIR"),
        *("DDSTORE_PROFILE", "DDSTORE_BATCH_GET", "DDSTORE_METHOD", "DDSTORE_N_CORE"),
        *("DDSTORE_FORK_WORKERS", "DDSTORE_AFFINITY_WIDTH", "DDSTORE_AFFINITY_OFFSET"),
        *("DDSTORE_EXCHANGE", "DDSTORE_LIBFABRIC"),
    }
    with pytest.raises(KeyError):
        _core.setting("DDSTORE_NOTHING")
