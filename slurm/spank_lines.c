/* Lines "KEY VALUE": what children tell, and what the files of the node's state hold.
 */
#include "spank_parts.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static bool write_all(int fd, const char *text, size_t bytes)
{
    while (bytes > 0) {
        ssize_t n = write(fd, text, bytes);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return false;
        text += n;
        bytes -= (size_t)n;
    }
    return true;
}

bool ddstore__lines_put(int fd, const char *key, const char *format, ...)
{
    va_list args;
    char *value = NULL, *line = NULL;
    va_start(args, format);
    int n = vasprintf(&value, format, args);
    va_end(args);
    if (n < 0)
        return false;
    for (char *p = value; *p; p++)
        if (*p == '\n')
            *p = ' ';
    n = asprintf(&line, "%s%s%s\n", key, *value ? " " : "", value);
    bool done = n >= 0 && write_all(fd, line, (size_t)n);
    free(value);
    if (n >= 0)
        free(line);
    return done;
}

bool ddstore__lines_next(char **text, char **key, char **value)
{
    char *line = *text, *end = strchr(line, '\n');
    if (!end)
        return false; /* what has no end is not whole */
    *end = '\0';
    *text = end + 1;
    *key = line;
    char *space = strchr(line, ' ');
    *value = space ? space + 1 : end;
    if (space)
        *space = '\0';
    return true;
}

bool ddstore__lines_whole(const char *text)
{
    size_t n = strlen(text);
    return (n == 4 || (n > 4 && text[n - 5] == '\n')) &&
           strcmp(text + n - 4, "end\n") == 0;
}

bool ddstore__lines_number(const char *value, uint64_t most, uint64_t *out)
{
    uint64_t n = 0;
    if (!*value)
        return false;
    for (; *value; value++) {
        if (*value < '0' || *value > '9')
            return false;
        n = n * 10 + (uint64_t)(*value - '0');
        if (n > most)
            return false;
    }
    *out = n;
    return true;
}
