# The store: its variables and its reads.

cdef _Variable make_variable(c.ddstore_var *ptr, str name, row_shape):
    cdef c.ddstore_var_info info
    cdef _Variable v = _Variable.__new__(_Variable)
    c.ddstore_info(ptr, &info)
    v.ptr = ptr
    v.name = name
    v.text = info.dtype.decode()
    v.dtype = v.accepted = dtype_of_text(v.text)
    v.row_shape = row_shape
    v.total, v.local_rows = info.total_rows, info.local_rows
    v.disp, v.row_bytes, v.itemsize = info.disp, info.row_bytes, info.itemsize
    return v


cdef class _View:
    """Keeps a shard mapped while arrays look at it."""

    cdef c.ddstore_view *ptr
    cdef void *data
    cdef uint64_t nbytes
    cdef bint writable
    cdef object __weakref__

    def __dealloc__(self):
        cdef c.ddstore_view *ptr = self.ptr
        with nogil:
            c.ddstore_view_close(ptr)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        if flags & PyBUF_WRITABLE and not self.writable:
            raise BufferError("the rows of add() are read-only; update() overwrites them")
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = self.nbytes
        buffer.readonly = not self.writable
        buffer.itemsize = 1
        buffer.format = b"B"
        buffer.ndim = 1
        buffer.shape = <Py_ssize_t *>&self.nbytes
        buffer.strides = &buffer.itemsize
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef inline double seconds() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


# Destinations in which a broken-off read may still put bytes, whatever becomes of the
# store. They are never given back.
_kept = []


cdef class Store(Handle):
    """A store's variables and its reads. PyDDStore adds the ways to open one."""

    cdef dict _vars
    cdef bint _together  # the running get_batch has met the other ranks
    cdef uint64_t _py_gets
    cdef double _py_get

    def __cinit__(self, *args, **kwargs):
        self._vars = {}

    # -- variables --

    cdef _Variable find(self, name):
        cdef object v
        if self._freed or self._generation != ddstore__fork_generation:
            self.check_open()
        v = self._vars.get(name)
        if v is None:
            known = ", ".join(sorted(self._vars)) or "none"
            raise KeyError(f"no variable named {name!r}; known: {known}")
        return <_Variable>v

    cdef int add_failed(self, name, exc) except -1:
        """Takes part in the others' call with this rank's failure; raises what all do."""
        cdef c.ddstore_error why, err
        cdef bytes n = b"?"
        cdef const char *name_text
        if isinstance(name, str):
            n = name.encode("utf-8", "replace").replace(b"\0", b"?") or b"?"
        name_text = n
        fill_failure(&why, exc)
        with nogil:
            c.ddstore_add_failed(self.ptr, name_text, &why, &err)
        return fail(&err)

    cdef int enter(self, str name, c.ddstore_shard *shard, row_shape) except -1:
        cdef c.ddstore_var *var = NULL
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes n = name.encode()
        cdef const char *name_text = n
        with nogil:
            rc = c.ddstore_add(self.ptr, name_text, shard, &var, &err)
        if rc:
            fail(&err)
        self._vars[name] = make_variable(var, name, row_shape)
        return raise_pending()

    def add(self, name, arr):
        """Adds this rank's rows of a new variable. Collective: every rank calls it with
        the same name; global rows are the ranks' rows in rank order.

        name: text of 1 to 1,024 bytes of UTF-8. arr: array, tensor or buffer of shape
        (rows, ...), copied; dtype and the number of elements a row agree on all ranks
        that have rows. A bad argument on one rank raises on every rank.
        """
        cdef c.ddstore_shard shard
        cdef bytes text
        self.check_open()
        self.check_core("add")
        try:
            name = checked_name(name)
            array, dtype = source_array(arr)
            text = dtype.encode()
        except Exception as exc:
            self.add_failed(name, exc)
        shard.rows = array.shape[0]
        shard.disp = row_elements(array.shape)
        shard.itemsize = array.dtype.itemsize
        shard.dtype = text
        shard.data = cnp.PyArray_DATA(<cnp.ndarray>array)
        self.enter(name, &shard, array.shape[1:])

    def init(self, name, nrows, disp, itemsize=1):
        """Makes a variable of zeros to be filled by update() or view(). Collective.

        nrows: rows of this rank; disp: elements a row; itemsize: bytes an element. The
        variable is untyped: arrays of any dtype of that size may read and write it.
        """
        cdef c.ddstore_shard shard
        self.check_open()
        self.check_core("init")
        memset(&shard, 0, sizeof(shard))
        try:
            name = checked_name(name)
            shard.rows = checked_count(nrows, "nrows", 0, 2**63 - 1)
            shard.disp = checked_count(disp, "disp", 0, 2**61)
            shard.itemsize = checked_count(itemsize, "itemsize", 1, 2**32 - 1)
        except Exception as exc:
            self.add_failed(name, exc)
        self.enter(name, &shard, None)

    cdef int check_core(self, str what) except -1:
        if self._reader:
            raise ValueError(f"a reader (fork_reader) reads variables; {what}() is for the core")
        if self.rank < 0:
            raise ValueError(f"an extra member reads variables; {what}() is for the core")
        return 0

    def _open_reader(self, bytes record, int method, str nic_map):
        """A store that reads the variables of another one, of which this is the record."""
        cdef c.ddstore_var_info info
        cdef c.ddstore_var *var
        cdef size_t i = 0
        Handle._open_reader(self, record, method, nic_map)
        var = c.ddstore_var_at(self.ptr, i)
        while var != NULL:
            c.ddstore_info(var, &info)
            name = info.name.decode()
            self._vars[name] = make_variable(var, name, None)
            i += 1
            var = c.ddstore_var_at(self.ptr, i)
        raise_pending()

    def join(self, name):
        """Extra member: waits up to DDSTORE_HANDSHAKE_TIMEOUT_S until a living core group
        publishes the variable, which can then be read. Joining again takes the record of
        a new run. Raises HandshakeTimeout, which says what was seen."""
        cdef c.ddstore_var *var = NULL
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes n
        self.check_open()
        name = checked_name(name)
        n = name.encode()
        cdef const char *name_text = n
        with nogil:
            rc = c.ddstore_join(self.ptr, name_text, &var, &err)
        if rc:
            fail(&err)
        self._vars[name] = make_variable(var, name, None)
        raise_pending()

    def names(self):
        """The names of the variables, in order of creation."""
        self.check_open()
        return list(self._vars)

    def info(self, name):
        """(total_rows, disp, itemsize): rows over all ranks, elements a row, bytes an
        element."""
        cdef _Variable v = self.find(name)
        return (v.total, v.disp, v.itemsize)

    def dtype(self, name):
        """The variable's dtype; None: untyped bytes (made by init()), or bfloat16 without
        ml_dtypes."""
        return self.find(name).dtype

    @property
    def nbytes(self):
        """Bytes of all rows of all variables, over all ranks."""
        cdef _Variable v
        self.check_open()
        total = 0
        for v in self._vars.values():
            total += v.total * int(v.row_bytes)
        return total

    @property
    def size(self):
        """Number of core ranks; 0: an extra member that has joined nothing yet."""
        return 0 if self.ptr == NULL else c.ddstore_size(self.ptr)

    def update(self, name, arr, offset):
        """Overwrites rows of this rank's shard from row `offset` (in the shard) on. Local.
        A read that runs at the same time may see a mix of old and new bytes; one that
        begins afterwards sees the new ones. Raises IndexError and writes nothing where
        the rows don't all lie in the shard."""
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        array, text = source_array(arr)
        check_dtype(v, array.dtype, text)
        check_row(v, array)
        cdef int64_t rows = array.shape[0]
        cdef int64_t row = row_number(offset, "offset", v, v.local_rows)
        cdef const void *data = cnp.PyArray_DATA(<cnp.ndarray>array)
        with nogil:
            rc = c.ddstore_update(v.ptr, data, rows, row, &err)
        if rc:
            fail(&err)

    def view(self, name):
        """This rank's shard as an array without a copy: shape (rows, ...) of what was
        added, read-only; or of init(), writable, (rows, disp) of unsigned integers or
        void of the item size. The memory stays while the array lives."""
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef _View view = _View.__new__(_View)
        cdef int rc
        with nogil:
            rc = c.ddstore_view_open(v.ptr, &view.data, &view.nbytes, &view.ptr, &err)
        if rc:
            fail(&err)
        view.writable = v.text == ""
        dtype = v.dtype
        if dtype is None:
            dtype = np.dtype(f"u{v.itemsize}" if v.itemsize in (1, 2, 4, 8)
                             else f"V{v.itemsize}")
        shape = (v.local_rows, *((v.disp,) if v.row_shape is None else v.row_shape))
        if dtype.itemsize == 0 or v.row_bytes == 0 or v.local_rows == 0:
            array = np.zeros(shape, dtype)
            array.flags.writeable = view.writable
            return array
        array = np.asarray(view)[: v.local_rows * v.row_bytes]
        return array.view(dtype).reshape(shape)

    # -- reading --

    cdef object destination(self, _Variable v, arr):
        """The array behind a destination, checked; never a copy."""
        cdef cnp.ndarray a
        if not cnp.PyArray_Check(arr):
            arr = foreign_destination(v, arr)
        elif <object>cnp.PyArray_DESCR(<cnp.ndarray>arr) is not v.accepted:
            dtype = arr.dtype
            check_dtype(v, dtype, None)
            v.accepted = dtype
        a = <cnp.ndarray>arr
        if not cnp.PyArray_IS_C_CONTIGUOUS(a):
            raise ValueError("the destination is not C-contiguous")
        if not cnp.PyArray_ISWRITEABLE(a):
            raise ValueError("the destination is read-only")
        if not row_fits(v, a):
            check_row(v, a)
        return arr

    cdef int read_ended(self, int rc, arr, const c.ddstore_error *err) except -1:
        """The end of a read that failed, or during which a signal's handler raised."""
        if rc and err.late:
            _kept.append(arr)
        return fail(err) if rc else raise_pending()

    def get(self, name, arr, start=0):
        """Reads arr.shape[0] consecutive rows from global row `start` into arr. They lie
        in one rank's shard.

        arr: C-contiguous writable array or CPU tensor of shape (n, ...) with the
        variable's dtype and row size. Any thread; the GIL is released. After PeerLostError
        arr's contents are undefined.
        """
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        cdef double begun = seconds() if self._profile else 0
        cdef int64_t first = row_number(start, "row", v, v.total)
        ddstore__get_soon(v.ptr, first)  # the row comes nearer while the rest is checked
        dst = self.destination(v, arr)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef int64_t rows = cnp.PyArray_DIM(<cnp.ndarray>dst, 0)
        with nogil:
            rc = c.ddstore_get(v.ptr, first, rows, data, &err)
        if rc or pending is not None:
            self.read_ended(rc, dst, &err)
        if self._profile:
            self._py_gets += 1
            self._py_get += seconds() - begun

    def get_batch(self, name, arr, indices):
        """Reads global rows `indices` (any order, repeats allowed) into arr: row i of arr
        gets row indices[i].

        indices: integers as list, tuple, range, array or tensor; arr as for get(), with
        arr.shape[0] == len(indices), else ValueError. All indices are checked before
        anything is read; one outside raises IndexError. The GIL is released. Any thread;
        with method 0 collective: every rank calls it as often, in the same order, from
        one thread, and a bad argument on one rank raises on all.
        """
        self.read_together(name, arr, indices, False)

    def _get_runs(self, name, arr, runs):
        """get_batch() of runs of rows, back to back. runs: int64 (n, 2), C-contiguous:
        first row and number of rows each."""
        self.read_together(name, arr, runs, True)

    cdef int read_together(self, name, arr, wanted, bint runs) except -1:
        """With method 0 the others hear of what fails before they are met."""
        if self.method != 0:
            return self.read_many(name, arr, wanted, runs)
        self.check_open()
        self._together = False
        try:
            return self.read_many(name, arr, wanted, runs)
        except Exception as exc:
            if not self._together:
                self.batch_failed(exc)
            raise

    def _get_batch_failed(self, exc):
        """Takes part in the others' get_batch with this rank's failure; raises it."""
        self.batch_failed(exc)

    cdef int batch_failed(self, exc) except -1:
        cdef c.ddstore_error why, err
        fill_failure(&why, exc)
        with nogil:
            c.ddstore_get_batch_failed(self.ptr, &why, &err)
        return fail(&err)

    cdef int read_many(self, name, arr, wanted, bint runs) except -1:
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        cdef double begun = seconds() if self._profile else 0
        dst = self.destination(v, arr)
        cdef size_t rows = cnp.PyArray_DIM(<cnp.ndarray>dst, 0)
        wanted = checked_runs(wanted, rows) if runs else checked_rows(wanted, rows, v)
        cdef size_t n = cnp.PyArray_DIM(<cnp.ndarray>wanted, 0)
        cdef const void *what = cnp.PyArray_DATA(<cnp.ndarray>wanted)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        self._together = True
        with nogil:
            if runs:
                rc = c.ddstore_get_runs(v.ptr, <const c.ddstore_run *>what, n, data, &err)
            else:
                rc = c.ddstore_get_batch(v.ptr, <const int64_t *>what, n, data, &err)
        if rc or pending is not None:
            self.read_ended(rc, dst, &err)
        if self._profile:
            self._py_gets += 1
            self._py_get += seconds() - begun
        return 0

    # -- destinations that are used again --

    def register_recv(self, name, arr):
        """Registers a destination that is used again, so that reads into it or any slice
        of it need no registration of their own. The store keeps a reference until
        unregister_recv() or free(). Registering one twice does nothing."""
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        dst = self.destination(v, arr)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef uint64_t n = cnp.PyArray_NBYTES(<cnp.ndarray>dst)
        with nogil:
            rc = c.ddstore_register_recv(self.ptr, data, n, &err)
        if rc:
            fail(&err)
        self._registered[(<uintptr_t>data, n)] = dst

    def unregister_recv(self, name, arr):
        """Takes a registration back. ValueError: the buffer isn't registered."""
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        dst = self.destination(v, arr)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef uint64_t n = cnp.PyArray_NBYTES(<cnp.ndarray>dst)
        with nogil:
            rc = c.ddstore_unregister_recv(self.ptr, data, n, &err)
        if rc:
            fail(&err)
        self._registered.pop((<uintptr_t>data, n), None)

    # -- looking at it --

    def get_profile(self, name):
        """Figures of get() and get_batch(), with DDSTORE_PROFILE=1; zeros without.

        Of the variable, as counts: calls, rows, bytes, mr_miss (registrations), and
        rows_local, rows_rdma, rows_tcp, rows_mpi by path; in seconds: lock_wait, mr
        (registering), read (copying, or asking the network), cq (waiting for answers). Of
        the store: py_gets (calls), py_get and py_sync (whole calls, GPU waits; seconds).
        With method 0 only bytes and the rows by path are counted.
        """
        cdef _Variable v = self.find(name)
        cdef c.ddstore_profile p
        cdef bint counts = self.method != 0
        c.ddstore_get_profile(v.ptr, &p)
        return {
            "calls": p.calls, "rows": p.rows, "bytes": p.bytes,
            "lock_wait": p.lock_wait, "mr": p.mr, "mr_miss": p.mr_miss,
            "read": p.read, "cq": p.cq,
            "rows_local": p.rows_local, "rows_rdma": p.rows_rdma,
            "rows_tcp": p.rows_tcp, "rows_mpi": p.rows_mpi,
            "py_gets": self._py_gets if counts else 0,
            "py_get": self._py_get if counts else 0.0, "py_sync": 0.0,
        }

    def transports(self):
        """How each core rank is reached: a list of dicts with rank, host, pid, path (self,
        local, rdma, tcp, mpi), provider, reason and state (alive, lost)."""
        cdef c.ddstore_peer_info p
        cdef int i = 0, rc
        self.check_open()
        out = []
        while True:
            with nogil:
                rc = c.ddstore_peer_at(self.ptr, i, &p)
            if rc:
                return out
            out.append({
                "rank": p.rank, "host": p.host.decode(errors="replace"), "pid": p.pid,
                "path": p.path.decode(), "provider": p.provider.decode(),
                "reason": p.reason.decode(errors="replace"), "state": p.state.decode(),
            })
            i += 1

    def core_alive(self):
        """Whether the core group still serves, without reading a row."""
        cdef c.ddstore_error err
        cdef int alive = 0, rc
        self.check_open()
        with nogil:
            rc = c.ddstore_core_alive(self.ptr, &alive, &err)
        if rc:
            fail(&err)
        raise_pending()
        return bool(alive)

    cdef int epoch(self) except -1:
        cdef c.ddstore_error err
        cdef int rc
        self.check_open()
        with nogil:
            rc = c.ddstore_epoch(self.ptr, &err)
        return fail(&err) if rc else raise_pending()

    def _meet_to_free(self):
        """Method 0: waits until every rank frees its store. Collective."""
        cdef c.ddstore_error err
        cdef int rc
        self.check_open()
        with nogil:
            rc = c.ddstore_meet_to_free(self.ptr, &err)
        if rc:
            fail(&err)
        raise_pending()

    def epoch_begin(self):
        """Method 0: waits for every rank; reads that follow see what each rank wrote by
        update() before. Collective. Nothing on methods 1 and 2."""
        self.epoch()

    def epoch_end(self):
        """Method 0: waits until every rank is done reading. Collective. Nothing on
        methods 1 and 2."""
        self.epoch()
