#!/usr/bin/env bash
# Makes the root folder of another release, with packages in it: root.sh SUITE FOLDER PACKAGE... Exit 69 if none can be had.
# Debian's comes from the host's own package sources, Ubuntu's from its archive; both are checked by keys that Debian 12 has.
set -euo pipefail
suite=${1:?suite}
folder=${2:?folder}
shift 2
making=$folder.making
give_up() { printf 'on %s: %s\n' "$suite" "$*" >&2; exit 69; }

rm -rf "$making"
mkdir -p "$making/tmp"
case $suite in
  trixie)
    keys=/usr/share/keyrings/debian-archive-keyring.gpg
    [ -f /usr/share/keyrings/debian-archive-$suite-stable.gpg ] ||
      give_up "the host does not know the key of $suite: install debian-archive-keyring 2023.3+deb12u2 or newer"
    # shellcheck disable=SC2016  # apt's
    apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
      sed -E "s/ (bookworm|$suite)/ $suite/" | sort -u >"$making/sources"
    [ -s "$making/sources" ] || give_up "apt knows no Debian source: run apt-get update"
    ;;
  noble)
    keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ -f "$keys" ] || give_up "the host does not know the key of $suite: apt-get install ubuntu-keyring"
    printf 'deb http://archive.ubuntu.com/ubuntu %s main universe\n' "$suite" "$suite-updates" "$suite-security" >"$making/sources"
    ;;
  *) give_up "there is no row for $suite in tests/on/root.sh" ;;
esac

options=(--dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' --aptopt='Apt::Install-Recommends "false"')
# What it mounts in the new root is seen by itself alone, and goes with it.
TMPDIR=$making/tmp unshare --mount mmdebstrap --mode=root --variant=apt --keyring="$keys" \
  --include="$(IFS=,; echo "$*")" "${options[@]}" \
  --customize-hook='chroot "$1" useradd --create-home --shell /bin/bash worker' \
  "$suite" "$making/root" - <"$making/sources"
rm -rf "$making/tmp" "$folder"
mv "$making" "$folder"
