"""The other processes of a benchmark, and the rows that all of them make alike."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.uint8]
MULTIPLIER = 0x9E3779B97F4A7C15
READY_S = 60.0
END_S = 4.0


def fill(rows: Rows, first: int) -> None:
    """Makes rows whose words of 8 bytes tell which row and place they are."""
    words = rows.view(np.uint64)
    places = np.arange(words.shape[1], dtype=np.uint64) * np.uint64(8)
    step = max(1, (1 << 18) // words.shape[1])
    for at in range(0, len(words), step):
        some = words[at : at + step]
        numbers = np.arange(first + at, first + at + len(some), dtype=np.uint64)
        np.add((numbers * np.uint64(MULTIPLIER))[:, None], places, out=some)


def check(rows: Rows, numbers: NDArray[np.int64], what: str) -> None:
    """Raises unless rows are these rows."""
    for row, number in zip(rows, numbers.tolist(), strict=True):
        right = np.empty((1, row.size), np.uint8)
        fill(right, number)
        if not np.array_equal(row, right[0]):
            raise RuntimeError(f"{what}: wrong bytes in row {number}")


class Table:
    """Rows of one size, shared by rank 0 (the first `own` of them) and rank 1."""

    def __init__(self, row_bytes: int, rows: int, own: int) -> None:
        self.row_bytes, self.rows, self.own = row_bytes, rows, own

    @property
    def name(self) -> str:
        """The name of the variable."""
        return f"rows of {self.row_bytes} bytes"

    def __str__(self) -> str:
        return f"{self.row_bytes},{self.rows},{self.own}"

    @classmethod
    def parse(cls, text: str) -> Table:
        """A table as str() wrote it."""
        return cls(*map(int, text.split(",")))

    def part(self, rank: int) -> Rows:
        """The rows of one rank."""
        first, end = (0, self.own) if rank == 0 else (self.own, self.rows)
        rows = np.empty((end - first, self.row_bytes), np.uint8)
        fill(rows, first)
        return rows


def open_member(directory: str, rank: int, tables: list[Table]) -> Any:
    """One of two members that hold the tables."""
    from pyddstore import PyDDStore

    store = PyDDStore(None, method=1, handshake_dir=directory, rank=rank, size=2)
    for table in tables:
        store.add(table.name, table.part(rank))
    return store


class Peer:
    """A process that runs this module; it ends with this one, or at close()."""

    def __init__(self, cpu: int, kind: str, *arguments: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "pyddstore.bench_peers", str(cpu), kind, *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        )

    def listen(self) -> str:
        """A line that the peer prints once it is ready."""
        out = self.process.stdout
        assert out is not None
        late = threading.Timer(READY_S, self.process.kill)
        late.start()
        line = out.readline().decode().strip()
        late.cancel()
        if not line:
            raise RuntimeError("a peer ended early or said nothing in time")
        return line

    def close(self) -> None:
        """Ends it."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        try:
            self.process.wait(END_S)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


# ---- the plain socket: the reference for path 3 ------------------------------------


def no_delay(connection: socket.socket) -> socket.socket:
    """Makes it send at once."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def raw(array: Any) -> memoryview:
    """The bytes of an array."""
    return memoryview(array).cast("B")


class SocketClient:
    """Asks for rows by their numbers and receives their bytes, and nothing else."""

    def __init__(self, port: int) -> None:
        self.socket = no_delay(socket.create_connection(("127.0.0.1", port), 30))
        self.socket.settimeout(None)

    def read(self, table: int, rows: NDArray[np.int64], out: Rows) -> None:
        """Reads rows of table number `table` into out."""
        head = np.array([table, len(rows)], np.int64)
        self.socket.sendall(head.tobytes() + rows.tobytes())
        receive(self.socket, raw(out))

    def close(self) -> None:
        """Ends the connection."""
        self.socket.close()


def receive(connection: socket.socket, into: memoryview) -> None:
    """Fills `into` from the connection."""
    while into:
        got = connection.recv_into(into, 0, socket.MSG_WAITALL)
        if not got:
            raise ConnectionError("the connection ended")
        into = into[got:]


def serve_socket(tables: list[Table]) -> None:
    """Answers one client: the rows packed by numpy.take, a loop of memcpy in C, into
    one buffer; a single row is sent from where it lies."""
    data = [table.part(1) for table in tables]
    most = max(
        256 * table.row_bytes if table.row_bytes < 1 << 16 else 32 << 20
        for table in tables
    )
    pack = np.empty(most, np.uint8)
    listener = socket.create_server(("127.0.0.1", 0))
    print(listener.getsockname()[1], flush=True)
    connection = no_delay(listener.accept()[0])
    request = np.empty(4096, np.int64)
    try:
        while True:
            receive(connection, raw(request[:2]))
            table, n = request[:2].tolist()
            rows = request[2 : 2 + n]
            receive(connection, raw(rows))
            if n == 1:
                connection.sendall(raw(data[table][int(rows[0])]))
                continue
            packed = pack[: n * tables[table].row_bytes].reshape(n, -1)
            np.take(data[table], rows, axis=0, out=packed, mode="clip")
            connection.sendall(raw(packed))
    except ConnectionError:
        pass


# ---- the main function of a peer ---------------------------------------------------


def end_with_parent() -> None:
    """Ends this process when its standard input ends."""
    sys.stdin.buffer.read()
    os._exit(0)


def pin(cpu: int) -> None:
    """Keeps the calling thread on one CPU; -1: anywhere."""
    if cpu >= 0:
        os.sched_setaffinity(0, {cpu})


def main(arguments: list[str]) -> None:
    """CPU store DIRECTORY TABLE... or CPU socket TABLE..."""
    cpu, kind, *rest = arguments
    pin(int(cpu))
    watch = threading.Thread(target=end_with_parent, daemon=True)
    watch.start()
    if kind == "store":
        store = open_member(rest[0], 1, [Table.parse(text) for text in rest[1:]])
        print("ready", flush=True)
        watch.join()
        store.free()
    else:
        serve_socket([Table.parse(text) for text in rest])


if __name__ == "__main__":
    main(sys.argv[1:])
