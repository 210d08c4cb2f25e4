#!/usr/bin/env bash
# Compares what the shared library exports with symbols.txt and with the public header.
# symbols.sh NM LIBRARY HEADER LIST [update]
set -euo pipefail
nm=$1 library=$2 header=$3 list=$4
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export LC_ALL=C

"$nm" -D --defined-only "$library" | awk '{ print $NF }' | sed 's/@.*//' | sort -u \
    | { grep -vxE '_init|_fini|_edata|_end|__bss_start' || true; } \
    | { grep -vE '^_*(asan|tsan|ubsan|lsan|sancov|sanitizer|odr_asan)' || true; } \
    >"$work/exported"
# A declaration may go over several lines; its name stands before the first bracket.
grep -v '^#' "$header" | tr '\n' ' ' | grep -oE 'DDSTORE_API [^;(]*\(' \
    | sed -E 's/.*[ *](ddstore_[a-z0-9_]*)\($/\1/' | sort -u >"$work/declared"
[ "${5:-}" != update ] || cp "$work/declared" "$list"

status=0
diff -u --label declared --label exported "$work/declared" "$work/exported" || status=1
diff -u --label symbols.txt --label declared "$list" "$work/declared" || status=1
if grep -n 'ddstore__' "$work/exported"; then
    echo "internal names are exported" >&2
    status=1
fi
if [ $status != 0 ]; then
    echo "if the change is meant: tests/c/symbols.sh nm LIBRARY HEADER LIST update" >&2
fi
exit $status
