#!/usr/bin/env bash
# Makes a Debian 12 machine's disk from the host's own package sources: image.sh FOLDER PACKAGE...
# Writes FOLDER/root.img, FOLDER/vmlinuz, FOLDER/initrd. The product is not in it (machine.sh brings that on a second disk).
# REPOSITORY='PACKAGE ...': they lie with all that they need in /srv/repository of the machine, for apt, and are not installed.
set -euo pipefail
folder=${1:?folder}
shift
packages=$(IFS=,; echo "$*")
making=$folder.making
rm -rf "$making"
mkdir -p "$making/tmp"

# What a virtual machine never reads is left out: it would cost half of the time.
leave_out=(/usr/share/{man,doc,locale,info,lintian}/'*' '/lib/modules/*/kernel/'{sound,drivers,net}/'*')
keep=('/lib/modules/*/kernel/drivers/'{virtio,block/virtio_blk.ko,block/loop.ko}'*')
options=(--dpkgopt=force-unsafe-io --aptopt='Apt::Install-Recommends "false"')
for path in "${leave_out[@]}"; do options+=(--dpkgopt="path-exclude=$path"); done
for path in "${keep[@]}"; do options+=(--dpkgopt="path-include=$path"); done

# shellcheck disable=SC2016  # $1 is the hook's
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' | sort -u >"$making/sources"
[ -s "$making/sources" ] || { echo "image.sh: apt knows no Debian source: run apt-get update" >&2; exit 69; }
here=$(dirname "$(readlink -f "$0")")
repository=()
if [ -n "${REPOSITORY:-}" ]; then
  # shellcheck disable=SC2016
  repository=(--customize-hook='mkdir -p "$1/srv/repository/partial"
    APT_CONFIG=$MMDEBSTRAP_APT_CONFIG apt-get --yes --download-only -o Dir::Cache::Archives="$1/srv/repository" install $REPOSITORY
    cd "$1/srv/repository" && rm -rf partial lock && dpkg-scanpackages --multiversion . >Packages')
fi
# shellcheck disable=SC2016
TMPDIR=$making/tmp mmdebstrap --mode=root --variant=essential --include="$packages" "${options[@]}" \
  --essential-hook="cp -r --no-preserve=ownership '$here/root/.' \"\$1\"" \
  "${repository[@]}" \
  --customize-hook='mkdir -p "$1/payload" "$1/var/lib/systemd/linger"' \
  --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash worker && touch "$1/var/lib/systemd/linger/worker"' \
  --customize-hook='systemctl --root "$1" enable rows.service' \
  --customize-hook='systemctl --root "$1" mask getty@tty1.service serial-getty@ttyS0.service apt-daily.timer apt-daily-upgrade.timer dpkg-db-backup.timer e2scrub_all.timer e2scrub_reap.service fstrim.timer systemd-timesyncd.service' \
  bookworm "$making/root" - <"$making/sources"

mv "$making"/root/boot/vmlinuz-* "$making/vmlinuz"
mv "$making"/root/boot/initrd.img-* "$making/initrd"
mke2fs -q -t ext4 -O ^has_journal -E lazy_itable_init=1 -d "$making/root" "$making/root.img" 1500M
rm -rf "$making/root" "$making/tmp"
rm -rf "$folder"
mv "$making" "$folder"
