"""A cluster whose nodes load the SPANK plugin, each with a state and NICs of its own,
and jobs on it of a user who isn't root."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from cluster import NODES, Cluster, Finished, Jobs
from netns import call

USER = 65534
TOPOLOGY = Path(__file__).parents[1] / "c" / "topology"
MACHINES = {"n1": "one_nic.xml", "n2": "four_domains.xml"}


class SpankCluster(Cluster):
    """plugin: its file."""

    def __init__(self, plugin: Path) -> None:
        super().__init__()
        self.plugin = plugin
        self.shared = self.folder / "shared"  # as if it were on all nodes
        self.shared.mkdir()
        self.shared.chmod(0o1777)
        self.plugins = [self.line("enable=always")]

    def line(self, *arguments: str) -> str:
        """Of plugstack.conf."""
        places = (f"dir={self.shared}/%u", f"state={self.folder}/node-state")
        return " ".join(("optional", str(self.plugin), *places, *arguments))

    def use(self, *lines: str) -> None:
        """Changes plugstack.conf, which is read at the start of every step."""
        path = self.folder / "etc" / "plugstack.conf"
        path.write_text("\n".join(lines) + "\n")

    def names(self) -> None:
        super().names()
        place = self.folder / "node-state"
        place.mkdir()
        for name in NODES:
            own = self.state(name)
            own.mkdir()
            call(*self.hosts[name].prefix, "mount", "--bind", str(own), str(place))

    def state(self, node: str) -> Path:
        """Of the plugin on a node."""
        return self.folder / f"state-{node}"

    def daemon(self, host: str, *words: str) -> None:
        if host in MACHINES:
            words = ("env", f"HWLOC_XMLFILE={TOPOLOGY / MACHINES[host]}", *words)
        self.popen(f"{host}-daemon", self.words(words, "/", host))

    def idle(self) -> bool:
        """Whether both nodes are, and nothing runs."""
        states = self.run("sinfo", "-h", "-N", "-o", "%T").stdout.split()
        return states == ["idle"] * 2 and not self.run("squeue", "-h").stdout


class UserJobs(Jobs):
    """As Jobs, of a user of that number."""

    def __init__(self, cluster: Cluster, folder: Path, uid: int = USER) -> None:
        super().__init__(cluster, folder)
        self.uid = uid
        folder.mkdir(exist_ok=True)
        os.chown(folder, uid, uid)

    def run(
        self, *words: str, env: dict[str, str] | None = None, **more: Any
    ) -> Finished:
        ids = (f"--reuid={self.uid}", f"--regid={self.uid}", "--clear-groups")
        return self.cluster.run(
            "setpriv", *ids, *words, cwd=self.folder, env=env, **more
        )
