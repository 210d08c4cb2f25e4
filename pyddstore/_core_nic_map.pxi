# NIC maps: which network interface is nearest to which CPU.

cdef class NicMap:
    """A map from CPUs to network interfaces; see ddstore_nic_map in ddstore.h."""

    cdef c.ddstore_nic_map *ptr

    def __cinit__(self, text=None, *, pattern=None):
        """The map that `text` describes, or without one that of this machine, of the
        network interfaces whose names match `pattern`."""
        cdef c.ddstore_error err
        cdef int rc
        cdef bytes words = b"" if text is None else text.encode("utf-8", "replace")
        cdef bytes names = b"" if pattern is None else pattern.encode("utf-8", "replace")
        cdef const char *w = words
        cdef const char *n = names
        cdef bint given = text is not None
        if b"\0" in words or b"\0" in names:
            raise ValueError("a NIC map and a pattern must not hold NUL")
        with nogil:
            if given:
                rc = c.ddstore_nic_map_parse(w, &self.ptr, &err)
            else:
                rc = c.ddstore_nic_map_discover(n, &self.ptr, &err)
        if rc:
            fail(&err)
        raise_pending()

    def __dealloc__(self):
        c.ddstore_nic_map_close(self.ptr)

    def __reduce__(self):
        raise TypeError("a NicMap can't be sent to another process: send its text")

    def __str__(self):
        cdef char *text = NULL
        cdef c.ddstore_error err
        if c.ddstore_nic_map_format(self.ptr, &text, &err):
            fail(&err)
        try:
            return text.decode(errors="replace")
        finally:
            c.ddstore_release(text)

    def cpus(self):
        """All CPUs of the map, by number: a list of dicts with cpu, numa, nic, nic_numa
        and how. Numbers of NUMA nodes are None where they aren't known."""
        cdef c.ddstore_nic_cpu it
        cdef int rc = 0, cpu = 0
        out = []
        while rc != c.DDSTORE_EINDEX:
            rc = c.ddstore_nic_map_cpu(self.ptr, cpu, &it)
            if rc == 0:
                out.append({
                    "cpu": cpu,
                    "numa": None if it.numa < 0 else it.numa,
                    "nic": it.nic.decode(errors="replace"),
                    "nic_numa": None if it.nic_numa < 0 else it.nic_numa,
                    "how": it.how.decode(),
                })
            cpu += 1
        return out

    def choose(self):
        """The interface for the calling thread's CPUs, and why it is that: (nic, why)."""
        cdef c.ddstore_nic_choice it
        cdef c.ddstore_error err
        cdef int rc
        with nogil:
            rc = c.ddstore_nic_map_choose(self.ptr, &it, &err)
        if rc:
            fail(&err)
        raise_pending()
        return it.nic.decode(errors="replace"), it.why.decode(errors="replace")
