"""A Slurm cluster of a test session: a head and two nodes, each a host of its own as
tests/hosts/netns.py makes them, on a network of their own. Files and logs lie in one
temporary directory; nothing of the machine's own Slurm or network is touched.
"""

from __future__ import annotations

import os
import pwd
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from netns import Host, call, why_not

NODES = ("n1", "n2")
CPUS = 8  # a node says it has
PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "sbatch", "salloc")
LIMIT_S = 60.0  # of a command or job; the machine may be loaded
# Of waits in jobs.
LIMITS = {"DDSTORE_HANDSHAKE_TIMEOUT_S": "40", "DDSTORE_READ_TIMEOUT_S": "5"}
NUMBERS = count()  # there may be several clusters
ENDED = ("COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY")
# What launchers and users have set for this process is not for jobs.
FOREIGN = (
    *("DDSTORE_", "FABRIC_IFACE", "SLURM", "SBATCH_", "SALLOC_", "SRUN_"),
    *("OMPI_", "PMI_", "PMIX_", "TORCHELASTIC_", "RANK", "WORLD_SIZE"),
)


def why_no_cluster() -> str:
    """Why there can't be a cluster here; "" if there can."""
    path = os.environ["PATH"] + ":/usr/sbin:/sbin"
    missing = [name for name in PROGRAMS if shutil.which(name, path=path) is None]
    if missing:
        return f"no {', '.join(missing)}: `scripts/test slurm` installs them"
    return why_not()


def release() -> tuple[int, int]:
    """Of Slurm, such as (22, 5)."""
    found = re.search(r"(\d+)\.(\d+)", call("slurmd", "-V"))
    assert found
    return int(found[1]), int(found[2])


@dataclass
class Finished:
    """What became of a command."""

    returncode: int
    stdout: str
    stderr: str

    def __str__(self) -> str:
        return (
            f"it ended with {self.returncode}\n"
            f"-- stdout:\n{self.stdout}\n-- stderr:\n{self.stderr}"
        )


class Cluster:
    """Made at once, up when `start` returns. plugins: lines of plugstack.conf."""

    def __init__(self, plugins: Sequence[str] = ()) -> None:
        self.plugins = plugins
        # Not below pytest's own directory, which the user munge can't search.
        self.folder = Path(tempfile.mkdtemp(prefix="ddstore-slurm-"))
        self.folder.chmod(0o755)
        self.log = self.folder / "log"
        self.log.mkdir()
        self.hosts: dict[str, Host] = {}
        self.daemons: list[subprocess.Popen[bytes]] = []

    # -- up and down --

    def start(self) -> None:
        """Returns when both nodes wait for jobs."""
        tag = f"dds{os.getpid():x}-{next(NUMBERS)}"
        for name in ("head", *NODES):
            self.hosts[name] = Host(name, f"{tag}{name}")
        self.cables()
        self.names()
        self.configure()
        self.munged()
        self.daemon("head", "slurmctld", "-D")
        for name in NODES:
            self.daemon(name, "slurmd", "-D", "-N", name)
        try:
            self.wait(self.ready, 30, "nodes that are idle")
        except AssertionError as exc:
            raise RuntimeError(f"{exc}\n{self.logs()}") from None

    def cables(self) -> None:
        """From every node to a bridge on the head."""
        head = self.hosts["head"]
        head.ip("link", "add", "eth0", "type", "bridge")
        head.ip("addr", "add", "10.98.0.1/24", "dev", "eth0")
        head.ip("link", "set", "eth0", "up")
        for i, name in enumerate(NODES):
            node = self.hosts[name]
            end = ("peer", "name", "eth0", "netns", node.net)
            head.ip("link", "add", f"to-{name}", "type", "veth", *end)
            head.ip("link", "set", f"to-{name}", "master", "eth0", "up")
            node.ip("addr", "add", f"10.98.0.{i + 2}/24", "dev", "eth0")
            node.ip("link", "set", "eth0", "up")

    def names(self) -> None:
        """All hosts know one another by name."""
        file = self.folder / "hosts"
        lines = [f"10.98.0.{i + 1} {name}" for i, name in enumerate(self.hosts)]
        file.write_text("\n".join(["127.0.0.1 localhost", *lines]) + "\n")
        Path("/etc/hosts").touch()  # minimal systems have none to mount it over
        for host in self.hosts.values():
            call(*host.prefix, "mount", "--bind", str(file), "/etc/hosts")

    def configure(self) -> None:
        """Writes slurm.conf and what goes with it."""
        for name in ("state", "spool", "etc", *(f"spool/{node}" for node in NODES)):
            (self.folder / name).mkdir()
        nodes = [
            f"NodeName={name} NodeAddr=10.98.0.{i + 2} CPUs={CPUS} RealMemory=4000"
            for i, name in enumerate(NODES)
        ]
        lines = [
            "ClusterName=ddstore",
            "SlurmctldHost=head(10.98.0.1)",
            "SlurmUser=root",
            "AuthType=auth/munge",
            # A job that is requeued waits for the end of its credentials.
            f"AuthInfo=socket={self.folder}/munge/socket,cred_expire=5",
            f"StateSaveLocation={self.folder}/state",
            f"SlurmdSpoolDir={self.folder}/spool/%n",
            f"SlurmctldPidFile={self.folder}/slurmctld.pid",
            f"SlurmdPidFile={self.folder}/slurmd-%n.pid",
            f"SlurmctldLogFile={self.log}/slurmctld",
            f"SlurmdLogFile={self.log}/slurmd-%n",
            f"PlugStackConfig={self.folder}/etc/plugstack.conf",
            "ProctrackType=proctrack/linuxproc",
            "TaskPlugin=task/none",
            "MpiDefault=none",
            "SelectType=select/cons_tres",
            "SelectTypeParameters=CR_CPU",
            "SchedulerParameters=bf_interval=1,sched_interval=1,batch_sched_delay=0",
            "SlurmdParameters=config_overrides",
            "ReturnToService=2",
            "KillWait=2",
            *nodes,
            "PartitionName=test Nodes=ALL Default=YES State=UP",
        ]
        etc = self.folder / "etc"
        (etc / "slurm.conf").write_text("\n".join(lines) + "\n")
        (etc / "plugstack.conf").write_text("\n".join(self.plugins) + "\n")
        # There may be no systemd to ask for a group of its own.
        disabled = "CgroupPlugin=disabled\n" if release() >= (23, 11) else ""
        (etc / "cgroup.conf").write_text(disabled)

    def munged(self) -> None:
        """One for all hosts, which share its socket's directory."""
        user = pwd.getpwnam("munge")
        place = self.folder / "munge"
        place.mkdir(0o755)
        key = place / "key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        for path in (place, key):
            os.chown(path, user.pw_uid, user.pw_gid)
        words = [
            *self.hosts["head"].prefix[:-1],
            *("-S", str(user.pw_uid), "-G", str(user.pw_gid), "--", "munged", "-F"),
            *(f"--key-file={key}", f"--socket={place}/socket"),
            *(f"--pid-file={place}/pid", f"--log-file={place}/log"),
            *(f"--seed-file={place}/seed",),
        ]
        self.popen("munged", words)
        self.wait((place / "socket").exists, 20, "munged")

    def daemon(self, host: str, *words: str) -> None:
        """Starts one of Slurm's on a host."""
        self.popen(f"{words[0]}-{host}", self.words(words, "/", host))

    def popen(self, name: str, words: Sequence[str]) -> None:
        with open(self.log / f"{name}.output", "wb") as output:
            self.daemons.append(
                subprocess.Popen(
                    words,
                    env=self.environment(),
                    stdin=subprocess.DEVNULL,
                    stdout=output,
                    stderr=subprocess.STDOUT,
                )
            )

    def ready(self) -> bool:
        """Whether both nodes are idle; fails when a daemon has ended."""
        for daemon in self.daemons:
            if daemon.poll() is not None:
                raise RuntimeError(f"{daemon.args!r} ended\n{self.logs()}")
        states = self.run("sinfo", "-h", "-N", "-o", "%T", check=False)
        return states.stdout.split() == ["idle"] * len(NODES)

    def logs(self, last: int = 2000) -> str:
        """The ends of all logs."""
        return "\n".join(
            f"-- {path.name}:\n{path.read_text(errors='replace')[-last:]}"
            for path in sorted(self.log.iterdir())
        )

    def close(self, keep: bool = False) -> None:
        """Ends all processes of its hosts, jobs too. keep: leaves the logs there."""
        for host in self.hosts.values():
            host.close()
        for daemon in self.daemons:
            daemon.wait(10)
        for path in self.folder.iterdir():
            if keep and path == self.log:
                continue
            if path.is_dir():
                shutil.rmtree(path)
            else:
                path.unlink()
        if not keep:
            self.folder.rmdir()

    # -- use --

    def environment(self, changes: dict[str, str] | None = None) -> dict[str, str]:
        """What commands and jobs find in theirs."""
        env = {k: v for k, v in os.environ.items() if not k.startswith(FOREIGN)}
        path = f"{Path(sys.executable).parent}:{env['PATH']}:/usr/sbin:/sbin"
        own = {"PATH": path, "SLURM_CONF": f"{self.folder}/etc/slurm.conf"}
        return env | own | (changes or {})

    def words(self, words: Sequence[str], cwd: str | Path, host: str) -> list[str]:
        return [*self.hosts[host].prefix, "env", "-C", str(cwd), *words]

    def run(
        self,
        *words: str,
        cwd: str | Path = "/",
        env: dict[str, str] | None = None,
        check: bool = True,
        timeout: float = LIMIT_S,
        host: str = "head",
        stdin: str = "",
    ) -> Finished:
        """A command on the head, or another host."""
        done = subprocess.run(
            self.words(words, cwd, host),
            env=self.environment(env),
            input=stdin,
            capture_output=True,
            text=True,
            timeout=timeout,
            check=False,
        )
        end = Finished(done.returncode, done.stdout, done.stderr)
        assert not check or done.returncode == 0, f"{' '.join(words)}: {end}"
        return end

    @staticmethod
    def wait(condition: Callable[[], object], limit_s: float, what: str) -> None:
        """Returns when the condition holds; fails after limit_s."""
        until = time.monotonic() + limit_s
        while not condition():
            assert time.monotonic() < until, f"waited {limit_s} s for {what}"
            time.sleep(0.05)


class Jobs:
    """The jobs of one test. Programs and their output lie in its folder, which is also
    where commands run."""

    def __init__(self, cluster: Cluster, folder: Path) -> None:
        self.cluster, self.folder = cluster, folder
        self.ids: list[str] = []

    def program(self, name: str, text: str) -> str:
        """Writes a program into the folder; its path."""
        path = self.folder / name
        path.write_text(text)
        path.chmod(0o755)
        return str(path)

    def run(
        self, *words: str, env: dict[str, str] | None = None, **more: Any
    ) -> Finished:
        """A command on the head; ranks meet in `h` of the folder, unless told."""
        own = {"DDSTORE_HANDSHAKE_DIR": f"{self.folder}/h"} | LIMITS | (env or {})
        return self.cluster.run(*words, cwd=self.folder, env=own, **more)

    def submit(
        self, *words: str, env: dict[str, str] | None = None, **more: Any
    ) -> str:
        """A batch job; its number. Its output is found by `output`."""
        options = ("--parsable", f"--output={self.folder}/%j.out")
        number = self.run("sbatch", *options, *words, env=env, **more).stdout.strip()
        self.ids.append(number)
        return number

    def output(self, number: str) -> str:
        """What a job has printed."""
        path = self.folder / f"{number}.out"
        return path.read_text(errors="replace") if path.exists() else ""

    def field(self, number: str, name: str) -> str:
        """What `scontrol show job` says, such as JobState."""
        shown = self.cluster.run("scontrol", "show", "job", number).stdout
        found = re.search(rf"\b{name}=(\S*)", shown)
        assert found, shown
        return found[1]

    def wait(self, number: str, *states: str, limit_s: float = LIMIT_S) -> str:
        """Waits until a job is in one of the states; without any, until it has ended.
        The state."""
        states = states or ENDED
        seen = ""

        def there() -> bool:
            nonlocal seen
            seen = self.field(number, "JobState")
            return seen in states

        try:
            self.cluster.wait(there, limit_s, f"{' or '.join(states)}")
        except AssertionError as exc:
            raise AssertionError(f"{exc}: {seen}\n{self.output(number)}") from None
        return seen

    def passed(self, number: str, limit_s: float = LIMIT_S) -> str:
        """Waits for the good end of a job; its output."""
        state = self.wait(number, limit_s=limit_s)
        assert state == "COMPLETED", f"{state}\n{self.output(number)}"
        return self.output(number)

    def said(self, number: str, words: str, limit_s: float = LIMIT_S) -> None:
        """Waits until a job has printed these words."""
        try:
            self.cluster.wait(lambda: words in self.output(number), limit_s, words)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.output(number)}") from None

    def cancel(self, *numbers: str) -> None:
        """scancel."""
        self.cluster.run("scancel", *numbers)

    def close(self) -> None:
        """Cancels what is left, and waits until the nodes are free again."""
        if self.ids:
            self.cluster.run("scancel", *self.ids, check=False)
        self.cluster.wait(
            lambda: not self.cluster.run("squeue", "-h").stdout, 30, "an empty queue"
        )
