"""Starts the processes of one local run and stays until the last has ended.

One thread, one loop: it reads what the processes print, passes signals on, and ends all
of them when one fails. Each process leads a session and process group of its own, so
that a signal reaches what it has started too. Nothing here needs the C library.
"""

from __future__ import annotations

import contextlib
import os
import resource
import secrets
import select
import selectors
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any

GRACE_S = 5.0  # from SIGTERM to SIGKILL
DRAIN_S = 0.5  # for output that a process outside our groups still holds open
LINE_BYTES = 8 << 20  # a longer line is broken here, so that memory stays bounded
PASSED_ON = (
    signal.SIGINT,
    signal.SIGTERM,
    signal.SIGHUP,
    signal.SIGUSR1,
    signal.SIGUSR2,
)
COLOURS = (36, 33, 32, 35, 34, 31, 96, 93, 92, 95, 94, 91)

# Runs in the new process before the program: asks the kernel to kill it when the
# launcher dies (PR_SET_PDEATHSIG, which survives exec), undoes what Python did to
# signals, and becomes the program. Code between fork and exec of the launcher itself
# could deadlock.
SHIM = """\
import signal
if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
    signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGPIPE, signal.SIG_DFL)
signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
import ctypes, os, sys
ctypes.CDLL(None).prctl(1, int(signal.SIGKILL), 0, 0, 0)
if os.getppid() != int(sys.argv[1]):
    os._exit(1)
try:
    os.execv(sys.argv[2], sys.argv[3:])
except OSError as error:
    text = f"ddstore run: can't start {sys.argv[2]}: {error.strerror}\\n"
    os.write(2, text.encode(errors="surrogateescape"))
    os._exit(126)
"""


class ProgramError(Exception):
    """The program can't be started; `code` is the exit code that shells use for it."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def resolve(command: Sequence[str]) -> tuple[str, list[str]]:
    """Finds the file to execute and the arguments that it gets, the zeroth included.

    A program whose name ends in `.py` is run by this Python. Raises ProgramError with
    code 127 if there is no such program, 126 if it can't be executed.
    """
    program, rest = command[0], list(command[1:])
    if program.endswith(".py"):
        if os.path.isfile(program):
            return sys.executable, [sys.executable, program, *rest]
        raise ProgramError(f"{program}: no such Python program", 127)
    found = shutil.which(program)
    if found is not None:
        return found, [program, *rest]
    if os.path.isdir(program):
        raise ProgramError(f"{program} is a directory, not a program", 126)
    if os.sep in program and os.path.exists(program):
        raise ProgramError(f"{program} is not executable (chmod +x?)", 126)
    where = "no such file" if os.sep in program else "not found on PATH"
    raise ProgramError(f"{program}: {where}", 127)


class Sink:
    """Where lines go: this process's standard output or error. A reader that went away
    is no failure of the run: what would have gone there is dropped."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self.open = True
        self.colour = (
            os.isatty(fd)
            and "NO_COLOR" not in os.environ
            and os.environ.get("TERM", "dumb") != "dumb"
        )

    def write(self, data: bytes) -> None:
        """Writes all bytes, however long that takes, or none any more."""
        rest = memoryview(data)
        while self.open and rest:
            try:
                rest = rest[os.write(self.fd, rest) :]
            except BlockingIOError:
                with contextlib.suppress(InterruptedError):
                    select.select([], [self.fd], [])
            except OSError:
                self.open = False


class Stream:
    """One output of one process, passed on by whole lines, each behind `[rank] `."""

    def __init__(self, rank: int, fd: int, sink: Sink) -> None:
        tag = f"[{rank}] "
        if sink.colour:
            tag = f"\x1b[{COLOURS[rank % len(COLOURS)]}m[{rank}]\x1b[0m "
        self.fd, self.sink, self.tag = fd, sink, tag.encode()
        self.partial = bytearray()

    def feed(self) -> bool:
        """Takes what there is to read; False at the end of the stream."""
        chunk = os.read(self.fd, 1 << 16)
        cut = chunk.rfind(b"\n") + 1
        if cut:
            self.emit(bytes(self.partial) + chunk[:cut])
            self.partial = bytearray(chunk[cut:])
        else:
            self.partial += chunk
        if self.partial and (not chunk or len(self.partial) >= LINE_BYTES):
            self.emit(bytes(self.partial) + b"\n")
            self.partial.clear()
        return bool(chunk)

    def emit(self, lines: bytes) -> None:
        """Writes lines, the last one ended too, by one call, so that none are mixed."""
        body = lines[:-1].replace(b"\n", b"\n" + self.tag)
        self.sink.write(self.tag + body + b"\n")


class Run:
    """The processes of one run. `start` all, then `wait` for the exit code, then
    `close`."""

    def __init__(self, say: Callable[[str], None]) -> None:
        self.say = say
        self.children: list[subprocess.Popen[bytes]] = []
        self.running: dict[int, subprocess.Popen[bytes]] = {}  # by rank
        self.groups: set[int] = set()  # process groups that may still have members
        self.selector = selectors.DefaultSelector()
        self.code = 0  # of the first process that failed
        self.received: list[int] = []  # signals that this process got and passed on
        self.kill_at: float | None = None

    # -- starting --

    def start(
        self, rank: int, shim: list[str], env: dict[str, str], sinks: Sequence[Sink]
    ) -> None:
        """Starts one process; its output goes to `sinks` (none: where ours goes)."""
        # A terminal stays ours: a background process that reads it would be stopped.
        ours = rank == 0 and not os.isatty(0)
        piped = subprocess.PIPE if sinks else None
        known = len(self.received)
        child = subprocess.Popen(
            shim,
            env=env,
            stdin=None if ours else subprocess.DEVNULL,
            stdout=piped,
            stderr=piped,
            start_new_session=True,
        )
        self.children.append(child)
        self.running[rank] = child
        self.groups.add(child.pid)
        for signum in self.received[known:]:  # came while it was being started
            self.signal_group(child.pid, signum)
        for pipe, sink in zip((child.stdout, child.stderr), sinks, strict=False):
            if pipe is not None:
                stream = Stream(rank, pipe.fileno(), sink)
                self.selector.register(pipe, selectors.EVENT_READ, stream)

    # -- signals --

    def signal_group(self, group: int, signum: int) -> bool:
        """Sends a signal (0: asks only); False if the group has no members left."""
        try:
            os.killpg(group, signum)
        except ProcessLookupError:
            self.groups.discard(group)
            return False
        except PermissionError:  # a set-uid program: it's there, and not ours to signal
            pass
        return True

    def signal_all(self, signum: int) -> None:
        """Sends a signal to every process of the run."""
        for group in list(self.groups):
            self.signal_group(group, signum)

    def on_signal(self, signum: int, frame: FrameType | None) -> None:
        """Passes a signal on. Runs between any two steps of this thread, so that it
        works while a write to a slow terminal or pipe waits, too."""
        if signum == signal.SIGINT and signal.SIGINT in self.received:
            signum = signal.SIGKILL
        self.received.append(signum)
        self.signal_all(signum)

    def end_all(self) -> None:
        """Asks everything that still runs to end, and sets the time of the last
        word."""
        self.signal_all(signal.SIGTERM)
        self.kill_at = self.kill_at or time.monotonic() + GRACE_S

    # -- waiting --

    def reap(self) -> None:
        """Takes note of the processes that have ended."""
        for rank, child in list(self.running.items()):
            status = child.poll()
            if status is None:
                continue
            del self.running[rank]
            self.signal_group(child.pid, 0)
            if status != 0 and self.code == 0:
                self.code = status if status > 0 else 128 - status
                if not set(self.received) - {signal.SIGUSR1, signal.SIGUSR2}:
                    rest = "; ending the others" if self.running else ""
                    self.say(f"rank {rank} {how_it_ended(status)}{rest}")
                self.end_all()

    def pump(self, wake: socket.socket, timeout_s: float | None) -> None:
        """Waits for output, a signal or the end of a process, and handles output."""
        for key, _ in self.selector.select(timeout_s):
            if key.fileobj is wake:
                with contextlib.suppress(BlockingIOError):
                    wake.recv(4096)
            elif not key.data.feed():
                self.selector.unregister(key.fileobj)

    def kill_if_due(self) -> float | None:
        """Kills what outlived its grace; else returns the seconds left of it, if
        any."""
        if self.kill_at is None:
            return None
        left = self.kill_at - time.monotonic()
        if left <= 0:
            self.kill_at = None
            self.signal_all(signal.SIGKILL)
            return None
        return left

    def wait(self, wake: socket.socket) -> int:
        """Stays until the last process has ended, then ends what they left behind,
        passes on their last words and returns the exit code: the first failed one's, or
        0."""
        self.selector.register(wake, selectors.EVENT_READ)
        self.reap()
        while self.running:
            self.pump(wake, self.kill_if_due())
            self.reap()
        if self.groups:
            self.end_all()
        quiet_at = None  # when to stop listening to what holds our pipes elsewhere
        while len(self.selector.get_map()) > 1 or self.groups:
            self.kill_if_due()
            self.pump(wake, 0.02)
            for group in list(self.groups):
                reap_orphans(group)
                self.signal_group(group, 0)
            if self.groups and self.kill_at is not None:
                continue
            quiet_at = quiet_at or time.monotonic() + DRAIN_S
            if time.monotonic() >= quiet_at:
                break
        self.last_words()
        return self.code

    def last_words(self) -> None:
        """Ends unfinished lines of streams that we stop listening to."""
        for key in list(self.selector.get_map().values()):
            if isinstance(key.data, Stream) and key.data.partial:
                key.data.emit(bytes(key.data.partial) + b"\n")

    def close(self) -> None:
        """Leaves no process and no descriptor behind. Twice does nothing."""
        if self.running:
            self.signal_all(signal.SIGKILL)
        for child in self.children:
            child.wait()
            for pipe in (child.stdout, child.stderr):
                if pipe is not None:
                    pipe.close()
        self.running.clear()
        self.selector.close()


def adopt_orphans(on: bool) -> None:
    """Makes what a process leaves behind a child of ours when that process ends (on),
    so that nobody else has to reap it (PR_SET_CHILD_SUBREAPER)."""
    import ctypes

    ctypes.CDLL(None).prctl(36, int(on), 0, 0, 0)


def reap_orphans(group: int) -> None:
    """Takes the exit codes of a process group whose leader is gone."""
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-group, os.WNOHANG)[0] != 0:
            pass


def how_it_ended(status: int) -> str:
    """Words for a process's status as subprocess tells it (negative: a signal)."""
    if status > 0:
        return f"exited with code {status}"
    try:
        return f"was killed by {signal.Signals(-status).name}"
    except ValueError:
        return f"was killed by signal {-status}"


@contextlib.contextmanager
def signals_to(run: Run) -> Iterator[socket.socket]:
    """Takes the signals that are passed on for as long as the block runs; yields a
    socket that becomes readable with each, and with each process that ends."""
    old: dict[int, Any] = {}
    read, write = socket.socketpair()
    read.setblocking(False)
    write.setblocking(False)
    old_fd = signal.set_wakeup_fd(write.fileno(), warn_on_full_buffer=False)
    try:
        old[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, lambda *_: None)
        for passed_on in PASSED_ON:
            # Ignored from the start (nohup, a shell's `&`): that stands for the whole
            # run.
            if signal.getsignal(passed_on) is not signal.SIG_IGN:
                old[passed_on] = signal.signal(passed_on, run.on_signal)
        yield read
    finally:
        for signum, handler in old.items():
            signal.signal(signum, signal.SIG_DFL if handler is None else handler)
        signal.set_wakeup_fd(old_fd)
        read.close()
        write.close()


def open_standard_descriptors() -> None:
    """Puts /dev/null where descriptor 0, 1 or 2 is closed, so that no pipe of ours gets
    that number."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            null = os.open(os.devnull, os.O_RDWR)  # takes the lowest number: fd
            os.set_inheritable(null, True)


def allow_descriptors(count: int) -> None:
    """Raises the soft limit of open files, as far as the hard one lets it, for two
    pipes a process."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        top = count if hard == resource.RLIM_INFINITY else min(count, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (top, hard))


def environment(rank: int, size: int, run_id: str, directory: str) -> dict[str, str]:
    """What one process finds in its environment."""
    env = dict(os.environ)
    env["DDSTORE_RANK"] = str(rank)
    env["DDSTORE_SIZE"] = str(size)
    env["DDSTORE_RUN_ID"] = run_id
    env["DDSTORE_HANDSHAKE_DIR"] = directory
    # Lines appear when they are printed, and those of a process that crashes are not
    # lost.
    env.setdefault("PYTHONUNBUFFERED", "1")
    return env


@contextlib.contextmanager
def handshake_dir() -> Iterator[str]:
    """The directory the user has chosen, else a private one (mode 0700) for this
    run."""
    chosen = os.environ.get("DDSTORE_HANDSHAKE_DIR")
    if chosen:
        yield chosen
        return
    made = tempfile.mkdtemp(prefix="ddstore-run-")
    try:
        yield made
    finally:
        shutil.rmtree(made, ignore_errors=True)


def launch(command: Sequence[str], size: int, prefix: bool = True) -> int:
    """Runs `size` processes of one program on this machine and returns an exit code.

    command: program and arguments; a program that ends in `.py` is run by this Python.
    prefix: put `[rank] ` before every line that they print.

    Returns 0 when all returned 0, else the code of the first that failed (128 + N if
    signal N killed it), after the others were ended. Raises ProgramError if the program
    can't be started, OSError if the machine has no room for the processes. Main thread
    only, since it takes over the handling of signals meanwhile.
    """
    path, argv = resolve(command)
    open_standard_descriptors()
    shim = [sys.executable, "-I", "-S", "-c", SHIM, str(os.getpid()), path, *argv]
    sinks = (Sink(1), Sink(2)) if prefix else ()
    if prefix:
        allow_descriptors(2 * size + 64)
    stderr = sinks[1] if sinks else Sink(2)
    run = Run(lambda text: stderr.write(f"ddstore run: {text}\n".encode()))
    run_id = secrets.token_hex(16)
    with contextlib.ExitStack() as stack:
        directory = stack.enter_context(handshake_dir())
        adopt_orphans(True)
        stack.callback(adopt_orphans, False)
        stack.callback(run.close)
        wake = stack.enter_context(signals_to(run))
        for rank in range(size):
            run.start(rank, shim, environment(rank, size, run_id, directory), sinks)
        return run.wait(wake)
