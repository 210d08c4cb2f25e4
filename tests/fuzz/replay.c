/* Feeds every file that is named, or that lies in a folder that is, to a fuzz target
 * once: what the corpus holds is tried in each build, also without a fuzzing compiler.
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

static int tried;

static void try_file(const char *path)
{
    FILE *f = fopen(path, "rb");
    if (!f) {
        perror(path);
        exit(2);
    }
    uint8_t *data = NULL;
    size_t bytes = 0, got;
    char piece[4096];
    while ((got = fread(piece, 1, sizeof(piece), f)) > 0) {
        data = realloc(data, bytes + got);
        must(data != NULL);
        memcpy(data + bytes, piece, got);
        bytes += got;
    }
    fclose(f);
    fprintf(stderr, "%s\n", path);
    uint8_t *exact = malloc(bytes + !bytes); /* a read past its end is seen */
    must(exact != NULL);
    if (bytes)
        memcpy(exact, data, bytes);
    (void)LLVMFuzzerTestOneInput(exact, bytes);
    free(exact);
    free(data);
    tried++;
}

static void try_path(const char *path)
{
    struct stat st;
    DIR *d = stat(path, &st) == 0 && S_ISDIR(st.st_mode) ? opendir(path) : NULL;
    if (!d) {
        try_file(path);
        return;
    }
    for (struct dirent *e; (e = readdir(d));) {
        char below[4096];
        if (*e->d_name == '.')
            continue;
        snprintf(below, sizeof(below), "%s/%s", path, e->d_name);
        try_path(below);
    }
    closedir(d);
}

int main(int argc, char **argv)
{
    for (int i = 1; i < argc; i++)
        try_path(argv[i]);
    printf("%d inputs tried\n", tried);
    return tried ? 0 : 2;
}
