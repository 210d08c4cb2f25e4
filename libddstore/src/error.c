/* Errors: filling a ddstore_error, and the names of the codes. */
#include "base.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void fill(ddstore_error *err, int code, const char *format, va_list args)
{
    err->code = code;
    err->late = 0;
    vsnprintf(err->message, sizeof(err->message), format, args);
}

void ddstore__fill(ddstore_error *err, int code, const char *format, ...)
{
    if (err) {
        va_list args;
        va_start(args, format);
        fill(err, code, format, args);
        va_end(args);
    }
}

static void append(ddstore_error *err, const char *text)
{
    size_t used = strlen(err->message);
    snprintf(err->message + used, sizeof(err->message) - used, "%s", text);
}

int ddstore__fill_errno(ddstore_error *err, int errnum, const char *format, ...)
{
    int code = errnum == ENOMEM ? DDSTORE_ENOMEM : DDSTORE_ESYS;
    if (err) {
        char buffer[128];
        va_list args;
        va_start(args, format);
        fill(err, code, format, args);
        va_end(args);
        append(err, ": ");
        append(err, strerror_r(errnum, buffer, sizeof(buffer)));
        if (errnum == EMFILE || errnum == ENFILE)
            append(err, " (raise the limit of open files: ulimit -n)");
    }
    return code;
}

void ddstore__prefix(ddstore_error *err, int code, const char *format, ...)
{
    if (err) {
        char inner[sizeof(err->message)];
        int late = err->late;
        va_list args;
        memcpy(inner, err->message, sizeof(inner));
        va_start(args, format);
        fill(err, code, format, args);
        va_end(args);
        err->late = late;
        append(err, ": ");
        append(err, inner);
    }
}

const char *ddstore_code_name(int code)
{
    static const char *const names[] = {
        "DDSTORE_OK",        "DDSTORE_EINVAL",       "DDSTORE_ETYPE",
        "DDSTORE_EINDEX",    "DDSTORE_EKEY",         "DDSTORE_ENOMEM",
        "DDSTORE_ESYS",      "DDSTORE_EPEER",        "DDSTORE_ECLOSED",
        "DDSTORE_EFABRIC",   "DDSTORE_ETIMEDOUT",    "DDSTORE_EINTR",
        "DDSTORE_ECONFLICT", "DDSTORE_EUNSUPPORTED", "DDSTORE_EFORKED",
    };
    if (code > 0 || code <= -(int)DDSTORE__COUNT(names))
        return "unknown";
    return names[-code];
}

const char *ddstore_version(void)
{
    return DDSTORE_VERSION;
}

void ddstore_release(void *data)
{
    free(data);
}
