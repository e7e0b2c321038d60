#!/usr/bin/env bash
# Makes the root folder of another release, with packages in it: of Debian from the host's own package sources, of Ubuntu
# (noble) from Ubuntu's archive:
# root.sh SUITE[+ARCHITECTURE] FOLDER PACKAGE... ARCHITECTURE: another one beside the host's, for packages named
# PACKAGE:ARCHITECTURE. Exit 69 if none can be had.
set -euo pipefail
suite=${1:?suite}
architectures=$(dpkg --print-architecture)
case $suite in
  *+*)
    architectures+=,${suite#*+}
    suite=${suite%%+*}
    ;;
esac
folder=${2:?folder}
shift 2
making=$folder.making
give_up() { printf 'on %s: %s\n' "$suite" "$*" >&2; exit 69; }

sources_of() { # SUITE of Debian
  # shellcheck disable=SC2016  # apt's
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
    sed "s/ bookworm/ $1/" | sort -u
}
rm -rf "$making"
mkdir -p "$making/tmp"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
keys_of=$suite
[ "$suite" != noble ] || keys_of=trixie # which has Ubuntu's keys as a package
[ -f "/usr/share/keyrings/debian-archive-$keys_of-stable.gpg" ] ||
  give_up "the host does not know the keys of $keys_of: upgrade debian-archive-keyring"
sources_of "$keys_of" >"$making/sources"
[ -s "$making/sources" ] || give_up "apt knows no Debian source: run apt-get update"
if [ "$suite" = noble ]; then
  TMPDIR=$making/tmp mmdebstrap --mode=root --variant=extract --include=ubuntu-keyring --keyring=$keyring trixie "$making/keys" - <"$making/sources"
  keyring=$making/keys/usr/share/keyrings/ubuntu-archive-keyring.gpg
  for each in noble noble-updates noble-security; do
    echo "deb http://archive.ubuntu.com/ubuntu $each main universe"
  done >"$making/sources"
fi

options=(--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' --aptopt='Apt::Install-Recommends "false"')
# What it mounts in the new root is seen by itself alone, and goes with it.
# shellcheck disable=SC2016  # $1 is the hook's
TMPDIR=$making/tmp unshare --mount mmdebstrap --mode=root --variant=apt --architectures="$architectures" --include="$(IFS=,; echo "$*")" "${options[@]}" \
  --keyring="$keyring" \
  --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash worker' \
  "$suite" "$making/root" - <"$making/sources"
rm -rf "$making/tmp" "$making/keys" "$folder"
mv "$making" "$folder"
