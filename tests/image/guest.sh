#!/usr/bin/env bash
# Tests the image of test.sh in a Debian 12 machine with systemd, cgroup v2 and Debian's podman, as root and as an
# unprivileged user: guest.sh PACKAGE... (packages to install in the machine). VM_ROWS=REGEX selects rows by name. All
# files are below build/image.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
work=build/image/vm
limit_s=1500

mkdir -p "$work"
key=$(cat tests/vm/image.sh $(find tests/vm/root -type f | sort) <(printf '%s\n' "$@") | sha256sum | cut -c1-16)
disk=$work/disk-$key
if [ ! -f "$disk/root.img" ]; then
  printf 'image: making a disk with Debian 12 and podman (a minute; kept for the next time)\n' >&2
  rm -rf "$work"/disk-*
  tests/vm/image.sh "$disk" "$@" >"$work/disk.log" 2>&1 || { tail -20 "$work/disk.log" >&2; exit 69; }
fi
rm -rf "$work/stage" "$work/payload.img"
mkdir -p "$work/stage/rootfs"
# shellcheck disable=SC2016
"$here/private.sh" build/image bash -c '
  container=$(podman create --no-healthcheck localhost/mycojobs)
  podman export "$container" | tar -x -C "$0"
  podman rm --volumes "$container"' "$work/stage/rootfs" >"$work/stage.log"
cp docker/seccomp.json docker/apparmor "$work/stage/"
cp tests/vm/rows.py "$work/stage/vm_rows.py"
cp "$here/guest_rows.py" "$work/stage/rows.py"
echo "${VM_ROWS:-}" >"$work/stage/only"
mke2fs -q -t ext4 -O ^has_journal -d "$work/stage" "$work/payload.img" 450M >"$work/stage.log" 2>&1
rm -rf "$work/stage"
tests/vm/boot.sh "$work" "$disk" "$work/payload.img" "$limit_s"
