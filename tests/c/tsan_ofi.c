/* What ThreadSanitizer is told in the tests of transport/ofi: libfabric itself is not
 * built for it, so that it sees neither its locks nor what they guard. */
const char *__tsan_default_suppressions(void);

const char *__tsan_default_suppressions(void)
{
    return "called_from_lib:libfabric.so\n"
           "race:libfabric.so\n"
           /* libfabric's locks, seen as it is unloaded; ld.so may have no symbols */
           "mutex:_dl_call_fini\n"
           "mutex:ld-linux\n";
}
