"""Members as processes of their own that do what a test tells them, line by line, and
can be stopped, killed and put into other namespaces meanwhile.

A test sends Python text to a member, which runs it and answers with the value of the
last expression (as JSON) or the exception. Every answer is waited for with a limit.
"""

from __future__ import annotations

import json
import os
import select
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

LIMIT_S = 60.0  # for one answer; the machine may be loaded

SERVER = """\
import ast, ctypes, json, os, signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's "&" ignores it
ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)  # dies with the test
reply_to = os.fdopen(os.dup(1), "w", buffering=1)
os.dup2(2, 1)
space = {"__name__": "member"}
for line in iter(sys.stdin.readline, ""):
    try:
        body = ast.parse(json.loads(line)).body
        last = body.pop() if body and isinstance(body[-1], ast.Expr) else None
        exec(compile(ast.Module(body, []), "<test>", "exec"), space)
        value = None
        if last is not None:
            value = eval(compile(ast.Expression(last.value), "<test>", "eval"), space)
        answer = {"value": value}
    except BaseException as exc:
        answer = {"error": type(exc).__name__, "text": str(exc),
                  "kinds": [c.__name__ for c in type(exc).__mro__],
                  "code": getattr(exc, "code", None)}
    reply_to.write(json.dumps(answer, default=repr) + "\\n")
os._exit(0)
"""

# What members know. Every element of a shard tells its run, row and column.
PRELUDE = """\
import os, socket, sys, threading, time
import numpy as np
import pyddstore
from pyddstore import PyDDStore

def made(run, rows, width=4):
    rows = np.asarray(rows, dtype=np.int64)
    return run * 10**12 + rows[:, None] * 1000 + np.arange(width) % 1000

def core(dir, rank, size, run=1, rows=64, width=4, name="x", **more):
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir, rank=rank, size=size, **more)
    store.add(name, made(run, np.arange(rank * rows, (rank + 1) * rows), width))
    return os.getpid()

def extra(dir, name="x"):
    global store
    store = PyDDStore(None, method=2, handshake_dir=dir)
    store.join(name)
    return store.info(name)

def read(rows, width=4, name="x", how="batch"):
    # The run whose data was read; any mixture of runs or wrong element raises.
    rows = list(rows)
    out = np.full((len(rows), width), -1, dtype=np.int64)
    if how == "batch":
        store.get_batch(name, out, rows)
    else:
        for i, row in enumerate(rows):
            store.get(name, out[i:i + 1], row)
    run = int(out[0, 0] // 10**12)
    if not np.array_equal(out, made(run, rows, width)):
        raise AssertionError(f"wrong data: {out[:3]!r}")
    return run

class Loop(threading.Thread):
    # Reads one row after another of [first, last) until it fails or is told to stop.
    def __init__(self, first, last, width=4, run=1, name="x", count=1):
        super().__init__(daemon=True)
        self.rows, self.width, self.run_number = (first, last), width, run
        self.name_of, self.count = name, count
        self.reads, self.wrong, self.error, self.failed_at = 0, 0, None, None
        self.longest, self.stopping = 0.0, False

    def run(self):
        first, last = self.rows
        out = np.empty((self.count, self.width), dtype=np.int64)
        at = first
        while not self.stopping:
            begun = time.monotonic()
            try:
                if self.count == 1:
                    store.get(self.name_of, out, at)
                    rows = [at]
                else:
                    rows = [first + (at - first + 7 * i) % (last - first)
                            for i in range(self.count)]
                    store.get_batch(self.name_of, out, rows)
            except BaseException as exc:
                self.failed_at = time.monotonic()
                self.error = [type(exc).__name__, str(exc)]
                return
            self.longest = max(self.longest, time.monotonic() - begun)
            if not np.array_equal(out, made(self.run_number, rows, self.width)):
                self.wrong += 1
            self.reads += 1
            at = first + (at - first + 1) % (last - first)

    def told(self):
        return {"reads": self.reads, "wrong": self.wrong, "error": self.error,
                "failed_at": self.failed_at, "longest": self.longest,
                "alive": self.is_alive()}

loops = {}
def loop(key, *args, **more):
    loops[key] = Loop(*args, **more)
    loops[key].start()

def told():
    return {key: one.told() for key, one in loops.items()}

def end_loops():
    for one in loops.values():
        one.stopping = True
    for one in loops.values():
        one.join(30)
    return told()
"""

# A member that forks others, which need no new interpreter. Each runs a function and
# sends what it tells, line by line; an exception is told as [class, text].
NURSERY = (
    PRELUDE
    + """
import ctypes, json, select, signal

class Child:
    def __init__(self, fn, *args, **env):
        r, w = os.pipe()
        self.started = time.monotonic()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                ctypes.CDLL(None).prctl(1, 9, 0, 0, 0)
                os.close(r)
                os.environ.update(env)
                tell = lambda value: os.write(w, json.dumps(value).encode() + b"\\n")
                try:
                    fn(tell, *args)
                except BaseException as exc:
                    tell([type(exc).__name__, str(exc)])
            finally:
                os._exit(0)
        os.close(w)
        self.pipe, self.buffer, self.told = r, b"", []

    def hear(self, limit_s=30):
        # The next thing it tells; None: it ended.
        until = time.monotonic() + limit_s
        while b"\\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.pipe], [], [], left)[0]:
                raise TimeoutError(f"child {self.pid} told nothing in {limit_s} s")
            chunk = os.read(self.pipe, 65536)
            if not chunk:
                return None
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\\n", 1)
        self.told.append(json.loads(line))
        return self.told[-1]

    def end(self):
        try:
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
        except (ProcessLookupError, ChildProcessError):
            pass
        if self.pipe >= 0:
            os.close(self.pipe)
            self.pipe = -1

def end_all(children):
    for child in children:
        try:
            os.kill(child.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    for child in children:
        child.end()
"""
)


class MemberError(Exception):
    """What a member's code raised: its class's name, bases and text."""

    def __init__(self, answer: dict[str, Any]) -> None:
        super().__init__(f"{answer['error']}: {answer['text']}")
        self.kind: str = answer["error"]
        self.kinds: list[str] = answer["kinds"]
        self.text: str = answer["text"]
        self.code: Any = answer["code"]


class MemberGone(Exception):
    """The member ended without an answer."""


class Member:
    """One process. `ask` and `answer`, or both at once by `run`."""

    def __init__(
        self,
        env: dict[str, str] | None = None,
        prefix: Sequence[str] = (),
        prelude: str = PRELUDE,
        stderr: Any = None,
    ) -> None:
        full = {k: v for k, v in os.environ.items() if not is_setting(k)}
        full |= {
            "DDSTORE_HANDSHAKE_TIMEOUT_S": "30",
            "DDSTORE_READ_TIMEOUT_S": "20",
            "PYTHONSAFEPATH": "1",
            "PYTHONUNBUFFERED": "1",
            "OMP_NUM_THREADS": "1",
            "OPENBLAS_NUM_THREADS": "1",
        }
        full |= env or {}
        self.process = subprocess.Popen(
            [*prefix, sys.executable, "-c", SERVER],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            env=full,
        )
        self.buffer = b""
        self.ask(prelude + "\nos.getpid()" if prelude else "import os\nos.getpid()")
        self.inner_pid: int | None = None

    def ready(self) -> int:
        """Waits for the start; the process's pid as itself sees it."""
        if self.inner_pid is None:
            self.inner_pid = self.answer()
        return self.inner_pid

    def ask(self, code: str) -> None:
        """Sends code to run."""
        assert self.process.stdin is not None
        with suppress(BrokenPipeError):
            self.process.stdin.write(json.dumps(code).encode() + b"\n")
            self.process.stdin.flush()

    def answer(self, limit_s: float = LIMIT_S) -> Any:
        """The value of the oldest code not answered yet, or its exception."""
        assert self.process.stdout is not None
        until = time.monotonic() + limit_s
        while b"\n" not in self.buffer:
            left = until - time.monotonic()
            if left <= 0 or not select.select([self.process.stdout], [], [], left)[0]:
                raise TimeoutError(f"no answer of a member within {limit_s} s")
            chunk = os.read(self.process.stdout.fileno(), 1 << 20)
            if not chunk:
                raise MemberGone(f"a member ended with status {self.process.wait()}")
            self.buffer += chunk
        line, self.buffer = self.buffer.split(b"\n", 1)
        answer = json.loads(line)
        if "error" in answer:
            raise MemberError(answer)
        return answer["value"]

    def run(self, code: str, limit_s: float = LIMIT_S) -> Any:
        """Runs code there and returns the value of its last expression."""
        self.ready()
        self.ask(code)
        return self.answer(limit_s)

    @property
    def pid(self) -> int:
        """The Python process's pid, as this process sees it."""
        return innermost(self.process.pid)

    def signal(self, number: int) -> None:
        """Sends a signal to the member itself, not to what it was started by."""
        with suppress(ProcessLookupError):
            os.kill(self.pid, number)

    def kill(self) -> float:
        """SIGKILL; returns when (time.monotonic)."""
        when = time.monotonic()
        self.signal(signal.SIGKILL)
        return when

    def stop(self) -> None:
        """SIGSTOP; returns when all its threads stand."""
        self.signal(signal.SIGSTOP)
        pid = self.pid
        wait_until(
            lambda: all(state(task) == "T" for task in tasks(pid)), pause_s=0.005
        )

    @staticmethod
    def end(pid: int) -> None:
        """Kills a process that a member has started."""
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)

    def close(self) -> None:
        """Ends it, whatever it does."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)  # a starter stops with its child
            self.signal(signal.SIGCONT)
            self.kill()
            with suppress(subprocess.TimeoutExpired):
                self.process.wait(5)
            if self.process.poll() is None:
                self.process.kill()
        self.process.wait()
        for pipe in (self.process.stdin, self.process.stdout):
            assert pipe is not None
            with suppress(OSError):
                pipe.close()


def is_setting(name: str) -> bool:
    """Whether an environment variable could change what the library does."""
    return name.startswith(("DDSTORE_", "SLURM_", "PMI_", "OMPI_", "TORCHELASTIC")) or (
        name in ("FABRIC_IFACE", "FI_PROVIDER", "RANK", "WORLD_SIZE")
    )


def innermost(pid: int) -> int:
    """Follows starters (nsenter, unshare, sh) down to the one that does the work."""
    while True:
        try:
            text = Path(f"/proc/{pid}/comm").read_text().strip()
            below = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
        except OSError:
            return pid
        if text not in ("nsenter", "unshare", "sh", "prlimit") or not below:
            return pid
        pid = int(below[0])


class Crew:
    """The members of one test; all are ended with it."""

    def __init__(self) -> None:
        self.members: list[Member] = []

    def hire(self, **how: Any) -> Member:
        """One more member."""
        member = Member(**how)
        self.members.append(member)
        return member

    def hire_many(self, n: int, **how: Any) -> list[Member]:
        """Several, started side by side."""
        members = [self.hire(**how) for _ in range(n)]
        for member in members:
            member.ready()
        return members

    def core(self, directory: Path, n: int, **how: Any) -> list[Member]:
        """A core group that holds variable x, `more` as arguments of core()."""
        more = "".join(f", {k}={v!r}" for k, v in how.pop("more", {}).items())
        members = self.hire_many(n, **how)
        together(
            members,
            [f"core({str(directory)!r}, {r}, {n}{more})" for r in range(n)],
        )
        return members

    def close(self) -> None:
        """Ends them."""
        for member in self.members:
            member.close()


@contextmanager
def crew() -> Iterator[Crew]:
    """A crew for a `with` statement."""
    one = Crew()
    try:
        yield one
    finally:
        one.close()


def together(
    members: Sequence[Member], codes: Sequence[str], limit_s: float = LIMIT_S
) -> list[Any]:
    """Runs one code a member at the same time. The first failure is raised, once all
    have answered."""
    outcomes = attempt(members, codes, limit_s)
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            raise outcome
    return outcomes


def attempt(
    members: Sequence[Member], codes: Sequence[str], limit_s: float = LIMIT_S
) -> list[Any]:
    """The same, with failures as values."""
    for member in members:
        member.ready()
    for member, code in zip(members, codes, strict=True):
        member.ask(code)
    outcomes: list[Any] = []
    for member in members:
        try:
            outcomes.append(member.answer(limit_s))
        except (MemberError, MemberGone, TimeoutError) as exc:
            outcomes.append(exc)
    return outcomes


def tasks(pid: int) -> list[Path]:
    """A process's threads, as directories of /proc."""
    return list(Path(f"/proc/{pid}/task").iterdir())


def state(task: Path) -> str:
    """The letter of a thread's state, e.g. T for stopped."""
    return (task / "stat").read_text().rsplit(")", 1)[1].split()[0]


def cpu_nanoseconds(pid: int) -> int:
    """CPU time that the living threads of a process have used, user and system; of the
    scheduler, since clock ticks are too coarse for idle ones."""
    total = 0
    for task in tasks(pid):
        with suppress(OSError):
            total += int((task / "schedstat").read_text().split()[0])
    return total


def rss_kib(pid: int) -> int:
    """Resident memory, anonymous and shared."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1])
    return 0


def descriptors(pid: int) -> int:
    """Open descriptors."""
    return len(os.listdir(f"/proc/{pid}/fd"))


def wait_until(what: Any, limit_s: float = LIMIT_S, pause_s: float = 0.05) -> Any:
    """Calls `what` until it is true; its value."""
    until = time.monotonic() + limit_s
    while not (value := what()):
        if time.monotonic() > until:
            raise TimeoutError("what was waited for did not come")
        time.sleep(pause_s)
    return value
