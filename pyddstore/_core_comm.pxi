# Meeting without a communicator, through files or PMI2: the C side of FileComm.

# Of this process, by process, directory, name and rank.
_namespaces = weakref.WeakValueDictionary()


cdef namespace_key(dir, ns, rank):
    at = os.stat(dir)
    return (os.getpid(), at.st_dev, at.st_ino, ns, rank)


cdef check_namespace(dir, ns, rank):
    """Every rank sees by itself that it uses a name twice. Left to rank 0, which finds
    its own claim in the way, the others would wait for it in vain."""
    try:
        holder = _namespaces.get(namespace_key(dir, ns, rank))
    except OSError:
        return  # no directory yet
    if holder is not None and holder._holds_namespace():
        raise ValueError(
            f"rank {rank} uses the namespace {ns!r} in {os.fsdecode(dir)} already, for "
            f"{holder}: give each store (exchange_ns) and FileComm (ns) a name of its own")


cdef note_namespace(dir, ns, rank, holder):
    try:
        _namespaces[namespace_key(dir, ns, rank)] = holder
    except OSError:
        pass


cdef c.ddstore_comm *comm_of_pmi2(bytes ns, double timeout_s) except NULL:
    cdef c.ddstore_comm_pmi2 how
    cdef c.ddstore_comm *comm = NULL
    cdef c.ddstore_error err
    cdef int rc
    how.ns, how.timeout_s = ns, timeout_s
    with nogil:
        rc = c.ddstore_comm_open_pmi2(&how, &comm, &err)
    if rc:
        fail(&err)
    return comm


cdef int check_place(c.ddstore_comm *comm, int rank, int size) except -1:
    at = c.ddstore_comm_rank(comm), c.ddstore_comm_size(comm)
    if at != (rank, size):
        raise ValueError(
            f"rank={rank}, size={size}: to PMI2 this process is rank {at[0]} of {at[1]}")
    return 0


def pmi2_launch():
    """Rank and size as the launcher's PMI2 says. RuntimeError: this process has none."""
    cdef c.ddstore_comm *comm = comm_of_pmi2(b"s0", 0)
    rank, size = c.ddstore_comm_rank(comm), c.ddstore_comm_size(comm)
    c.ddstore_comm_close(comm)
    return rank, size


cdef class Comm:
    """Members that meet through files of a directory, or with dir None through PMI2:
    the C side of FileComm."""

    cdef c.ddstore_comm *ptr
    cdef readonly int rank, size
    cdef object _lock
    cdef unsigned _generation
    cdef object __weakref__

    def __cinit__(self, str dir, int rank, int size, str ns not None,
                  double timeout_s=0):
        cdef c.ddstore_comm_file how
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes d = b"" if dir is None else dir.encode("utf-8", "surrogateescape")
        cdef bytes n = ns.encode()
        if b"\0" in d or b"\0" in n:
            raise ValueError("dir and ns must not hold NUL")
        self.rank, self.size = rank, size
        self._generation = ddstore__fork_generation
        self._lock = threading.Lock()
        _start_log_thread()
        if dir is None:
            self.ptr = comm_of_pmi2(n, timeout_s)
            check_place(self.ptr, rank, size)
            return
        how.dir, how.ns = d, n
        how.rank, how.size, how.timeout_s = rank, size, timeout_s
        check_namespace(d, ns, rank)
        with nogil:
            rc = c.ddstore_comm_open_file(&how, &self.ptr, &err)
        if rc:
            fail(&err)
        note_namespace(d, ns, rank, self)
        raise_pending()

    def _holds_namespace(self):
        return self.ptr != NULL

    def __repr__(self):
        return "a FileComm"

    def __dealloc__(self):
        cdef c.ddstore_comm *ptr = self.ptr
        with nogil:
            c.ddstore_comm_close(ptr)

    cdef c.ddstore_comm *open_ptr(self) except NULL:
        if self.ptr == NULL:
            raise StoreClosedError("the FileComm was closed")
        return self.ptr

    cdef int check_own(self) except -1:
        """Before the lock is taken, which a thread of the parent may have held."""
        if self._generation != ddstore__fork_generation:
            raise inherited_error("this FileComm belongs to the parent process: open "
                                  "another one in the forked child")
        return 0

    def __reduce__(self):
        raise TypeError("a FileComm can't be sent to another process: open one there")

    def close(self):
        """Ends waits of other threads and leaves the group. Local; twice does nothing."""
        cdef c.ddstore_comm *ptr = self.ptr
        if ptr == NULL or self._generation != ddstore__fork_generation:
            return
        with nogil:
            c.ddstore_comm_wake(ptr)
        with self._lock:
            ptr, self.ptr = self.ptr, NULL
            with nogil:
                c.ddstore_comm_close(ptr)

    def allgather(self, bytes mine):
        """The bytes of every rank, by rank. Collective."""
        cdef c.ddstore_error err
        cdef const char *data = PyBytes_AS_STRING(mine)
        cdef size_t n = len(mine)
        cdef void *all = NULL
        cdef c.ddstore_comm *ptr
        cdef int rc
        self.check_own()
        cdef uint64_t *offsets = <uint64_t *>malloc((self.size + 1) * sizeof(uint64_t))
        if offsets == NULL:
            raise MemoryError()
        try:
            with self._lock:
                ptr = self.open_ptr()
                with nogil:
                    rc = c.ddstore_comm_allgatherv(ptr, data, n, &all, offsets, &err)
            if rc:
                fail(&err)
            raise_pending()
            return [(<char *>all)[offsets[r]:offsets[r + 1]] for r in range(self.size)]
        finally:
            c.ddstore_release(all)
            free(offsets)

    def barrier(self):
        """Returns when every rank has called it. Collective."""
        cdef c.ddstore_error err
        cdef c.ddstore_comm *ptr
        cdef int rc
        self.check_own()
        with self._lock:
            ptr = self.open_ptr()
            with nogil:
                rc = c.ddstore_comm_barrier(ptr, &err)
        if rc:
            fail(&err)
        raise_pending()
