# cython: language_level=3, boundscheck=False, wraparound=False
"""The C library as Python sees it: handles, buffers and errors, nothing else."""

from cpython.bytes cimport PyBytes_AS_STRING
from cpython.exc cimport PyErr_Occurred
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset, strncpy
cimport numpy as cnp

from . cimport libddstore as c

import ast
import logging
import operator
import sys
import threading
import time

import numpy as np

cnp.import_array()

__version__ = c.ddstore_version().decode()


# ---- errors --------------------------------------------------------------------------

class DDStoreError(RuntimeError):
    """A store failed. `code` is the C library's number, e.g. -8 for DDSTORE_ECLOSED."""

    code = c.DDSTORE_ESYS


class PeerLostError(DDStoreError):
    """A member is lost: its process ended, or it is out of reach."""

    code = c.DDSTORE_EPEER


class StoreClosedError(DDStoreError):
    """The store was freed, here or by the member that holds the rows."""

    code = c.DDSTORE_ECLOSED


class FabricError(DDStoreError):
    """There is no usable network, or it failed."""

    code = c.DDSTORE_EFABRIC


class HandshakeTimeout(DDStoreError, TimeoutError):
    """Members did not meet, or publish, in time (DDSTORE_HANDSHAKE_TIMEOUT_S)."""

    code = c.DDSTORE_ETIMEDOUT


_CLASS_OF_CODE = {
    c.DDSTORE_EINVAL: ValueError,
    c.DDSTORE_ETYPE: TypeError,
    c.DDSTORE_EINDEX: IndexError,
    c.DDSTORE_EKEY: KeyError,
    c.DDSTORE_ENOMEM: MemoryError,
    c.DDSTORE_EPEER: PeerLostError,
    c.DDSTORE_ECLOSED: StoreClosedError,
    c.DDSTORE_EFABRIC: FabricError,
    c.DDSTORE_ETIMEDOUT: HandshakeTimeout,
    c.DDSTORE_EINTR: KeyboardInterrupt,
    c.DDSTORE_EUNSUPPORTED: RuntimeError,
}


cdef int fail(const c.ddstore_error *err) except -1:
    """Raises the exception of an error that the library filled in."""
    if err.code == c.DDSTORE_EINTR and PyErr_Occurred() != NULL:
        return -1  # what a signal's handler raised
    exc = _CLASS_OF_CODE.get(err.code, DDStoreError)(err.message.decode(errors="replace"))
    if isinstance(exc, DDStoreError):
        exc.code = err.code
    raise exc


cdef int code_of(exc):
    """The code under which the other members learn of an exception raised here."""
    if isinstance(exc, DDStoreError):
        return exc.code
    for code, cls in _CLASS_OF_CODE.items():
        if isinstance(exc, cls):
            return code
    return c.DDSTORE_EINVAL


# ---- the host's part: signals and the log ----------------------------------------------

cdef extern from "Python.h":
    int PyErr_CheckSignals() noexcept  # its exception stays set, for fail() to pass on

cdef int interrupted(void *arg) noexcept with gil:
    return PyErr_CheckSignals()


_log = logging.getLogger("pyddstore")
_finalizing = sys.is_finalizing


cdef void log_line(void *arg, int level, const char *message) noexcept nogil:
    with gil:
        try:
            if not _finalizing():
                _log.log(level, message.decode(errors="replace"))
        except BaseException:
            pass


def _drain_log():
    while True:
        with nogil:
            c.ddstore_log_drain(3600 * 1000)


_log_thread = None


def _start_log_thread():
    """Passes on what the library's own thread has to say."""
    global _log_thread
    if _log_thread is None or not _log_thread.is_alive():
        _log_thread = threading.Thread(target=_drain_log, name="ddstore-log", daemon=True)
        _log_thread.start()


_LEVELS = {"debug": 10, "info": 20, "warn": 30, "error": 40, "off": 100}


# ---- settings and the machine -----------------------------------------------------------

def settings():
    """All settings: a list of dicts with name, kind, default, allowed, help, value,
    origin ("default" or "environment") and bad (the environment's value is refused)."""
    cdef c.ddstore_setting_info info
    cdef size_t i = 0
    out = []
    while c.ddstore_setting_describe(i, &info) == c.DDSTORE_OK:
        out.append({
            "name": info.name.decode(), "kind": info.kind.decode(),
            "default": info.fallback.decode(), "allowed": info.allowed.decode(),
            "help": info.help.decode(), "value": info.value.decode(errors="replace"),
            "origin": info.origin.decode(), "bad": bool(info.bad),
        })
        i += 1
    return out


def setting(name):
    """The text of one setting as it is in effect now."""
    for row in settings():
        if row["name"] == name:
            return row["value"]
    raise KeyError(name)


def probe():
    """What the library sees of this machine: a list of (key, text)."""
    cdef char *text = NULL
    cdef c.ddstore_error err
    cdef int rc
    with nogil:
        rc = c.ddstore_probe(&text, &err)
    if rc:
        fail(&err)
    try:
        lines = text.decode(errors="replace").splitlines()
    finally:
        c.ddstore_release(text)
    return [tuple(line.split("\t", 1)) for line in lines if "\t" in line]


def set_log_level():
    """Installs the logger at DDSTORE_LOG's level."""
    level = _LEVELS.get(setting("DDSTORE_LOG"), 30)
    if level < 100:
        c.ddstore_set_logger(log_line, NULL, level)
    else:
        c.ddstore_set_logger(NULL, NULL, level)


set_log_level()
c.ddstore_set_interrupt(interrupted, NULL)


# ---- dtypes as text -----------------------------------------------------------------------

def dtype_text(dtype):
    """A dtype as the text that all ranks compare; it names the byte order."""
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds Python objects, which have no bytes to store")
    if dtype.names is not None or dtype.subdtype is not None:
        return repr(np.lib.format.dtype_to_descr(dtype))
    if dtype.kind == "V" and dtype.type is not np.void:
        return dtype.name  # bfloat16 and its kin
    return dtype.str


def dtype_of_text(text):
    """The dtype of such a text; None where NumPy alone has none (bfloat16)."""
    if not text:
        return None
    if text[0] in "[(":
        return np.lib.format.descr_to_dtype(ast.literal_eval(text))
    try:
        return np.dtype(text)
    except TypeError:
        pass
    try:
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, text))
    except (ImportError, AttributeError, TypeError):
        return None


cdef bint is_tensor(obj):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


cdef tuple tensor_array(obj, bint copy):
    """A CPU tensor as an array that shares its memory, and the text of its dtype."""
    if obj.device.type != "cpu":
        raise RuntimeError(
            f"a tensor on {obj.device} can't be read or written here: this build serves "
            "host memory only; pass tensor.cpu()")
    torch = sys.modules["torch"]
    obj = obj.detach()
    if copy:
        obj = obj.contiguous()
    if obj.dtype == torch.bfloat16:
        return obj.view(torch.int16).numpy(), "bfloat16"
    array = obj.numpy()
    return array, dtype_text(array.dtype)


cdef tuple source_array(obj):
    """Any source as a C-contiguous array of at least one dimension (a copy where it has
    to be) and the text of its dtype."""
    if is_tensor(obj):
        array, text = tensor_array(obj, True)
    else:
        array = np.asarray(obj)
        text = dtype_text(array.dtype)
    if array.ndim == 0:
        raise ValueError("a source needs at least one dimension, its rows")
    return np.ascontiguousarray(array), text


# ---- the file rendezvous ---------------------------------------------------------------------

cdef class Comm:
    """Members that meet through files of a directory: the C side of FileComm."""

    cdef c.ddstore_comm *ptr
    cdef readonly int rank, size
    cdef object _lock

    def __cinit__(self, str dir, int rank, int size, str ns, double timeout_s=0):
        cdef c.ddstore_comm_file how
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes d = dir.encode("utf-8", "surrogateescape"), n = ns.encode()
        if b"\0" in d or b"\0" in n:
            raise ValueError("dir and ns must not hold NUL")
        how.dir, how.ns = d, n
        how.rank, how.size, how.timeout_s = rank, size, timeout_s
        self.rank, self.size = rank, size
        self._lock = threading.Lock()
        _start_log_thread()
        with nogil:
            rc = c.ddstore_comm_open_file(&how, &self.ptr, &err)
        if rc:
            fail(&err)

    def __dealloc__(self):
        cdef c.ddstore_comm *ptr = self.ptr
        with nogil:
            c.ddstore_comm_close(ptr)

    cdef c.ddstore_comm *open_ptr(self) except NULL:
        if self.ptr == NULL:
            raise StoreClosedError("the FileComm was closed")
        return self.ptr

    def close(self):
        """Ends waits of other threads and leaves the group. Local; twice does nothing."""
        cdef c.ddstore_comm *ptr = self.ptr
        if ptr == NULL:
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
            return [(<char *>all)[offsets[r]:offsets[r + 1]] for r in range(self.size)]
        finally:
            c.ddstore_release(all)
            free(offsets)

    def barrier(self):
        """Returns when every rank has called it. Collective."""
        cdef c.ddstore_error err
        cdef c.ddstore_comm *ptr
        cdef int rc
        with self._lock:
            ptr = self.open_ptr()
            with nogil:
                rc = c.ddstore_comm_barrier(ptr, &err)
        if rc:
            fail(&err)


# ---- the store --------------------------------------------------------------------------------

cdef class Variable:
    """What a read looks up by name."""

    cdef c.ddstore_var *ptr
    cdef object dtype       # numpy.dtype; None: untyped, or none of NumPy's own
    cdef str text           # of the dtype; "": untyped
    cdef object row_shape   # of an array that was added here; None otherwise
    cdef int64_t total
    cdef uint64_t disp, row_bytes
    cdef uint32_t itemsize


cdef Variable make_variable(c.ddstore_var *ptr, row_shape):
    cdef c.ddstore_var_info info
    cdef Variable v = Variable.__new__(Variable)
    c.ddstore_info(ptr, &info)
    v.ptr = ptr
    v.text = info.dtype.decode()
    v.dtype = dtype_of_text(v.text)
    v.row_shape = row_shape
    v.total = info.total_rows
    v.disp, v.row_bytes, v.itemsize = info.disp, info.row_bytes, info.itemsize
    return v


cdef class _View:
    """Keeps a shard mapped while arrays look at it."""

    cdef c.ddstore_view *ptr
    cdef void *data
    cdef uint64_t nbytes
    cdef object __weakref__

    def __dealloc__(self):
        c.ddstore_view_close(self.ptr)

    def __getbuffer__(self, Py_buffer *buffer, int flags):
        buffer.buf = self.data
        buffer.obj = self
        buffer.len = self.nbytes
        buffer.readonly = 0
        buffer.itemsize = 1
        buffer.format = b"B"
        buffer.ndim = 1
        buffer.shape = <Py_ssize_t *>&self.nbytes
        buffer.strides = &buffer.itemsize
        buffer.suboffsets = NULL
        buffer.internal = NULL


cdef inline int64_t row_number(obj, str what) except? -1:
    """An index as int64; what lies outside is no row of anything."""
    try:
        return <int64_t>operator.index(obj)
    except OverflowError:
        raise IndexError(f"{what} {obj} is out of range") from None


cdef object index_array(indices):
    """Row numbers as a C-contiguous int64 array."""
    cdef object array
    if is_tensor(indices):
        array = indices.detach().cpu().numpy()
    elif isinstance(indices, range):
        array = np.arange(indices.start, indices.stop, indices.step, dtype=np.int64)
    else:
        array = np.asarray(indices)
    if array.ndim != 1:
        raise ValueError(f"indices need one dimension, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype == object:
        array = np.array([row_number(i, "index") for i in indices], dtype=np.int64)
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max() > 2**63 - 1:
        raise IndexError(f"index {array.max()} is out of range")
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices need an integer dtype, not {array.dtype}")
    return np.ascontiguousarray(array, dtype=np.int64)


cdef class Store:
    """A store's handle and its reads. PyDDStore adds the ways to open one."""

    cdef c.ddstore_t *ptr
    cdef dict _vars
    cdef dict _registered
    cdef list _kept
    cdef bint _freed
    cdef readonly int method
    cdef readonly int rank
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self._vars = {}
        self._registered = {}
        self._kept = []
        self._freed = False
        self.rank = -1

    def __dealloc__(self):
        cdef c.ddstore_t *ptr = self.ptr
        self.ptr = NULL
        if ptr != NULL:
            with nogil:
                c.ddstore_close(ptr)

    # -- opening and freeing --

    def _open(self, int method, str dir, ns, rank, size, int n_core, nic_map):
        """rank None: an extra member."""
        cdef c.ddstore_options options
        cdef c.ddstore_comm_file how
        cdef c.ddstore_setting given[1]
        cdef c.ddstore_error err
        cdef int rc
        cdef bint extra = rank is None
        cdef bytes d = dir.encode("utf-8", "surrogateescape")
        cdef bytes n = b"" if ns is None else ns.encode()
        cdef bytes m = b"" if nic_map is None else nic_map.encode()
        if b"\0" in d or b"\0" in n or b"\0" in m:
            raise ValueError("handshake_dir, exchange_ns and nic_map must not hold NUL")
        memset(&options, 0, sizeof(options))
        options.struct_bytes = sizeof(options)
        options.method = method
        options.handshake_dir, options.exchange_ns = d, n
        options.n_core = n_core
        if nic_map is not None:
            given[0].name, given[0].value = b"DDSTORE_NIC_MAP", m
            options.settings, options.n_settings = given, 1
        self.method = method
        set_log_level()
        _start_log_thread()
        if extra:
            with nogil:
                rc = c.ddstore_open_extra(&options, &self.ptr, &err)
        else:
            self.rank = rank
            how.dir, how.ns = d, n
            how.rank, how.size, how.timeout_s = rank, size, 0
            with nogil:
                rc = c.ddstore_open_file(&how, &options, &self.ptr, &err)
        if rc:
            fail(&err)

    cdef int check_open(self) except -1:
        if self._freed or self.ptr == NULL:
            raise StoreClosedError("the store was freed")
        return 0

    def free(self):
        """Releases the store's memory, connections and registered buffers. Local: waits
        for nobody but this process's own running reads. Twice does nothing."""
        cdef c.ddstore_t *ptr = self.ptr
        self._freed = True
        if ptr == NULL:
            return
        with nogil:
            c.ddstore_free(ptr)
        self._registered.clear()

    def __enter__(self):
        return self

    def __exit__(self, *exc):
        self.free()

    # -- variables --

    cdef Variable find(self, name):
        cdef object v
        if self._freed:
            raise StoreClosedError("the store was freed")
        v = self._vars.get(name)
        if v is None:
            known = ", ".join(sorted(self._vars)) or "none"
            raise KeyError(f"no variable named {name!r}; known: {known}")
        return <Variable>v

    cdef int add_failed(self, name, exc) except -1:
        """Takes part in the others' call with this rank's failure."""
        cdef c.ddstore_error why, err
        cdef bytes n = str(name).encode("utf-8", "replace").replace(b"\0", b"?") or b"?"
        cdef bytes text = (f"{exc}" or type(exc).__name__).encode("utf-8", "replace")
        cdef const char *name_text = n
        memset(&why, 0, sizeof(why))
        why.code = code_of(exc)
        strncpy(why.message, text, sizeof(why.message) - 1)
        with nogil:
            c.ddstore_add_failed(self.ptr, name_text, &why, &err)
        return 0

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
        self._vars[name] = make_variable(var, row_shape)
        return 0

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
            raise
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
            raise
        self.enter(name, &shard, None)

    cdef int check_core(self, str what) except -1:
        if self.rank < 0:
            raise ValueError(f"an extra member reads variables; {what}() is for the core")
        return 0

    def join(self, name):
        """Extra member: waits up to DDSTORE_HANDSHAKE_TIMEOUT_S until a living core group
        publishes the variable, which can then be read. Joining again takes the record of
        a new run. Raises HandshakeTimeout, which says what was seen."""
        cdef c.ddstore_var *var = NULL
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes n
        self.check_open()
        n = checked_name(name).encode()
        cdef const char *name_text = n
        with nogil:
            rc = c.ddstore_join(self.ptr, name_text, &var, &err)
        if rc:
            fail(&err)
        self._vars[name] = make_variable(var, None)

    def names(self):
        """The names of the variables, in order of creation."""
        self.check_open()
        return list(self._vars)

    def info(self, name):
        """(total_rows, disp, itemsize): rows over all ranks, elements a row, bytes an
        element."""
        cdef Variable v = self.find(name)
        return (v.total, v.disp, v.itemsize)

    def dtype(self, name):
        """The variable's dtype; None: untyped bytes (made by init()), or bfloat16 without
        ml_dtypes."""
        return self.find(name).dtype

    @property
    def nbytes(self):
        """Bytes of all rows of all variables, over all ranks."""
        cdef Variable v
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
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        array, text = source_array(arr)
        check_dtype(v, array.dtype, text, name)
        check_row(v, array, name)
        cdef int64_t rows = array.shape[0]
        cdef int64_t row = row_number(offset, "offset")
        cdef const void *data = cnp.PyArray_DATA(<cnp.ndarray>array)
        with nogil:
            rc = c.ddstore_update(v.ptr, data, rows, row, &err)
        if rc:
            fail(&err)

    def view(self, name):
        """This rank's shard as an array without a copy: shape (rows, ...) of what was
        added, read-only; or of init(), writable, (rows, disp) of unsigned integers or
        void of the item size. The memory stays while the array lives."""
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef c.ddstore_var_info info
        cdef _View view = _View.__new__(_View)
        if c.ddstore_view_open(v.ptr, &view.data, &view.nbytes, &view.ptr, &err):
            fail(&err)
        c.ddstore_info(v.ptr, &info)
        dtype = v.dtype
        if dtype is None:
            dtype = np.dtype(f"u{v.itemsize}" if v.itemsize in (1, 2, 4, 8)
                             else f"V{v.itemsize}")
        row_shape = (v.disp,) if v.row_shape is None else v.row_shape
        if dtype.itemsize == 0 or v.row_bytes == 0:
            array = np.zeros((info.local_rows, *row_shape), dtype)
        else:
            array = np.asarray(view)[: info.local_rows * v.row_bytes].view(dtype)
            array = array.reshape((info.local_rows, *row_shape))
        array.flags.writeable = v.text == ""
        return array

    # -- reading --

    cdef object destination(self, Variable v, arr, name):
        """The array behind a destination, checked; never a copy."""
        cdef cnp.ndarray a
        if not cnp.PyArray_Check(arr):
            if is_tensor(arr):
                if not arr.is_contiguous():
                    raise ValueError("the destination tensor is not contiguous")
                arr, text = tensor_array(arr, False)
                check_dtype(v, arr.dtype, text, name)
            else:
                try:
                    arr = np.asarray(memoryview(arr))
                except TypeError:
                    raise TypeError(
                        "a destination is an array, a tensor or a writable buffer, not "
                        f"{type(arr).__name__}") from None
                check_dtype(v, arr.dtype, None, name)
        elif <object>cnp.PyArray_DESCR(<cnp.ndarray>arr) is not v.dtype:
            check_dtype(v, arr.dtype, None, name)
        a = <cnp.ndarray>arr
        if not cnp.PyArray_IS_C_CONTIGUOUS(a):
            raise ValueError("the destination is not C-contiguous")
        if not cnp.PyArray_ISWRITEABLE(a):
            raise ValueError("the destination is read-only")
        if cnp.PyArray_NDIM(a) != 1 or v.disp != 1:
            check_row(v, a, name)
        return arr

    cdef int read_failed(self, arr, const c.ddstore_error *err) except -1:
        if err.code in (c.DDSTORE_EPEER, c.DDSTORE_ECLOSED, c.DDSTORE_EINTR):
            # Bytes may still arrive by RDMA: the memory must not be given to others.
            if len(self._kept) < 64:
                self._kept.append(arr)
        return fail(err)

    def get(self, name, arr, start=0):
        """Reads arr.shape[0] consecutive rows from global row `start` into arr. They lie
        in one rank's shard.

        arr: C-contiguous writable array or CPU tensor of shape (n, ...) with the
        variable's dtype and row size. Any thread; the GIL is released. After PeerLostError
        arr's contents are undefined.
        """
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        cdef int64_t first
        dst = self.destination(v, arr, name)
        first = start if type(start) is int and -1 < start < 1 << 62 else row_number(
            start, "row")
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef int64_t rows = cnp.PyArray_DIM(<cnp.ndarray>dst, 0)
        with nogil:
            rc = c.ddstore_get(v.ptr, first, rows, data, &err)
        if rc:
            self.read_failed(dst, &err)

    def get_batch(self, name, arr, indices):
        """Reads global rows `indices` (any order, repeats allowed) into arr: row i of arr
        gets row indices[i].

        indices: integers as list, tuple, range, array or tensor; arr as for get(), with
        arr.shape[0] == len(indices), else ValueError. All indices are checked before
        anything is read; one outside raises IndexError. Any thread; the GIL is released.
        """
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        dst = self.destination(v, arr, name)
        if not (cnp.PyArray_CheckExact(indices) and
                cnp.PyArray_TYPE(<cnp.ndarray>indices) == cnp.NPY_INT64 and
                cnp.PyArray_NDIM(<cnp.ndarray>indices) == 1 and
                cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>indices)):
            indices = index_array(indices)
        cdef size_t n = cnp.PyArray_DIM(<cnp.ndarray>indices, 0)
        if <size_t>cnp.PyArray_DIM(<cnp.ndarray>dst, 0) != n:
            raise ValueError(f"the destination has {len(dst)} rows for {n} indices")
        cdef const int64_t *rows = <const int64_t *>cnp.PyArray_DATA(<cnp.ndarray>indices)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        with nogil:
            rc = c.ddstore_get_batch(v.ptr, rows, n, data, &err)
        if rc:
            self.read_failed(dst, &err)

    # -- destinations that are used again --

    def register_recv(self, name, arr):
        """Registers a destination that is used again, so that reads into it or any slice
        of it need no registration of their own. The store keeps a reference until
        unregister_recv() or free(). Registering one twice does nothing."""
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        dst = self.destination(v, arr, name)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef uint64_t n = cnp.PyArray_NBYTES(<cnp.ndarray>dst)
        if c.ddstore_register_recv(self.ptr, data, n, &err):
            fail(&err)
        self._registered[(<uintptr_t>data, n)] = arr

    def unregister_recv(self, name, arr):
        """Takes a registration back. ValueError: the buffer isn't registered."""
        cdef Variable v = self.find(name)
        cdef c.ddstore_error err
        dst = self.destination(v, arr, name)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        cdef uint64_t n = cnp.PyArray_NBYTES(<cnp.ndarray>dst)
        if c.ddstore_unregister_recv(self.ptr, data, n, &err):
            fail(&err)
        self._registered.pop((<uintptr_t>data, n), None)

    # -- looking at it --

    def get_profile(self, name):
        """Figures of get() and get_batch() of a variable, with DDSTORE_PROFILE=1: calls,
        rows, bytes, mr_miss and rows by path as counts; lock_wait, mr, read, cq, py_get
        and py_sync in seconds; zeros without."""
        cdef Variable v = self.find(name)
        cdef c.ddstore_profile p
        c.ddstore_get_profile(v.ptr, &p)
        return {
            "calls": p.calls, "rows": p.rows, "bytes": p.bytes,
            "lock_wait": p.lock_wait, "mr": p.mr, "mr_miss": p.mr_miss,
            "read": p.read, "cq": p.cq,
            "rows_local": p.rows_local, "rows_rdma": p.rows_rdma,
            "rows_tcp": p.rows_tcp, "rows_mpi": p.rows_mpi,
            "py_gets": p.calls, "py_get": p.read + p.cq + p.mr + p.lock_wait,
            "py_sync": 0.0,
        }

    def transports(self):
        """How each core rank is reached: a list of dicts with rank, host, pid, path (self,
        local, rdma, tcp), provider, reason and state (alive, lost)."""
        cdef c.ddstore_peer_info p
        cdef int i = 0
        self.check_open()
        out = []
        while c.ddstore_peer_at(self.ptr, i, &p) == c.DDSTORE_OK:
            out.append({
                "rank": p.rank, "host": p.host.decode(errors="replace"), "pid": p.pid,
                "path": p.path.decode(), "provider": p.provider.decode(),
                "reason": p.reason.decode(errors="replace"), "state": p.state.decode(),
            })
            i += 1
        return out

    def core_alive(self):
        """Whether the core group still serves, without reading a row."""
        cdef c.ddstore_error err
        cdef int alive = 0, rc
        self.check_open()
        with nogil:
            rc = c.ddstore_core_alive(self.ptr, &alive, &err)
        if rc:
            fail(&err)
        return bool(alive)

    def epoch_begin(self):
        """Method 0's synchronization point; nothing on methods 1 and 2."""
        self.check_open()

    def epoch_end(self):
        """Method 0's synchronization point; nothing on methods 1 and 2."""
        self.check_open()


cdef str checked_name(name):
    if not isinstance(name, str):
        raise TypeError(f"a variable's name is text, not {type(name).__name__}")
    if "\0" in name:
        raise ValueError("a variable's name must not hold NUL")
    try:
        name.encode()
    except UnicodeEncodeError:
        raise ValueError("the variable's name can't be written as UTF-8") from None
    return name


cdef checked_count(value, str what, low, high):
    value = operator.index(value)
    if not low <= value <= high:
        raise ValueError(f"{what} is {value}: give {low} to {high}")
    return value


cdef uint64_t row_elements(shape):
    cdef uint64_t n = 1
    for extent in shape[1:]:
        n *= <uint64_t>extent
    return n


cdef int check_row(Variable v, array, name) except -1:
    if array.ndim == 0:
        raise ValueError("a row array needs at least one dimension")
    if row_elements(array.shape) != v.disp:
        raise ValueError(
            f"variable {name!r} has {v.disp} elements a row; an array of shape "
            f"{array.shape} has {row_elements(array.shape)}")
    return 0


cdef int check_dtype(Variable v, dtype, text, name) except -1:
    """text: of the dtype, where it is not the array's own."""
    if v.text == "":
        if dtype.hasobject:
            raise TypeError(f"dtype {dtype} holds Python objects")
        if dtype.itemsize != v.itemsize:
            raise TypeError(f"variable {name!r} has items of {v.itemsize} bytes; dtype "
                            f"{text or dtype} has {dtype.itemsize}")
        return 0
    if text is None:
        if dtype == v.dtype:
            return 0
        text = dtype_text(dtype)
    if text != v.text:
        raise TypeError(f"variable {name!r} has dtype {v.text}; the array has {text}")
    return 0
