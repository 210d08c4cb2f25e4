# A store's handle: opened, over whatever its members meet by, and freed.

cdef class Handle:
    """A store's handle: opening and freeing it. Store adds variables and reads."""

    cdef c.ddstore_t *ptr
    cdef dict _registered
    cdef bint _freed
    cdef bint _profile
    cdef bint _reader
    cdef unsigned _generation
    cdef readonly object _nic_map
    cdef readonly int method
    cdef readonly int rank
    cdef object _meeting  # what the C library calls back
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self._registered = {}
        self._freed = False
        self._generation = ddstore__fork_generation
        self.rank = -1

    def __dealloc__(self):
        cdef c.ddstore_t *ptr = self.ptr
        self.ptr = NULL
        if ptr != NULL:
            with nogil:
                c.ddstore_close(ptr)

    # -- opening and freeing --

    def _open(self, int method, str dir, ns, rank, size, int n_core, nic_map, meeting=None,
              MpiGroup group=None, bint pmi2=False):
        """rank None: an extra member. meeting, pmi2: instead of files; group: for method
        0."""
        cdef c.ddstore_options options
        cdef c.ddstore_setting given[1]
        cdef bint extra = rank is None
        cdef bytes d = dir.encode("utf-8", "surrogateescape")
        cdef bytes n = b"" if ns is None else ns.encode()
        cdef bytes m = b"" if nic_map is None else nic_map.encode()
        self._check_new()
        if b"\0" in d or b"\0" in n or b"\0" in m:
            raise ValueError("handshake_dir, exchange_ns and nic_map must not hold NUL")
        cdef bint files = not extra and meeting is None and not pmi2
        if files:
            check_namespace(d, ns, rank)
        memset(&options, 0, sizeof(options))
        options.struct_bytes = sizeof(options)
        options.method = method
        options.handshake_dir, options.exchange_ns = d, n
        options.n_core = n_core
        if nic_map is not None:
            given[0].name, given[0].value = b"DDSTORE_NIC_MAP", m
            options.settings, options.n_settings = given, 1
        self.begin(method, nic_map)
        if not extra:
            self.rank = rank
        if meeting is not None:
            self.open_meeting(&options, meeting, group)
        elif pmi2:
            self.open_pmi2(&options, n, size)
        else:
            self.open_files(&options, extra, d, n, size)
        if files:
            note_namespace(d, ns, rank, self)
        if not extra:
            c.ddstore_announce_sigterm()
        raise_pending()

    cdef int begin(self, int method, nic_map) except -1:
        self.method = method
        self._nic_map = nic_map
        self._generation = ddstore__fork_generation
        set_log_level()
        _start_log_thread()
        self._profile = setting("DDSTORE_PROFILE") == "1"
        return 0

    def _describe(self):
        """What a reader needs, as bytes; also of a store that a forked child inherited."""
        cdef c.ddstore_error err
        cdef void *data = NULL
        cdef size_t n = 0
        cdef int rc
        if self._freed or self.ptr == NULL:
            raise StoreClosedError("the store was freed")
        with nogil:
            rc = c.ddstore_describe(self.ptr, &data, &n, &err)
        if rc:
            fail(&err)
        try:
            return (<char *>data)[:n]
        finally:
            c.ddstore_release(data)

    def _open_reader(self, bytes record, int method, str nic_map):
        """Opens a reader of what _describe() told."""
        cdef c.ddstore_setting given[1]
        cdef c.ddstore_error err
        cdef bytes m = b"" if nic_map is None else nic_map.encode()
        cdef const char *data = PyBytes_AS_STRING(record)
        cdef size_t n = len(record), n_given = nic_map is not None
        cdef int rc
        self._check_new()
        given[0].name, given[0].value = b"DDSTORE_NIC_MAP", m
        self.begin(method, nic_map)
        with nogil:
            rc = c.ddstore_open_reader(data, n, given, n_given, &self.ptr, &err)
        if rc:
            fail(&err)
        self._reader = True
        self.rank = c.ddstore_rank(self.ptr)

    cdef int open_files(self, c.ddstore_options *options, bint extra, bytes dir, bytes ns,
                        size) except -1:
        cdef c.ddstore_comm_file how
        cdef c.ddstore_error err
        cdef int rc
        if extra:
            with nogil:
                rc = c.ddstore_open_extra(options, &self.ptr, &err)
        else:
            how.dir, how.ns = dir, ns
            how.rank, how.size, how.timeout_s = self.rank, size, 0
            with nogil:
                rc = c.ddstore_open_file(&how, options, &self.ptr, &err)
        return fail(&err) if rc else 0

    cdef int open_meeting(self, c.ddstore_options *options, meeting, MpiGroup group) except -1:
        cdef c.ddstore_mpi_calls calls
        cdef c.ddstore_comm *comm
        cdef c.ddstore_error err
        cdef int rc
        self._meeting = meeting
        if options.method == 0:
            plugin.describe(group.ptr, &calls)
            with nogil:
                rc = c.ddstore_open_mpi_calls(&calls, options, &self.ptr, &err)
        else:
            comm = comm_of_meeting(meeting)
            with nogil:
                rc = c.ddstore_open(comm, options, &self.ptr, &err)
        return fail(&err) if rc else 0

    cdef int open_pmi2(self, c.ddstore_options *options, bytes ns, size) except -1:
        cdef c.ddstore_comm *comm = comm_of_pmi2(ns, 0)
        cdef c.ddstore_error why, err
        cdef int rc
        try:
            check_place(comm, self.rank, size)
        except ValueError as exc:
            fill_failure(&why, exc)
            with nogil:
                rc = c.ddstore_open_failed(comm, &why, &err)
        else:
            with nogil:
                rc = c.ddstore_open(comm, options, &self.ptr, &err)
        return fail(&err) if rc else 0

    @staticmethod
    def _open_failed(meeting, exc):
        """Takes part in the others' opening with this rank's failure; raises what all
        do."""
        cdef c.ddstore_comm *comm = comm_of_meeting(meeting)
        cdef c.ddstore_error why, err
        fill_failure(&why, exc)
        with nogil:
            c.ddstore_open_failed(comm, &why, &err)
        fail(&err)

    def _check_new(self):
        if self.ptr != NULL or self._freed:
            raise ValueError("this store was opened before: make another")

    def _holds_namespace(self):
        return self.ptr != NULL and not self._freed

    cdef int check_open(self) except -1:
        if self._freed or self.ptr == NULL:
            raise StoreClosedError("the store was freed")
        if self._generation != ddstore__fork_generation:
            raise inherited_error(
                "this store belongs to the parent process: in a forked child use "
                "fork_reader(), or open a store of its own")
        return 0

    def _inherited(self):
        return self._generation != ddstore__fork_generation

    def free(self):
        """Releases the store's memory, connections and registered buffers. Local: waits
        for nobody but this process's own running reads. Twice does nothing, nor does it
        in a forked child with the parent's store."""
        cdef c.ddstore_t *ptr = self.ptr
        if self._generation != ddstore__fork_generation:
            return
        if self._freed or ptr == NULL:
            self._freed = True
            return
        self._freed = True
        with nogil:
            c.ddstore_free(ptr)
        self._registered.clear()

    def __enter__(self):
        self.check_open()
        return self

    def __exit__(self, *exc):
        self.free()

    def __reduce__(self):
        raise TypeError("a store can't be sent to another process: open one there")
