# Settings, this machine, and the log level.

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
