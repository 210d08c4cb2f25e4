"""One node with the SPANK plugin, under a program that plays slurmstepd
(spank_host.c)."""

from __future__ import annotations

import os
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

TOPOLOGY = Path(__file__).parents[1] / "c" / "topology"
MAP = "enp129s0=0-7"  # of one_nic.xml
USER, OTHER = 65534, 65533
NAMELESS = 1987654321
BATCH = 0xFFFFFFFB
LIMIT_MS = 2000
DIR, NIC_MAP = "DDSTORE_HANDSHAKE_DIR", "DDSTORE_NIC_MAP"


@dataclass
class Told:
    """What the program has printed."""

    env: dict[str, str] = field(default_factory=dict)
    logs: list[str] = field(default_factory=list)
    calls: dict[str, int] = field(default_factory=dict)
    ms: float = -1
    left: tuple[int, int] = (-1, -1)

    @property
    def error(self) -> str:
        return self.env.get("DDSTORE_SPANK_ERROR", "")


def read(output: str) -> Told:
    told = Told()
    for line in output.splitlines():
        kind, _, rest = line.partition(" ")
        if kind == "env":
            name, _, value = rest.partition("=")
            told.env[name] = value
        elif kind == "log":
            told.logs.append(rest)
        elif kind == "rc":
            name, value = rest.split()
            told.calls[name] = int(value)
        elif kind == "ms":
            told.ms = float(rest)
        elif kind == "left":
            descriptors, children = rest.split()
            told.left = (int(descriptors), int(children))
    return told


class Node:
    """One node: its state, a directory of a user, and steps that run there."""

    def __init__(self, folder: Path, program: Path) -> None:
        self.folder, self.program = folder, program
        self.base = folder / "base"
        self.base.mkdir()
        os.chown(self.base, USER, USER)
        self.state = folder / "state"
        self.xml: str | Path = TOPOLOGY / "one_nic.xml"

    def words(self, kind: str, *words: str, args: tuple[str, ...] = ()) -> list[str]:
        args = (f"dir={self.base}", f"state={self.state}", "enable=always", *args)
        given = [word for arg in args for word in ("--arg", arg)]
        return [str(self.program), kind, *given, *words]

    def environment(self, **more: str) -> dict[str, str]:
        own = {"HWLOC_XMLFILE": str(self.xml), "SLURMD_NODENAME": "n7"}
        return {"PATH": os.environ["PATH"]} | own | more

    def run(self, kind: str, *words: str, args: tuple[str, ...] = ()) -> Told:
        """Whatever happens, this holds."""
        begun = time.monotonic()
        done = subprocess.run(
            self.words(kind, *words, args=args),
            env=self.environment(),
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
        assert (done.returncode, done.stderr) == (0, ""), done
        assert time.monotonic() - begun < 10
        told = read(done.stdout)
        assert set(told.calls.values()) == {0}
        assert told.ms < LIMIT_MS
        # The batch script's note stays open in slurmstepd.
        assert told.left[0] <= (str(BATCH) in words)
        return told

    def step(self, *words: str, args: tuple[str, ...] = ()) -> Told:
        return self.run("step", *words, args=args)

    def epilog(self, *words: str) -> Told:
        told = self.run("epilog", *words)
        assert told.env == {}
        return told

    def all(self) -> set[str]:
        """What there is in the user's directory."""
        return {str(path.relative_to(self.base)) for path in self.base.rglob("*")}


def owned(path: Path, uid: int, mode: int = 0o755) -> None:
    path.mkdir()
    path.chmod(mode)
    os.chown(path, uid, uid)


def plant(path: Path, to: Path, uid: int) -> None:
    path.symlink_to(to)
    os.lchown(path, uid, uid)
