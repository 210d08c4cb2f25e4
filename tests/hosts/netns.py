"""Hosts of a test: network namespaces joined by virtual cables, each with processes,
host name and /proc of its own, so that members on two of them share nothing but files.
"""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Sequence
from contextlib import suppress
from itertools import count

from fault_support import Crew, Member, innermost, wait_until

NUMBERS = count()


def call(*words: str, check: bool = True) -> str:
    """Runs a program; its output."""
    done = subprocess.run(
        words, capture_output=True, text=True, timeout=30, check=False
    )
    if check and done.returncode:
        raise RuntimeError(f"{' '.join(words)}: {done.stderr.strip()}")
    return done.stdout


class Host:
    """One namespace and the process that keeps its own PID and host name spaces."""

    def __init__(self, name: str, net: str) -> None:
        self.name, self.net = name, net
        call("ip", "netns", "add", net)
        self.ip("link", "set", "lo", "up")
        self.keeper = subprocess.Popen(
            [
                *("nsenter", f"--net=/run/netns/{net}", "unshare", "--pid", "--uts"),
                *("--mount", "--fork", "--kill-child", "--mount-proc", "sh", "-c"),
                f"hostname {name}; echo up; exec sleep 86400",
            ],
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # unshare complains when its child is killed
        )
        assert self.keeper.stdout is not None
        assert self.keeper.stdout.readline() == b"up\n"
        self.init = innermost(self.keeper.pid)

    def ip(self, *words: str, check: bool = True) -> str:
        """Runs ip(8) inside."""
        return call("ip", "-n", self.net, *words, check=check)

    @property
    def prefix(self) -> list[str]:
        """Starts a program on this host."""
        # -r: where this runs in a chroot, entering a mount namespace would leave it.
        return ["nsenter", "-t", str(self.init), "-n", "-p", "-u", "-m", "-r", "--"]

    def kill(self) -> float:
        """All its processes die at once; when."""
        when = time.monotonic()
        with suppress(ProcessLookupError):
            os.kill(self.init, 9)
        self.keeper.wait()
        return when

    def close(self) -> None:
        """Takes it away, also a half-made one."""
        if hasattr(self, "keeper"):
            self.kill()
            assert self.keeper.stdout is not None
            self.keeper.stdout.close()
        call("ip", "netns", "del", self.net, check=False)


class Net:
    """The hosts of one test, and their members."""

    def __init__(self, hands: Crew) -> None:
        self.hands = hands
        self.hosts: list[Host] = []
        self.tag = f"{os.getpid() % 100000:x}{next(NUMBERS):x}"

    def host(self, name: str) -> Host:
        """One more."""
        host = Host(name, f"ddt{self.tag}{name}")
        self.hosts.append(host)
        return host

    def join(
        self,
        a: Host,
        b: Host,
        name: str = "eth0",
        addresses: Sequence[str] = ("10.99.0.1/24", "10.99.0.2/24"),
    ) -> None:
        """A cable between two hosts, as an interface of that name on both. Its ends are
        made inside, so that nothing of it is ever seen outside."""
        a.ip("link", "add", name, "type", "veth", "peer", "name", name, "netns", b.net)
        for host, address in zip((a, b), addresses, strict=True):
            if ":" in address:
                host.ip("addr", "add", address, "dev", name, "nodad")
            else:
                host.ip("addr", "add", address, "dev", name)
            host.ip("link", "set", name, "up")
        for host in (a, b):  # the carrier is told with a delay
            wait_until(lambda h=host: "state UP" in h.ip("link", "show", name))

    def dead(self, host: Host, name: str, address: str) -> None:
        """An interface that is up, has a carrier and an address, and leads nowhere."""
        host.ip("link", "add", name, "type", "veth", "peer", "name", f"{name}-end")
        host.ip("addr", "add", address, "dev", name)
        for one in (name, f"{name}-end"):
            host.ip("link", "set", one, "up")
        wait_until(lambda: "state UP" in host.ip("link", "show", name))

    def member(self, host: Host, env: dict[str, str] | None = None) -> Member:
        """A process on a host."""
        return self.hands.hire(env=env, prefix=host.prefix)

    def close(self) -> None:
        """Takes all away."""
        self.hands.close()
        for host in self.hosts:
            host.close()


def why_not() -> str:
    """Why hosts can't be made here; "" if they can."""
    if os.geteuid() != 0:
        return "hosts are network namespaces, which only root can make"
    name = f"ddt{os.getpid():x}try"
    try:
        call("ip", "netns", "add", name)
        call(
            "nsenter",
            f"--net=/run/netns/{name}",
            "unshare",
            "--pid",
            "--uts",
            "--fork",
            "--mount-proc",
            "true",
        )
    except (OSError, RuntimeError) as exc:
        return f"network namespaces can't be made here: {exc}"
    finally:
        with suppress(OSError):
            call("ip", "netns", "del", name, check=False)
    return ""
