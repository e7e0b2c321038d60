#!/usr/bin/env bash
# Builds the Debian packages of this tree: make.sh FOLDER [NAME=VALUE...]
# FOLDER is deleted first and receives the packages. NAME=VALUE sets a variable of the build; MYCOJOBS_BUILT packs an
# existing build (debian/rules). The tree is copied to FOLDER/mycojobs and built there, so that sources stay unchanged.
set -euo pipefail
cd "$(dirname "$(readlink -f "$0")")/.."
into=$(realpath -m "${1:?folder}")
tree=$into/mycojobs
shift
options=(--build=binary --unsigned-changes --unsigned-buildinfo)
case " $* " in
  *" MYCOJOBS_BUILT="*) options+=(--no-check-builddeps) ;;
esac

rm -rf "$into"
mkdir -p "$tree"
# Copies tracked and unignored files; without git, all files except ./build.
if git rev-parse --git-dir >/dev/null 2>&1; then
  git ls-files -z --cached --others --exclude-standard
else
  find . -path ./build -prune -o -type f -print0
fi | while IFS= read -r -d '' file; do
  [ ! -e "$file" ] || printf '%s\0' "$file"
done | tar --create --null --mtime "@$(dpkg-parsechangelog --show-field Timestamp)" --files-from - | tar --extract --directory "$tree"
if ! (cd "$tree" && env -u MAKEFLAGS -u MAKELEVEL "$@" dpkg-buildpackage "${options[@]}") >"$into/build.log" 2>&1; then
  tail -40 "$into/build.log" >&2
  echo "no packages: the whole log is $into/build.log" >&2
  exit 1
fi
sed -n 's/^debian\/rules:[0-9]*: \(.* is missing: .*\)/\1/p' "$into/build.log" | sort -u >&2
rm -rf "$tree"
