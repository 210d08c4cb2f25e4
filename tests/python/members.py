"""Members as processes of their own, each running a function of a test file.

A test calls ``members(n, function)``: n processes load the test file (without its tests
and without pytest), each calls ``function(member)`` and hands back what it returns. An
exception in a member fails the test and shows the member's traceback. For members that
are sent signals meanwhile, ``members.start`` returns at once.
"""

from __future__ import annotations

import ast
import os
import pathlib
import pickle
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from typing import Any

LIMIT_S = 60.0  # for all members of a test together; the machine may be loaded
LAUNCHERS = ("DDSTORE_", "FABRIC_IFACE", "SLURM_", "OMPI_", "PMI_", "PMIX_")

# ---- in a member ---------------------------------------------------------------------


class Member:
    """What a member's function is given."""

    def __init__(self, rank: int, size: int, dir: str, signs: str) -> None:
        self.rank, self.size, self.dir = rank, size, dir
        self.signs = pathlib.Path(signs)

    def store(self, method: int = 1, **more: Any) -> Any:
        """The store of this member's group."""
        import pyddstore

        given = {"rank": self.rank, "size": self.size, "handshake_dir": self.dir}
        return pyddstore.PyDDStore(None, method=method, **(given | more))

    def extra(self, **more: Any) -> Any:
        """A store of an extra member that reads the group's."""
        import pyddstore

        given = {"method": 2, "handshake_dir": self.dir}
        return pyddstore.PyDDStore(None, **(given | more))

    def mark(self, sign: str) -> None:
        """Lets everybody know."""
        (self.signs / sign).touch()

    def wait(self, sign: str, limit_s: float = LIMIT_S / 2) -> None:
        """Waits for a sign of another member, or of the test."""
        wait_for((self.signs / sign).exists, limit_s, sign)

    def meet(self, sign: str) -> None:
        """A barrier that doesn't need the library."""
        self.mark(f"{sign}.{self.rank}")
        for rank in range(self.size):
            self.wait(f"{sign}.{rank}")


def wait_for(condition: Callable[[], object], limit_s: float, what: str) -> None:
    """Returns when the condition holds; fails after limit_s."""
    until = time.monotonic() + limit_s
    while not condition():
        assert time.monotonic() < until, f"waited {limit_s} s for {what}"
        time.sleep(0.005)


def raises(kind: type[BaseException], *words: str, call: Callable[[], object]) -> Any:
    """The exception that call() raises: of that kind, with all words in its text."""
    try:
        value = call()
    except kind as exc:
        caught = exc
    else:
        raise AssertionError(f"no {kind.__name__} was raised, but returned {value!r}")
    for word in words:
        assert word in str(caught), f"{word!r} is not in {caught!r}"
    return caught


def load(path: str) -> dict[str, Any]:
    """The functions and constants of a test file, without pytest and the tests."""

    def wanted(node: ast.stmt) -> bool:
        if isinstance(node, ast.FunctionDef):
            return not (node.name.startswith("test_") or node.decorator_list)
        if isinstance(node, ast.Import | ast.ImportFrom):
            return "pytest" not in ast.unparse(node)
        return not any(
            isinstance(n, ast.Name) and n.id == "pytest" for n in ast.walk(node)
        )

    sys.path.append(os.path.dirname(path))  # helpers beside it
    tree = ast.parse(pathlib.Path(path).read_bytes())
    tree.body = [node for node in tree.body if wanted(node)]
    space: dict[str, Any] = {"__name__": "member", "__file__": path}
    exec(compile(tree, path, "exec"), space)
    return space


def main() -> None:
    """Runs one function; its outcome goes into a file."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # dies with the test
    signal.signal(signal.SIGINT, signal.default_int_handler)
    sys.modules["members"] = sys.modules["__main__"]
    sys.path.insert(0, str(pathlib.Path(__file__).parent))  # in spite of PYTHONSAFEPATH
    outcome = sys.argv[1]
    task = pickle.loads(pathlib.Path(outcome + ".task").read_bytes())
    try:
        function = load(task["path"])[task["name"]]
        answer = (True, function(Member(*task["member"]), **task["more"]))
    except BaseException:
        answer = (False, traceback.format_exc())
    pathlib.Path(outcome + ".new").write_bytes(pickle.dumps(answer))
    os.rename(outcome + ".new", outcome)


# ---- in the test ---------------------------------------------------------------------


class Process:
    """A member seen from the test."""

    def __init__(self, outcome: pathlib.Path, env: dict[str, str]) -> None:
        self.outcome = outcome
        self.output = outcome.with_suffix(".output")
        with open(self.output, "wb") as output:
            self.popen = subprocess.Popen(
                [sys.executable, __file__, str(outcome)],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                env=env,
            )

    def text(self) -> str:
        """What the member has printed."""
        return self.output.read_text(errors="replace")

    def signal(self, number: int) -> None:
        self.popen.send_signal(number)

    def ended(self, limit_s: float = LIMIT_S) -> int:
        """Its exit status, which is waited for."""
        return self.popen.wait(limit_s)

    def result(self, limit_s: float = LIMIT_S) -> Any:
        """What the function returned, after the process has ended well."""
        try:
            status = self.popen.wait(limit_s)
        except subprocess.TimeoutExpired:
            why = f"it still runs after {limit_s} s\n{self.text()}"
            raise AssertionError(why) from None
        if not self.outcome.exists():
            raise AssertionError(f"it ended with status {status}\n{self.text()}")
        good, value = pickle.loads(self.outcome.read_bytes())
        if not good:
            raise AssertionError(f"{value}\n{self.text()}")
        assert status == 0, f"it ended with status {status}\n{self.text()}"
        return value


class Members:
    """Starts members, and kills those that are left."""

    def __init__(self, path: str, folder: pathlib.Path) -> None:
        self.path = path
        self.folder = folder
        self.dir = str(folder / "exchange")
        self.signs = folder / "signs"
        self.signs.mkdir()
        self.started: list[Process] = []

    def start(
        self,
        function: Callable[..., Any],
        rank: int = -1,
        size: int = 0,
        env: dict[str, str] | None = None,
        dir: str | None = None,
        **more: Any,
    ) -> Process:
        """One member that calls function(member, **more)."""
        outcome = self.folder / f"member{len(self.started)}"
        task = {
            "path": self.path,
            "name": function.__name__,
            "member": (rank, size, dir or self.dir, str(self.signs)),
            "more": more,
        }
        pathlib.Path(f"{outcome}.task").write_bytes(pickle.dumps(task))
        process = Process(outcome, environment(**(env or {})))
        self.started.append(process)
        return process

    def __call__(
        self,
        size: int,
        function: Callable[..., Any],
        env: dict[str, str] | Sequence[dict[str, str]] | None = None,
        limit_s: float = LIMIT_S,
        **more: Any,
    ) -> list[Any]:
        """What the members of a group of `size` return, by rank."""
        own = [env] * size if env is None or isinstance(env, dict) else env
        group = [
            self.start(function, rank, size, own[rank], **more) for rank in range(size)
        ]
        until = time.monotonic() + limit_s
        results, failures = [], []
        for rank, process in enumerate(group):
            try:
                results.append(process.result(max(until - time.monotonic(), 0.1)))
            except AssertionError as exc:
                failures.append(f"rank {rank}: {exc}")
        assert not failures, "\n".join(failures)
        return results

    def mark(self, sign: str) -> None:
        (self.signs / sign).touch()

    def wait(self, sign: str, limit_s: float = LIMIT_S / 2) -> None:
        try:
            wait_for((self.signs / sign).exists, limit_s, sign)
        except AssertionError as exc:
            raise AssertionError(f"{exc}\n{self.failures()}") from None

    def failures(self) -> str:
        """What members that have ended badly have printed."""
        said = []
        for one in self.started:
            if one.outcome.exists():
                good, value = pickle.loads(one.outcome.read_bytes())
                said += [] if good else [f"{value}\n{one.text()}"]
        return "\n".join(said)

    def end(self) -> None:
        for process in self.started:
            if process.popen.poll() is None:
                process.popen.kill()
            process.popen.wait()


def environment(**changes: str) -> dict[str, str]:
    """This environment without what a launcher or a user has set for the library."""
    env = {k: v for k, v in os.environ.items() if not k.startswith(LAUNCHERS)}
    return env | {"DDSTORE_HANDSHAKE_TIMEOUT_S": "30"} | changes


if __name__ == "__main__":
    main()
