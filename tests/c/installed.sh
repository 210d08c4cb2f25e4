#!/usr/bin/env bash
# A program outside the tree, built with pkg-config against an installed library: it adds
# a variable and reads rows. installed.sh MESON BUILD SOURCE CC
set -euo pipefail
meson=$1 build=$2 source=$3
shift 3
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
export MALLOC_PERTURB_=0

"$meson" install --no-rebuild --quiet -C "$build" --tags runtime,devel --destdir "$work/root" >/dev/null
pc=$(find "$work/root" -name ddstore.pc)
[ -n "$pc" ]
export PKG_CONFIG_PATH=${pc%/*} PKG_CONFIG_SYSROOT_DIR=$work/root
# System folders are left out of pkg-config's answer unless it is told to keep them.
export PKG_CONFIG_ALLOW_SYSTEM_CFLAGS=1 PKG_CONFIG_ALLOW_SYSTEM_LIBS=1
[ "$(pkg-config --modversion ddstore)" = "$(sed -n "s/.*version: '\([0-9.]*\)'.*/\1/p" "$source/meson.build" | head -n 1)" ]
cp "$source/tests/c/outside.c" "$work"
cd "$work"
flags=()
read -r -a flags <<<"$(pkg-config --cflags --libs ddstore)"
"$@" -std=c11 -Wall -Wextra -Wpedantic -Werror outside.c -o outside "${flags[@]}"
library=$(find root -name 'libddstore.so.?' | head -n 1)
LD_LIBRARY_PATH=$PWD/${library%/*} ./outside
# As C++ users see the header.
printf '#include <ddstore.h>\nint main() { return ddstore_version() == 0; }\n' >outside.cc
if command -v c++ >/dev/null; then
    c++ -Wall -Wextra -Werror -c outside.cc "${flags[@]:0:1}"
fi
