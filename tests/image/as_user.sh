#!/usr/bin/env bash
# Runs a command as an unprivileged user with podman: as_user.sh FOLDER COMMAND... Called as root within private.sh:
# user, ids and devices exist only in those mounts. The user's home is FOLDER; the tree is in /var/lib/tree.
set -euo pipefail
folder=$(readlink -f "${1:?folder}")
shift
tree=$(dirname "$(dirname "$(dirname "$(readlink -f "$0")")")")
name=container-user id=64321 home=/var/lib/container-user

# Podman mounts over /var/lib/cni, or over the existing part of that path.
mkdir -p "$folder" "$home" /var/lib/tree /var/lib/cni "/run/user/$id"
mount --bind "$folder" "$home"
mount --bind "$tree" /var/lib/tree
for file in passwd group subuid subgid; do
  { grep -v "^$name:" "/etc/$file" || true; } >"/run/user-$file"
done
echo "$name:x:$id:$id::$home:/bin/bash" >>/run/user-passwd
echo "$name:x:$id:" >>/run/user-group
echo "$name:1000000:65536" | tee -a /run/user-subuid >>/run/user-subgid
for file in passwd group subuid subgid; do
  mount --bind "/run/user-$file" "/etc/$file"
done
# As on other hosts, every user may create network interfaces in their own namespace.
mknod -m 666 /run/tun c 10 200
if [ -e /dev/net/tun ]; then mount --bind /run/tun /dev/net/tun; fi

mkdir -p "$home/storage" "$home/tmp"
chown "$id:$id" "$home" "$home/storage" "$home/tmp" "/run/user/$id"
chmod 700 "/run/user/$id"
cat >/run/user-storage.conf <<END
[storage]
driver = "overlay"
graphroot = "$home/storage"
runroot = "/run/user/$id/storage"
END
cat >/run/user-containers.conf <<END
[containers]
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
[engine]
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
END
# Avoids a repeated warning of podman. Only these mounts are affected.
mount --make-rshared /
cd /var/lib/tree
exec setpriv --reuid="$id" --regid="$id" --clear-groups --inh-caps=-all -- \
  env -i PATH=/usr/local/bin:/usr/bin:/bin:/usr/sbin:/sbin HOME="$home" USER="$name" XDG_RUNTIME_DIR="/run/user/$id" TMPDIR="$home/tmp" \
  CONTAINERS_CONF=/run/user-containers.conf CONTAINERS_STORAGE_CONF=/run/user-storage.conf "$@"
