# Exceptions, and what they mean to the C library.

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


cdef inherited_error(str text):
    exc = DDStoreError(text)
    exc.code = c.DDSTORE_EFORKED
    return exc


cdef tuple code_and_text(exc):
    """How the other members learn of an exception raised here."""
    text = f"{exc}" or type(exc).__name__
    if isinstance(exc, DDStoreError):
        return exc.code, text
    for code, cls in _CLASS_OF_CODE.items():
        if isinstance(exc, cls):
            return code, text
    return c.DDSTORE_EINVAL, f"{type(exc).__name__}: {exc}"


cdef int fill_failure(c.ddstore_error *why, exc) except -1:
    """The same as the C library's error."""
    code, words = code_and_text(exc)
    cdef bytes text = words.encode("utf-8", "replace")
    memset(why, 0, sizeof(why[0]))
    why.code = code
    strncpy(why.message, text, sizeof(why.message) - 1)
    return 0
