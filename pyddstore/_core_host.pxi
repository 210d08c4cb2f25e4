# The host's part: signals while C waits, and the log.

cdef extern from "Python.h":
    int PyErr_CheckSignals() except -1
    unsigned long PyThread_get_thread_ident() noexcept nogil
    long long PyLong_AsLongLongAndOverflow(object number, int *overflow) except? -1
    bint PyLong_CheckExact(object number)

cdef extern from *:  # not of the public header
    """
    struct ddstore_var;
    void ddstore__get_soon(struct ddstore_var *var, int64_t start);
    extern unsigned ddstore__fork_generation;
    """
    void ddstore__get_soon(c.ddstore_var *var, int64_t start) noexcept nogil
    unsigned ddstore__fork_generation

cdef unsigned long main_thread = threading.main_thread().ident
cdef object pending = None  # what a signal's handler raised in the main thread


def _begin_child():
    global main_thread, pending
    main_thread = PyThread_get_thread_ident()
    pending = None  # it is raised in the parent


os.register_at_fork(after_in_child=_begin_child)


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
