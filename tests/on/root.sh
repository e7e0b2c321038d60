#!/usr/bin/env bash
# Creates the root folder of another release with the given packages. Debian releases are installed from the package
# sources of the host, Ubuntu (noble) from the archive of Ubuntu. Usage:
#   root.sh SUITE[+ARCHITECTURE] FOLDER PACKAGE...
# ARCHITECTURE: an additional architecture, for packages named PACKAGE:ARCHITECTURE. Exit code 69 if the release cannot
# be installed.
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

sources_of() { # prints the package sources of a Debian SUITE
  # shellcheck disable=SC2016  # apt expands the variables
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
    sed "s/ bookworm/ $1/" | sort -u
}
rm -rf "$making"
mkdir -p "$making/tmp"
keyring=/usr/share/keyrings/debian-archive-keyring.gpg
keys_of=$suite
[ "$suite" != noble ] || keys_of=trixie # this release has a package with the keys of Ubuntu
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
# mmdebstrap mounts file systems in the new root. They are visible only in its own mount namespace and end with it.
# shellcheck disable=SC2016  # $1 is an argument of the hook
TMPDIR=$making/tmp unshare --mount mmdebstrap --mode=root --variant=apt --architectures="$architectures" --include="$(IFS=,; echo "$*")" "${options[@]}" \
  --keyring="$keyring" \
  --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash worker' \
  "$suite" "$making/root" - <"$making/sources"
rm -rf "$making/tmp" "$making/keys" "$folder"
mv "$making" "$folder"
