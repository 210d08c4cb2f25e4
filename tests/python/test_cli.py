"""The command line, in processes of its own."""

from __future__ import annotations

import json
import os
import pathlib
import pty
import re
import signal
import stat
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

DDSTORE = [sys.executable, "-m", "pyddstore.cli"]
LIMIT_S = 30.0

Start = Callable[..., "subprocess.Popen[str]"]


def environment(**changes: str) -> dict[str, str]:
    """This environment without the library's settings, and with some changes."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("DDSTORE_")}
    return env | changes


@pytest.fixture
def start(tmp_path: pathlib.Path) -> Iterator[Start]:
    """Starts `ddstore ARGUMENTS...` in an empty directory; nothing survives the
    test."""
    started: list[subprocess.Popen[str]] = []
    # A test run in the background of a shell ignores SIGINT, and its children would
    # too.
    old = signal.signal(signal.SIGINT, signal.default_int_handler)

    def start_one(*args: str, **options: Any) -> subprocess.Popen[str]:
        settings: dict[str, Any] = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.PIPE,
            "stderr": subprocess.PIPE,
            "cwd": tmp_path,
            "text": True,
            "env": environment(TMPDIR=str(tmp_path)),
        }
        started.append(subprocess.Popen([*DDSTORE, *args], **(settings | options)))
        return started[-1]

    yield start_one
    signal.signal(signal.SIGINT, old)
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture
def ddstore(start: Start) -> Callable[..., subprocess.CompletedProcess[str]]:
    """Runs `ddstore ARGUMENTS...` to its end, within a time limit."""

    def run(*args: str, **options: Any) -> subprocess.CompletedProcess[str]:
        text = options.pop("input", None)
        if text is not None:
            options["stdin"] = subprocess.PIPE
        process = start(*args, **options)
        out, err = process.communicate(text, timeout=LIMIT_S)
        return subprocess.CompletedProcess(args, process.returncode, out, err)

    return run


Ddstore = Callable[..., "subprocess.CompletedProcess[str]"]


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        text = pathlib.Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return text.rpartition(")")[2].split()[0] != "Z"


def gone(pids: list[int], within_s: float = 5.0) -> bool:
    """Whether all processes end within that time."""
    end = time.monotonic() + within_s
    while any(alive(pid) for pid in pids):
        if time.monotonic() > end:
            return False
        time.sleep(0.02)
    return True


def read_lines(process: subprocess.Popen[str], count: int) -> list[str]:
    """The first lines that a process prints."""
    assert process.stdout is not None
    return [process.stdout.readline().rstrip("\n") for _ in range(count)]


def number_in(line: str) -> int:
    """The last number of a line."""
    return int(re.findall(r"\d+", line)[-1])


# ---- run: environment and output ----


def test_environment_of_the_processes(ddstore: Ddstore) -> None:
    show = (
        'echo "$DDSTORE_RANK/$DDSTORE_SIZE $DDSTORE_RUN_ID"; '
        'stat -c "%a %F" "$DDSTORE_HANDSHAKE_DIR"; echo "$DDSTORE_HANDSHAKE_DIR"'
    )
    done = ddstore("run", "-n", "3", "--no-prefix", "sh", "-c", show)
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    heads = sorted(line for line in lines if re.match(r"\d/3 ", line))
    assert [head.split()[0] for head in heads] == ["0/3", "1/3", "2/3"]
    assert len({head.split()[1] for head in heads}) == 1
    assert len(heads[0].split()[1]) >= 32
    assert lines.count("700 directory") == 3
    directories = {line for line in lines if line.startswith("/")}
    assert len(directories) == 1
    assert not os.path.exists(directories.pop()), (
        "the exchange directory was left behind"
    )


def test_run_id_is_fresh(ddstore: Ddstore) -> None:
    env = environment(DDSTORE_RUN_ID="mine")
    ids = {
        ddstore("run", "-n", "1", "sh", "-c", "echo $DDSTORE_RUN_ID", env=env).stdout
        for _ in range(2)
    }
    assert len(ids) == 2
    assert not any("mine" in text for text in ids)


def test_chosen_directory_stays_the_users(
    ddstore: Ddstore, tmp_path: pathlib.Path
) -> None:
    chosen = tmp_path / "exchange"
    chosen.mkdir()
    env = environment(DDSTORE_HANDSHAKE_DIR=str(chosen))
    done = ddstore("run", "-n", "1", "sh", "-c", "echo $DDSTORE_HANDSHAKE_DIR", env=env)
    assert done.stdout == f"[0] {chosen}\n"
    assert chosen.is_dir()


def test_prefixes_and_streams(ddstore: Ddstore) -> None:
    program = "echo one; echo; echo two >&2; printf half; printf rest >&2"
    done = ddstore("run", "-n", "2", "sh", "-c", program)
    assert done.returncode == 0
    for rank in "01":
        out = [
            line for line in done.stdout.splitlines() if line.startswith(f"[{rank}]")
        ]
        err = [
            line for line in done.stderr.splitlines() if line.startswith(f"[{rank}]")
        ]
        assert out == [f"[{rank}] one", f"[{rank}] ", f"[{rank}] half"]
        assert err == [f"[{rank}] two", f"[{rank}] rest"]
    assert done.stdout.endswith("\n")
    assert done.stderr.endswith("\n")


def test_lines_are_never_mixed(ddstore: Ddstore, tmp_path: pathlib.Path) -> None:
    program = tmp_path / "print.py"
    program.write_text(
        "import os, sys\n"
        "letter = 'abcd'[int(os.environ['DDSTORE_RANK'])]\n"
        "for i in range(2000):\n"
        "    os.write(1, letter.encode() * 700)\n"
        "    os.write(1, b'.\\n')\n"
    )
    done = ddstore("run", "-n", "4", str(program))
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert len(lines) == 8000
    whole = {f"[{rank}] {letter * 700}." for rank, letter in enumerate("abcd")}
    assert set(lines) == whole


def test_bytes_that_are_no_text_pass(start: Start) -> None:
    process = start("run", "-n", "1", "printf", r"\377\000\n", text=False)
    out, _ = process.communicate(timeout=LIMIT_S)
    assert out == b"[0] \xff\x00\n"  # type: ignore[comparison-overlap]


def test_colour_on_a_terminal_only(start: Start) -> None:
    primary, secondary = pty.openpty()
    env = environment(TERM="xterm")
    env.pop("NO_COLOR", None)
    process = start("run", "-n", "1", "echo", "hello", stdout=secondary, env=env)
    os.close(secondary)
    assert process.wait(LIMIT_S) == 0
    text = os.read(primary, 1000).decode()
    os.close(primary)
    assert re.fullmatch(r"\x1b\[\d+m\[0\]\x1b\[0m hello\r\n", text), text


def test_reader_that_went_away(start: Start, tmp_path: pathlib.Path) -> None:
    mark = tmp_path / "finished"
    process = start(
        "run", "-n", "2", "sh", "-c", f"seq 200000; touch {mark}$DDSTORE_RANK"
    )
    read_lines(process, 1)
    assert process.stdout is not None
    process.stdout.close()
    assert process.wait(LIMIT_S) == 0
    assert process.stderr is not None
    assert process.stderr.read() == ""
    assert mark.with_name("finished0").exists()
    assert mark.with_name("finished1").exists()


def test_closed_output(tmp_path: pathlib.Path) -> None:
    process = subprocess.run(
        ["sh", "-c", 'exec "$@" >&- 2>&-', "sh", *DDSTORE, "run", "-n", "2", "true"],
        timeout=LIMIT_S,
        env=environment(),
        cwd=tmp_path,
    )
    assert process.returncode == 0


def test_standard_input_goes_to_rank_0(ddstore: Ddstore) -> None:
    done = ddstore("run", "-n", "2", "cat", input="words\n")
    assert done.stdout == "[0] words\n"


def test_arguments_are_left_alone(ddstore: Ddstore, tmp_path: pathlib.Path) -> None:
    (tmp_path / "show.py").write_text("import sys\nprint(sys.executable, sys.argv)\n")
    done = ddstore("run", "-n", "1", "show.py", "-n", "7", "--help", "--", "*")
    assert done.stdout == (
        f"[0] {sys.executable} ['show.py', '-n', '7', '--help', '--', '*']\n"
    )


# ---- run: how it ends ----


def test_first_failure_ends_all(ddstore: Ddstore) -> None:
    program = 'echo $$; [ "$DDSTORE_RANK" = 1 ] && sleep 0.3 && exit 7; sleep 60'
    began = time.monotonic()
    done = ddstore("run", "-n", "3", "sh", "-c", program)
    assert time.monotonic() - began < 5
    assert done.returncode == 7
    assert done.stderr == "ddstore run: rank 1 exited with code 7; ending the others\n"
    assert gone([number_in(line) for line in done.stdout.splitlines()])


def test_killed_by_a_signal(ddstore: Ddstore) -> None:
    done = ddstore("run", "-n", "1", "sh", "-c", "kill -SEGV $$")
    assert done.returncode == 128 + signal.SIGSEGV
    assert "rank 0 was killed by SIGSEGV" in done.stderr


def test_sigkill_after_five_seconds(ddstore: Ddstore) -> None:
    program = (
        'trap "" TERM; echo $$; [ "$DDSTORE_RANK" = 0 ] && sleep 0.5 && exit 3; '
        "while :; do sleep 1; done"
    )
    began = time.monotonic()
    done = ddstore("run", "-n", "2", "sh", "-c", program)
    assert 5 <= time.monotonic() - began < 9
    assert done.returncode == 3
    assert gone([number_in(line) for line in done.stdout.splitlines()])


def test_children_of_children_end_too(ddstore: Ddstore) -> None:
    done = ddstore("run", "-n", "2", "sh", "-c", "sleep 60 & echo $!; sleep 0.1")
    assert done.returncode == 0
    assert gone([number_in(line) for line in done.stdout.splitlines()], 1.0)


def test_what_left_the_group_is_not_waited_for(ddstore: Ddstore) -> None:
    began = time.monotonic()
    done = ddstore("run", "-n", "1", "sh", "-c", "setsid sleep 4 & sleep 0.2; echo x")
    assert time.monotonic() - began < 3
    assert done.stdout == "[0] x\n"


@pytest.mark.parametrize("name", ["SIGINT", "SIGTERM", "SIGHUP", "SIGUSR1", "SIGUSR2"])
def test_signals_are_passed_on(start: Start, tmp_path: pathlib.Path, name: str) -> None:
    program = tmp_path / "wait.py"
    program.write_text(
        "import signal, sys\n"
        "def leave(number, frame):\n"
        "    print(signal.Signals(number).name)\n"
        "    sys.exit(0)\n"
        f"signal.signal(signal.{name}, leave)\n"
        "print('ready')\n"
        "while True:\n"
        "    signal.pause()\n"
    )
    process = start("run", "-n", "2", "wait.py")
    assert sorted(read_lines(process, 2)) == ["[0] ready", "[1] ready"]
    process.send_signal(getattr(signal, name))
    out, err = process.communicate(timeout=LIMIT_S)
    assert sorted(out.splitlines()) == [f"[0] {name}", f"[1] {name}"]
    assert (process.returncode, err) == (0, "")


def test_interrupted_program(start: Start) -> None:
    process = start("run", "-n", "2", "sh", "-c", "echo ready; exec sleep 60")
    read_lines(process, 2)
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 128 + signal.SIGINT


def test_second_interrupt_kills(start: Start) -> None:
    program = 'trap "" INT TERM; echo $$; while :; do sleep 1; done'
    process = start("run", "-n", "2", "sh", "-c", program)
    pids = [number_in(line) for line in read_lines(process, 2)]
    process.send_signal(signal.SIGINT)
    time.sleep(0.3)
    assert process.poll() is None
    began = time.monotonic()
    process.send_signal(signal.SIGINT)
    assert process.wait(LIMIT_S) == 128 + signal.SIGKILL
    assert time.monotonic() - began < 3
    assert gone(pids)


def test_signals_pass_while_output_is_stuck(start: Start) -> None:
    process = start("run", "-n", "1", "sh", "-c", "echo $$; exec yes")
    pid = number_in(read_lines(process, 1)[0])
    time.sleep(0.5)  # nobody reads: the launcher waits in a write
    process.send_signal(signal.SIGTERM)
    assert gone([pid])
    process.communicate(timeout=LIMIT_S)
    assert process.returncode == 128 + signal.SIGTERM


def test_children_die_with_the_launcher(start: Start) -> None:
    program = "echo $$; trap '' TERM HUP INT; while :; do sleep 0.1; done"
    process = start("run", "-n", "3", "sh", "-c", program)
    pids = [number_in(line) for line in read_lines(process, 3)]
    process.kill()
    process.wait(LIMIT_S)
    assert gone(pids)


@pytest.mark.parametrize(
    ("program", "code", "words"),
    [
        ("no-such-program-anywhere", 127, "not found on PATH"),
        ("./no/such/program", 127, "no such file"),
        ("nothing.py", 127, "no such Python program"),
        ("/", 126, "is a directory"),
        ("./plain", 126, "not executable"),
        ("./noformat", 126, "can't start"),
    ],
)
def test_program_that_cannot_start(
    ddstore: Ddstore, tmp_path: pathlib.Path, program: str, code: int, words: str
) -> None:
    (tmp_path / "plain").write_text("text")
    (tmp_path / "noformat").write_bytes(b"\x01\x02")
    (tmp_path / "noformat").chmod(stat.S_IRWXU)
    done = ddstore("run", "-n", "1", program)
    assert done.returncode == code
    assert done.stdout == ""
    assert words in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    "args", [["-n", "0", "true"], ["-n", "x", "true"], ["true"], ["-n", "2"]]
)
def test_usage_errors(ddstore: Ddstore, args: list[str]) -> None:
    done = ddstore("run", *args)
    assert done.returncode == 2
    assert done.stderr.startswith("Usage: ddstore run")


def test_many_processes_with_few_descriptors(tmp_path: pathlib.Path) -> None:
    done = subprocess.run(
        [
            *["sh", "-c", 'ulimit -Sn 64; exec "$@"', "sh"],
            *DDSTORE, "run", "-n", "60", "echo", "x",
        ],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment(),
        cwd=tmp_path,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 60


# ---- the others ----


def test_version(ddstore: Ddstore) -> None:
    done = ddstore("--version")
    assert done.returncode == 0
    assert re.fullmatch(r"ddstore \d+\.\d+\.\d+\S*\n", done.stdout)


def test_import_is_light(tmp_path: pathlib.Path) -> None:
    code = (
        "import sys, pyddstore, pyddstore.cli; "
        "heavy = ('torch', 'mpi4py', 'matplotlib', 'rich'); "
        "print([name for name in heavy if name in sys.modules])"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        cwd=tmp_path,
    )
    assert done.stdout == "[]\n", done.stderr


def test_info_as_json(ddstore: Ddstore) -> None:
    env = environment(DDSTORE_READ_TIMEOUT_S="7", DDSTORE_SHM="perhaps")
    done = ddstore("info", "--json", env=env)
    assert done.returncode == 0, done.stderr
    facts = json.loads(done.stdout)
    assert facts["versions"]["numpy"]
    assert facts["machine"]
    settings = {row["name"]: row for row in facts["settings"]}
    timeout = settings["DDSTORE_READ_TIMEOUT_S"]
    assert (timeout["value"], timeout["origin"]) == ("7", "environment")
    assert not timeout["bad"]
    assert settings["DDSTORE_FABRIC"]["origin"] == "default"
    assert settings["DDSTORE_SHM"]["bad"]


def test_info_tells_what_matters(ddstore: Ddstore) -> None:
    done = ddstore("info", env=environment(DDSTORE_LOG="debug"))
    assert done.returncode == 0, done.stderr
    for word in (
        *["pyddstore", "python", "numpy", "kernel", "libfabric"],
        *["memlock", "nofile", "memfd", "/dev/shm", "memory"],
        *["DDSTORE_LOG", "debug", "environment", "DDSTORE_FABRIC", "default"],
    ):
        assert word in done.stdout, word


def test_info_with_a_setting_that_is_refused(ddstore: Ddstore) -> None:
    done = ddstore("info", env=environment(DDSTORE_READ_TIMEOUT_S="soon"))
    assert done.returncode == 0, done.stderr
    assert "refused" in done.stdout
