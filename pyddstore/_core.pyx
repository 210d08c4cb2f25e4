# cython: language_level=3, boundscheck=False, wraparound=False, auto_pickle=False
"""The C library as Python sees it: handles, buffers and errors, nothing else."""

from cpython.buffer cimport PyBUF_WRITABLE
from cpython.bytes cimport PyBytes_AS_STRING
from libc.stdint cimport int64_t, uint32_t, uint64_t, uintptr_t
from libc.stdlib cimport free, malloc
from libc.string cimport memset, strncpy, strstr
from posix.time cimport CLOCK_MONOTONIC, clock_gettime, timespec
cimport numpy as cnp

from . cimport libddstore as c

import _thread
import ast
import atexit
import logging
import operator
import os
import sys
import threading
import weakref

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
    raise_pending()
    exc = _CLASS_OF_CODE.get(err.code, DDStoreError)(err.message.decode(errors="replace"))
    if isinstance(exc, DDStoreError):
        exc.code = err.code
    raise exc


cdef tuple code_and_text(exc):
    """How the other members learn of an exception raised here."""
    text = f"{exc}" or type(exc).__name__
    if isinstance(exc, DDStoreError):
        return exc.code, text
    for code, cls in _CLASS_OF_CODE.items():
        if isinstance(exc, cls):
            return code, text
    return c.DDSTORE_EINVAL, f"{type(exc).__name__}: {exc}"


# ---- the host's part: signals and the log ----------------------------------------------

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident() noexcept nogil
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    bint PyLong_CheckExact(object number)

cdef extern from *:  # not of the public header
    """
    struct ddstore_var;
    void ddstore__get_soon(struct ddstore_var *var, int64_t start);
    """
    void ddstore__get_soon(c.ddstore_var *var, int64_t start) noexcept nogil

cdef unsigned long main_thread = threading.main_thread().ident
cdef object pending = None  # what a signal's handler raised in the main thread


def _note_main_thread():
    global main_thread
    main_thread = PyThread_get_thread_ident()


os.register_at_fork(after_in_child=_note_main_thread)


cdef int interrupted(void *arg) noexcept nogil:
    # Handlers run in the main thread only. The others stay away from the GIL, which may
    # be held for long, or be gone when the interpreter ends.
    return main_interrupted() if PyThread_get_thread_ident() == main_thread else 0


cdef int main_interrupted() noexcept with gil:
    global pending
    if pending is None:
        try:
            PyErr_CheckSignals()
        except BaseException as exc:
            pending = exc
    return pending is not None


cdef int raise_pending() except -1:
    """Raises what a signal's handler raised while this thread was in the library."""
    global pending
    if pending is not None and PyThread_get_thread_ident() == main_thread:
        exc, pending = pending, None
        raise exc
    return 0


_log = logging.getLogger("pyddstore")
_finalizing = sys.is_finalizing


cdef void log_line(void *arg, int level, const char *message) noexcept nogil:
    with gil:
        try:
            if not _finalizing():
                _log.log(level, "%s", message.decode(errors="replace"))
        except KeyboardInterrupt:
            _thread.interrupt_main()  # not here: the library is at work
        except BaseException:
            pass


def _drain_log():
    while True:
        with nogil:
            c.ddstore_log_drain(3600 * 1000)


_log_thread = None
_exiting = False


def _start_log_thread():
    """Passes on what the library's own thread has to say."""
    global _log_thread
    if _exiting or (_log_thread is not None and _log_thread.is_alive()):
        return  # an interpreter that ends starts no threads
    _log_thread = threading.Thread(target=_drain_log, name="ddstore-log", daemon=True)
    _log_thread.start()


class _LastResort(logging.Handler):
    """Shows on stderr what DDSTORE_LOG asks for where the program has set up no logging."""

    def filter(self, record):
        return not logging.getLogger().handlers and super().filter(record)

    def emit(self, record):
        print(f"pyddstore: {record.levelname.lower()}: {record.getMessage()}",
              file=sys.stderr, flush=True)


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
    """Installs the logger at DDSTORE_LOG's level. Where the variable is set, it holds for
    the logger `pyddstore` too, unless the program has given that a level of its own."""
    cdef int level = _LEVELS.get(setting("DDSTORE_LOG"), 30)
    if _exiting:
        return
    if "DDSTORE_LOG" in os.environ and _log.level == logging.NOTSET:
        _log.setLevel(level)
        if level < logging.WARNING and not _log.hasHandlers():
            _log.addHandler(_LastResort())
    with nogil:
        if level < 100:
            c.ddstore_set_logger(log_line, NULL, level)
        else:
            c.ddstore_set_logger(NULL, NULL, level)


def _at_exit():
    """From here on the library's threads call no Python, which is about to end."""
    global _exiting
    _exiting = True
    with nogil:
        c.ddstore_set_logger(NULL, NULL, 100)


set_log_level()
atexit.register(_at_exit)
c.ddstore_set_interrupt(interrupted, NULL)


# ---- dtypes as text -----------------------------------------------------------------------

def dtype_text(dtype):
    """A dtype as the text that all ranks compare; it names the byte order."""
    if dtype.hasobject:
        raise TypeError(f"dtype {dtype} holds Python objects, which have no bytes to store")
    if dtype.names is None and dtype.subdtype is None:
        if dtype.kind == "V" and dtype.type is not np.void:
            return dtype.name  # bfloat16 and its kin
        return dtype.str
    try:
        descr = np.lib.format.dtype_to_descr(dtype)
        if np.lib.format.descr_to_dtype(descr) == dtype:
            return repr(descr)
    except (ValueError, TypeError):
        pass
    return repr(_fields(dtype))  # out of order, or of dtypes that NumPy can't describe


def _fields(dtype):
    if dtype.subdtype is not None:
        base, shape = dtype.subdtype
        return (_fields(base), shape)
    if dtype.names is None:
        return dtype_text(dtype)
    fields = [dtype.fields[name] for name in dtype.names]
    return {"names": list(dtype.names), "formats": [_fields(f[0]) for f in fields],
            "offsets": [f[1] for f in fields], "itemsize": dtype.itemsize}


def dtype_of_text(text):
    """The dtype of such a text; None where NumPy alone has none (bfloat16)."""
    if not text:
        return None
    try:
        if text[0] in "[({":
            return _dtype_of_fields(ast.literal_eval(text))
        return _plain_dtype(text)
    except (TypeError, ValueError, SyntaxError, KeyError, ImportError, AttributeError):
        return None


def _plain_dtype(text):
    try:
        return np.dtype(text)
    except TypeError:
        import ml_dtypes
        return np.dtype(getattr(ml_dtypes, text))


def _dtype_of_fields(fields):
    if isinstance(fields, str):
        return _plain_dtype(fields)
    if isinstance(fields, dict):
        return np.dtype({**fields, "formats": [_dtype_of_fields(f)
                                               for f in fields["formats"]]})
    if isinstance(fields, tuple):
        return np.dtype((_dtype_of_fields(fields[0]), fields[1]))
    return np.lib.format.descr_to_dtype(fields)


cdef bint is_tensor(obj):
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(obj, torch.Tensor)


cdef refuse_device(device):
    raise RuntimeError(
        f"memory of {device} can't be read or written here: this build serves host memory "
        "only; copy it to the host first (tensor.cpu())")


cdef tuple tensor_array(obj, bint source):
    """A CPU tensor as an array that shares its memory (a source: or is a copy), and the
    text of its dtype."""
    if obj.device.type != "cpu":
        refuse_device(f"a tensor on {obj.device}")
    torch = sys.modules["torch"]
    obj = obj.detach()
    if source:
        obj = obj.resolve_conj().resolve_neg().contiguous()
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
        if isinstance(obj, (bytes, memoryview)):
            obj = memoryview(obj)  # NumPy takes bytes for text, and a dead view for rows
        elif hasattr(type(obj), "__cuda_array_interface__"):
            refuse_device(f"a GPU ({type(obj).__name__})")
        array = np.asarray(obj)
        text = dtype_text(array.dtype)
    if array.ndim == 0:
        raise ValueError("a source needs at least one dimension, its rows")
    return np.ascontiguousarray(array), text


# ---- the file rendezvous ---------------------------------------------------------------------

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


cdef class Comm:
    """Members that meet through files of a directory: the C side of FileComm."""

    cdef c.ddstore_comm *ptr
    cdef readonly int rank, size
    cdef object _lock
    cdef object __weakref__

    def __cinit__(self, str dir not None, int rank, int size, str ns not None,
                  double timeout_s=0):
        cdef c.ddstore_comm_file how
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes d = dir.encode("utf-8", "surrogateescape"), n = ns.encode()
        if b"\0" in d or b"\0" in n:
            raise ValueError("dir and ns must not hold NUL")
        how.dir, how.ns = d, n
        how.rank, how.size, how.timeout_s = rank, size, timeout_s
        check_namespace(d, ns, rank)
        self.rank, self.size = rank, size
        self._lock = threading.Lock()
        _start_log_thread()
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

    def __reduce__(self):
        raise TypeError("a FileComm can't be sent to another process: open one there")

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
        with self._lock:
            ptr = self.open_ptr()
            with nogil:
                rc = c.ddstore_comm_barrier(ptr, &err)
        if rc:
            fail(&err)
        raise_pending()


# ---- the store --------------------------------------------------------------------------------

cdef class _Variable:
    """What a read looks up by name."""

    cdef c.ddstore_var *ptr
    cdef str name
    cdef object dtype       # numpy.dtype; None: untyped, or none of NumPy's own
    cdef object accepted    # a dtype that was checked before, to know it again at once
    cdef str text           # of the dtype; "": untyped
    cdef object row_shape   # of an array that was added here; None otherwise
    cdef int64_t total, local_rows
    cdef uint64_t disp, row_bytes
    cdef uint32_t itemsize


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


cdef int64_t row_number(obj, str what, _Variable v, int64_t rows) except? -1:
    """An index as int64; what lies outside is no row of anything."""
    cdef int overflow = 0
    cdef int64_t number
    if not PyLong_CheckExact(obj):
        if isinstance(obj, (bool, np.bool_)):
            raise TypeError(f"{what} is an integer, not {obj}")
        obj = operator.index(obj)
    number = PyLong_AsLongLongAndOverflow(obj, &overflow)
    if overflow:
        raise out_of_range(obj, what, v, rows)
    return number


cdef out_of_range(obj, str what, _Variable v, int64_t rows):
    return IndexError(f"{what} {obj} is out of range: variable {v.name!r} has {rows} rows")


cdef object index_array(indices, _Variable v):
    """Row numbers as a C-contiguous int64 array."""
    cdef object array
    if is_tensor(indices):
        array = indices.detach().cpu().numpy()
    elif isinstance(indices, range):
        if not indices:
            return np.empty(0, dtype=np.int64)
        for i in (indices[0], indices[len(indices) - 1]):
            row_number(i, "index", v, v.total)
        array = np.arange(len(indices), dtype=np.int64) * indices.step + indices.start
    else:
        array = np.asarray(indices)
        if array.ndim == 1 and (array.dtype.kind == "O" or array.dtype.kind == "f" and
                                not isinstance(indices, np.ndarray)):
            # NumPy has no integer that holds them all, or they are no integers.
            array = np.array([row_number(i, "index", v, v.total) for i in indices],
                             dtype=np.int64)
    if array.ndim != 1:
        raise ValueError(f"indices need one dimension, not {array.ndim}")
    if array.size == 0:
        return np.empty(0, dtype=np.int64)
    if array.dtype.kind not in "iu":
        raise TypeError(f"indices need an integer dtype, not {array.dtype}")
    if array.dtype.kind == "u" and array.dtype.itemsize == 8 and array.max() > 2**63 - 1:
        raise out_of_range(array.max(), "index", v, v.total)
    return np.ascontiguousarray(array, dtype=np.int64)


cdef inline double seconds() noexcept nogil:
    cdef timespec t
    clock_gettime(CLOCK_MONOTONIC, &t)
    return t.tv_sec + t.tv_nsec * 1e-9


# Destinations in which a broken-off read may still put bytes, whatever becomes of the
# store: the library says so in its message. They are never given back.
_kept = []
cdef const char *KEPT = b"bytes may still arrive in the destination"


cdef class Store:
    """A store's handle and its reads. PyDDStore adds the ways to open one."""

    cdef c.ddstore_t *ptr
    cdef dict _vars
    cdef dict _registered
    cdef bint _freed
    cdef bint _profile
    cdef uint64_t _py_gets
    cdef double _py_get
    cdef readonly int method
    cdef readonly int rank
    cdef object __weakref__

    def __cinit__(self, *args, **kwargs):
        self._vars = {}
        self._registered = {}
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
        if self.ptr != NULL or self._freed:
            raise ValueError("this store was opened before: make another")
        if b"\0" in d or b"\0" in n or b"\0" in m:
            raise ValueError("handshake_dir, exchange_ns and nic_map must not hold NUL")
        if not extra:
            check_namespace(d, ns, rank)
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
        self._profile = setting("DDSTORE_PROFILE") == "1"
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
        if not extra:
            note_namespace(d, ns, rank, self)
            c.ddstore_announce_sigterm()
        raise_pending()

    def _holds_namespace(self):
        return self.ptr != NULL and not self._freed

    cdef int check_open(self) except -1:
        if self._freed or self.ptr == NULL:
            raise StoreClosedError("the store was freed")
        return 0

    def free(self):
        """Releases the store's memory, connections and registered buffers. Local: waits
        for nobody but this process's own running reads. Twice does nothing."""
        cdef c.ddstore_t *ptr = self.ptr
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

    # -- variables --

    cdef _Variable find(self, name):
        cdef object v
        if self._freed:
            raise StoreClosedError("the store was freed")
        v = self._vars.get(name)
        if v is None:
            known = ", ".join(sorted(self._vars)) or "none"
            raise KeyError(f"no variable named {name!r}; known: {known}")
        return <_Variable>v

    cdef int add_failed(self, name, exc) except -1:
        """Takes part in the others' call with this rank's failure; raises what all do."""
        cdef c.ddstore_error why, err
        cdef bytes n = b"?", text
        cdef const char *name_text
        if isinstance(name, str):
            n = name.encode("utf-8", "replace").replace(b"\0", b"?") or b"?"
        code, words = code_and_text(exc)
        text = words.encode("utf-8", "replace")
        name_text = n
        memset(&why, 0, sizeof(why))
        why.code = code
        strncpy(why.message, text, sizeof(why.message) - 1)
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
        if rc and strstr(err.message, KEPT) != NULL:
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
        anything is read; one outside raises IndexError. Any thread; the GIL is released.
        """
        cdef _Variable v = self.find(name)
        cdef c.ddstore_error err
        cdef int rc
        cdef double begun = seconds() if self._profile else 0
        dst = self.destination(v, arr)
        cdef size_t n = cnp.PyArray_DIM(<cnp.ndarray>dst, 0)
        if isinstance(indices, range) and <size_t>len(indices[:n + 1]) != n:
            raise ValueError(f"the destination has {n} rows for the indices {indices}")
        if not (cnp.PyArray_CheckExact(indices) and
                cnp.PyArray_TYPE(<cnp.ndarray>indices) == cnp.NPY_INT64 and
                cnp.PyArray_NDIM(<cnp.ndarray>indices) == 1 and
                cnp.PyArray_ISCARRAY_RO(<cnp.ndarray>indices)):
            indices = index_array(indices, v)
        if <size_t>cnp.PyArray_DIM(<cnp.ndarray>indices, 0) != n:
            raise ValueError(f"the destination has {n} rows for {len(indices)} indices")
        cdef const int64_t *rows = <const int64_t *>cnp.PyArray_DATA(<cnp.ndarray>indices)
        cdef void *data = cnp.PyArray_DATA(<cnp.ndarray>dst)
        with nogil:
            rc = c.ddstore_get_batch(v.ptr, rows, n, data, &err)
        if rc or pending is not None:
            self.read_ended(rc, dst, &err)
        if self._profile:
            self._py_gets += 1
            self._py_get += seconds() - begun

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
        """
        cdef _Variable v = self.find(name)
        cdef c.ddstore_profile p
        c.ddstore_get_profile(v.ptr, &p)
        return {
            "calls": p.calls, "rows": p.rows, "bytes": p.bytes,
            "lock_wait": p.lock_wait, "mr": p.mr, "mr_miss": p.mr_miss,
            "read": p.read, "cq": p.cq,
            "rows_local": p.rows_local, "rows_rdma": p.rows_rdma,
            "rows_tcp": p.rows_tcp, "rows_mpi": p.rows_mpi,
            "py_gets": self._py_gets, "py_get": self._py_get, "py_sync": 0.0,
        }

    def transports(self):
        """How each core rank is reached: a list of dicts with rank, host, pid, path (self,
        local, rdma, tcp), provider, reason and state (alive, lost)."""
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
    return str.__str__(name)


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


cdef inline bint row_fits(_Variable v, cnp.ndarray a) noexcept:
    cdef uint64_t n = 1
    cdef int i, ndim = cnp.PyArray_NDIM(a)
    for i in range(1, ndim):
        n *= <uint64_t>cnp.PyArray_DIM(a, i)
    return ndim > 0 and n == v.disp


cdef int check_row(_Variable v, array) except -1:
    if array.ndim == 0:
        raise ValueError("a row array needs at least one dimension")
    elements = row_elements(array.shape)
    # Where no rank has rows there is nothing to agree on.
    if elements != v.disp and (v.total or array.shape[0]):
        raise ValueError(
            f"variable {v.name!r} has {v.disp} elements a row; an array of shape "
            f"{array.shape} has {elements}")
    return 0


cdef foreign_destination(_Variable v, arr):
    """A tensor or buffer as an array of its memory."""
    if is_tensor(arr):
        array, text = tensor_array(arr, False)
        check_dtype(v, array.dtype, text)
        return array
    if hasattr(type(arr), "__cuda_array_interface__"):
        refuse_device(f"a GPU ({type(arr).__name__})")
    try:
        array = np.asarray(memoryview(arr))
    except (TypeError, ValueError):
        raise TypeError("a destination is an array, a tensor or a writable buffer, not "
                        f"{type(arr).__name__}") from None
    check_dtype(v, array.dtype, None)
    return array


cdef int check_dtype(_Variable v, dtype, text) except -1:
    """text: of the dtype, where it is not the array's own."""
    if v.text == "":
        if dtype.hasobject:
            raise TypeError(f"variable {v.name!r} holds bytes; dtype {dtype} Python objects")
        if dtype.itemsize != v.itemsize:
            raise TypeError(f"variable {v.name!r} has items of {v.itemsize} bytes; dtype "
                            f"{text or dtype} has {dtype.itemsize}")
        return 0
    if text is None:
        if dtype == v.dtype:
            return 0
        text = "object" if dtype.hasobject else dtype_text(dtype)
    if text != v.text:
        raise TypeError(f"variable {v.name!r} has dtype {v.text}; the array has {text}")
    return 0
