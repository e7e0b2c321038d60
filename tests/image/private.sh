#!/usr/bin/env bash
# Runs a command with podman in private mounts, so that nothing remains on the machine: private.sh FOLDER COMMAND...
# Images and containers are below FOLDER; run-time files are on a tmpfs that ends with the command. Needs root.
set -euo pipefail
folder=$(readlink -f "${1:?folder}")
shift
if [ "${MYCOJOBS_PRIVATE:-}" != yes ]; then
  exec env MYCOJOBS_PRIVATE=yes unshare --mount --propagation private "$0" "$folder" "$@"
fi
unset MYCOJOBS_PRIVATE
mount -t tmpfs -o mode=755 run /run
mount -t tmpfs -o mode=1777 shm /dev/shm
mount -t tmpfs -o mode=755 lib /var/lib
mkdir -p /run/lock /run/state "$folder/storage" "$folder/tmp"
# Ids for containers with users of their own (hostUsers: false).
for file in subuid subgid; do
  [ -e "/etc/$file" ] || { echo "private.sh: this host has no /etc/$file (package uidmap)" >&2; exit 69; }
  echo containers:2000000:10000000 >"/run/$file"
  mount --bind "/run/$file" "/etc/$file"
done
# crun supports version 1 or version 2 of cgroups, but not a mixture with controllers in both.
if grep -qs . /sys/fs/cgroup/unified/cgroup.controllers; then umount /sys/fs/cgroup/unified; fi
export TMPDIR=$folder/tmp CONTAINERS_CONF=/run/containers.conf CONTAINERS_STORAGE_CONF=/run/storage.conf
cat >/run/storage.conf <<END
[storage]
driver = "overlay"
graphroot = "$folder/storage"
runroot = "/run/state"
END
# Limits that root without CAP_SYS_RESOURCE can set, too. No systemd, no journal.
cat >/run/containers.conf <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
tmp_dir = "/run/libpod"
[network]
network_backend = "netavark"
network_config_dir = "/run/networks"
END
exec "$@"
