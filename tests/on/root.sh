#!/usr/bin/env bash
# Makes the root folder of another release of Debian from the host's own package sources, with packages in it:
# root.sh SUITE FOLDER PACKAGE... Exit 69 if none can be had.
set -euo pipefail
suite=${1:?suite}
folder=${2:?folder}
shift 2
making=$folder.making
give_up() { printf 'on %s: %s\n' "$suite" "$*" >&2; exit 69; }

[ -f "/usr/share/keyrings/debian-archive-$suite-stable.gpg" ] ||
  give_up "the host does not know the keys of $suite: upgrade debian-archive-keyring"
rm -rf "$making"
mkdir -p "$making/tmp"
# shellcheck disable=SC2016  # apt's
apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
  sed "s/ bookworm/ $suite/" | sort -u >"$making/sources"
[ -s "$making/sources" ] || give_up "apt knows no Debian source: run apt-get update"

options=(--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' --aptopt='Apt::Install-Recommends "false"')
# What it mounts in the new root is seen by itself alone, and goes with it.
# shellcheck disable=SC2016  # $1 is the hook's
TMPDIR=$making/tmp unshare --mount mmdebstrap --mode=root --variant=apt --include="$(IFS=,; echo "$*")" "${options[@]}" \
  --keyring=/usr/share/keyrings/debian-archive-keyring.gpg \
  --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash worker' \
  "$suite" "$making/root" - <"$making/sources"
rm -rf "$making/tmp" "$folder"
mv "$making" "$folder"
