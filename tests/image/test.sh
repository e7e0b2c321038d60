#!/usr/bin/env bash
# Builds docker/Dockerfile with podman and without a registry, and tries the image: test.sh [ROW...]. All files are
# below build/image: the image and the compiler's cache stay there for the next time. Exit 1 if a row failed.
set -euo pipefail
here=$(dirname "$(readlink -f "$0")")
cd "$here/../.."
work=build/image

say() { printf 'image: %s\n' "$*" >&2; }
give_up() { say "$2"; exit "$1"; }

[ "$(id -u)" -eq 0 ] || give_up 69 "mounts and networks of its own can only be made by root: run ./dev test-image as root"
for program in mmdebstrap podman crun podman-compose; do
  command -v "$program" >/dev/null || give_up 69 "$program is missing: ./dev test-image installs it"
done
mkdir -p "$work"
exec 9>"$work/lock"
flock -n 9 || give_up 75 "another ./dev test-image is at work in this folder"
podman() { "$here/private.sh" "$work" podman "$@" 9>&-; }

# debian:bookworm-slim, from the host's own package sources.
if ! podman image exists docker.io/library/debian:bookworm-slim; then
  say "making debian:bookworm-slim (half a minute; kept for the next time)"
  # shellcheck disable=SC2016
  apt-get indextargets --format 'deb $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Identifier: Packages' 'Origin: Debian' |
    sort -u >"$work/sources"
  [ -s "$work/sources" ] || give_up 69 "apt knows no Debian source: run apt-get update"
  TMPDIR=$PWD/$work mmdebstrap --mode=root --variant=minbase --aptopt='Apt::Install-Recommends "false"' \
    --dpkgopt=force-unsafe-io --dpkgopt='path-exclude=/usr/share/'{man,doc,locale}'/*' bookworm "$work/base.tar" - \
    <"$work/sources" >"$work/base.log" 2>&1 || { tail -20 "$work/base.log" >&2; give_up 69 "no base: see $work/base.log"; }
  podman import -q "$work/base.tar" docker.io/library/debian:bookworm-slim >"$work/base.log" 2>&1
  rm "$work/base.tar"
fi
build() { # NAME DOCKERFILE FOLDER
  podman build --pull=never --network=host --format docker --layers -t "$1" -f "$2" "$3" >"$work/build.log" 2>&1 ||
    { tail -30 "$work/build.log" >&2; give_up 1 "$2 does not build: see $work/build.log"; }
}
say "building docker/Dockerfile (a few minutes the first time)"
build localhost/mycojobs docker/Dockerfile .
build docker.io/library/redis:7 tests/image/redis.Dockerfile tests/image
podman image prune -f >"$work/build.log" 2>&1

# Networks, processes and mounts of the rows are their own: they go with them.
say "the rows"
before=$SECONDS
"$here/private.sh" "$work" unshare --net --pid --fork --mount-proc --kill-child "$here/rows.py" "$@" 9>&- | tee "$work/rows.log"
# Groups of cgroup version 1 that have nothing in them any more.
find /sys/fs/cgroup -depth -type d -path '*/libpod_parent*' -exec rmdir {} + 2>/dev/null || true
passed=$(grep -c '^ok ' "$work/rows.log" || true)
failed=$(grep -c '^FAILED ' "$work/rows.log" || true)
grep -q '^end of rows' "$work/rows.log" || give_up 1 "the rows did not come to their end"
printf 'image: %s rows held, %s failed (%s s; %s s with the build)\n' "$passed" "$failed" "$((SECONDS - before))" "$SECONDS"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
