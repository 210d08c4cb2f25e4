# Stores over MPI: collectives that Python starts and asks for, and the plugin.

cdef extern from "dlfcn.h" nogil:
    enum:
        RTLD_NOW
        RTLD_LOCAL
    void *dlopen(const char *file, int flags)
    void *dlsym(void *library, const char *name)
    char *dlerror()


# -- a meeting: an object with rank, size, start(mine, all), test() and failure --

cdef int meeting_failed(meeting, exc) noexcept:
    """What a signal's handler raises ends the library's wait, which looks at `pending`;
    the rest is a failure of the meeting."""
    global pending
    if not isinstance(exc, Exception) and pending is None:
        pending = exc
        return 0
    meeting.failure = exc
    return -1


cdef int meeting_allgather(void *arg, const void *mine, size_t n, void *all) noexcept with gil:
    meeting = <object>arg
    try:
        meeting.start(<const char[:n]>mine, <char[:n * <size_t>meeting.size]>all)
    except BaseException as exc:
        meeting_failed(meeting, exc)
        return -1
    return 0


cdef int meeting_test(void *arg) noexcept with gil:
    meeting = <object>arg
    try:
        return 1 if meeting.test() else 0
    except BaseException as exc:
        return meeting_failed(meeting, exc)


cdef void meeting_why(void *arg, char *text, size_t n) noexcept with gil:
    failure = (<object>arg).failure
    words = f"{type(failure).__name__}: {failure}".encode("utf-8", "replace")[:n - 1]
    memset(text, 0, n)
    strncpy(text, <const char *>words, n - 1)


cdef c.ddstore_comm *comm_of_meeting(meeting) except NULL:
    cdef c.ddstore_comm_callbacks how
    cdef c.ddstore_comm *comm = NULL
    cdef c.ddstore_error err
    memset(&how, 0, sizeof(how))
    how.rank, how.size = meeting.rank, meeting.size
    how.allgather, how.test, how.why = meeting_allgather, meeting_test, meeting_why
    how.arg = <void *>meeting  # the caller keeps it alive
    if c.ddstore_comm_open_callbacks(&how, &comm, &err):
        fail(&err)
    return comm


# -- the plugin: libddstore_mpi.so, which alone links MPI --

ctypedef const char *(*library_fn)() noexcept nogil
ctypedef int (*attach_fn)(const void *, c.ddstore_mpi **, c.ddstore_error *) noexcept nogil
ctypedef void (*describe_fn)(c.ddstore_mpi *, c.ddstore_mpi_calls *) noexcept nogil
ctypedef void (*release_fn)(c.ddstore_mpi *) noexcept nogil

cdef struct Plugin:
    library_fn built_for
    library_fn library
    attach_fn attach
    describe_fn describe
    release_fn release

cdef Plugin plugin
cdef bint plugin_loaded = False


def load_plugin(str path not None):
    """Loads libddstore_mpi.so. Returns the MPI that it was compiled for."""
    global plugin_loaded
    cdef bytes file = os.fsencode(path)
    cdef void *library
    if not plugin_loaded:
        library = dlopen(file, RTLD_NOW | RTLD_LOCAL)
        if library == NULL:
            raise RuntimeError(f"{path} can't be loaded: {dlerror().decode()}")
        plugin.built_for = <library_fn>dlsym(library, "ddstore_mpi_built_for")
        plugin.library = <library_fn>dlsym(library, "ddstore_mpi_library")
        plugin.attach = <attach_fn>dlsym(library, "ddstore_mpi_attach")
        plugin.describe = <describe_fn>dlsym(library, "ddstore_mpi_describe")
        plugin.release = <release_fn>dlsym(library, "ddstore_mpi_release")
        if (plugin.built_for == NULL or plugin.library == NULL or plugin.attach == NULL or
                plugin.describe == NULL or plugin.release == NULL):
            raise RuntimeError(f"{path} is of another version of this package")
        plugin_loaded = True
    return plugin.built_for().decode()


def plugin_library():
    """The MPI that the plugin runs with, as MPI itself says. Only where it was compiled
    for an MPI of this kind."""
    return plugin.library().decode(errors="replace")


cdef class MpiGroup:
    """A communicator of a store's own, in the plugin's hands. Never freed by itself,
    since that takes all ranks."""

    cdef c.ddstore_mpi *ptr

    def __cinit__(self, address):
        """address: of the MPI_Comm, which becomes the group's."""
        cdef const void *comm = <const void *><uintptr_t>address
        cdef c.ddstore_error err
        if not plugin_loaded:
            raise RuntimeError("the MPI plugin isn't loaded")
        if plugin.attach(comm, &self.ptr, &err):
            fail(&err)

    def release(self):
        """Frees windows, their memory and the communicator. Collective; its store is
        freed."""
        cdef c.ddstore_mpi *ptr = self.ptr
        self.ptr = NULL
        with nogil:
            plugin.release(ptr)
