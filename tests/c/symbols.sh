#!/usr/bin/env bash
# Compares what a shared library exports with a list and with the public headers, where
# functions named ddstore_mpi_... are those of libddstore_mpi.
# symbols.sh [update] NM LIBRARY LIST HEADER...
set -euo pipefail
update=
[ "$1" != update ] || { update=$1 && shift; }
nm=$1 library=$2 list=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

"$nm" -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u \
    | { grep -vxE '_init|_fini|_edata|_end|__bss_start' || true; } \
    | { grep -vE '^_*(asan|tsan|ubsan|lsan|sancov|sanitizer|odr_asan)' || true; } \
    >"$work/exported"
# A declaration may go over several lines; its name stands before the first bracket.
case $library in
*_mpi.so*) its=(-E '^ddstore_mpi_') ;;
*) its=(-vE '^ddstore_mpi_') ;;
esac
cat "$@" | grep -v '^#' | tr '\n' ' ' | grep -oE 'DDSTORE_API [^;(]*\(' \
    | sed -E 's/.*[ *](ddstore_[a-z0-9_]*)\($/\1/' | grep "${its[@]}" | sort -u >"$work/declared"
[ ! "$update" ] || cp "$work/declared" "$list"

status=0
diff -u --label declared --label exported "$work/declared" "$work/exported" || status=1
diff -u --label "${list##*/}" --label declared "$list" "$work/declared" || status=1
if grep -n 'ddstore__' "$work/exported"; then
    echo "internal names are exported" >&2
    status=1
fi
if [ $status != 0 ]; then
    echo "if the change is meant: tests/c/symbols.sh update nm LIBRARY LIST HEADER..." >&2
fi
exit $status
