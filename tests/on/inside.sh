#!/usr/bin/env bash
# Runs a command in the folder /src of another root folder. Usage: inside.sh ROOT SOURCE CACHE COMMAND...
# Mounts and processes are in private namespaces and end with the command. The script uses pivot_root, because sandboxes
# need user namespaces, which the kernel does not permit below chroot.
set -euo pipefail
if [ -z "${MYCOJOBS_INSIDE:-}" ]; then
  MYCOJOBS_INSIDE=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi
root=$(readlink -f "${1:?root}") source=${2:?source} cache=${3:?cache}
shift 3
mkdir -p "$root"/{src,cache}
cp -L /etc/resolv.conf /etc/hosts "$root/etc/"
mount --bind "$root" "$root"
mount --bind "$source" "$root/src"
mount --bind "$cache" "$root/cache"
mount -t proc proc "$root/proc"
mount --rbind /sys "$root/sys"
mount --rbind /dev "$root/dev"
mount -t tmpfs -o mode=1777 tmp "$root/tmp"
mount -t tmpfs -o mode=755 run "$root/run"
cd "$root"
pivot_root . .
umount -l .
cd /src
# There is no exec here, so that the shell remains the first process of its namespace and reaps orphans.
env -i PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin HOME=/root LANG=C.UTF-8 TERM="${TERM:-dumb}" \
  CCACHE_DIR=/cache CMAKE_BUILD_PARALLEL_LEVEL="${CMAKE_BUILD_PARALLEL_LEVEL:-$(nproc)}" "$@"
