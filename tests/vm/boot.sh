#!/usr/bin/env bash
# Boots a disk of image.sh with a second disk that contains rows.py, and prints its rows: boot.sh WORK IMAGE PAYLOAD
# SECONDS. Writes console.log and rows.log to WORK. Exit code 1: a row failed, or the machine was not finished after
# SECONDS.
set -euo pipefail
work=${1:?folder} image=${2:?folder} payload=${3:?file} limit_s=${4:?seconds}

say() { printf 'vm: %s\n' "$*" >&2; }
give_up() { say "$2"; exit "$1"; }

# no_timer_check: on a busy host, the emulated timer may miss the kernel's own test, and the kernel would panic.
say "booting (software emulation); console: $work/console.log"
: >"$work/console.log"
: >"$work/rows.log"
TMPDIR=$(readlink -f "$work") qemu-system-x86_64 -machine q35,accel=tcg -cpu max -smp 2 -m 1536 -nographic -nodefaults -no-reboot -snapshot \
  -kernel "$image/vmlinuz" -initrd "$image/initrd" \
  -append "root=/dev/vda rw console=ttyS0 panic=-1 quiet systemd.show_status=false systemd.unified_cgroup_hierarchy=1 mitigations=off no_timer_check" \
  -drive "file=$image/root.img,if=virtio,format=raw,cache=unsafe" -drive "file=$payload,if=virtio,format=raw,cache=unsafe" \
  -serial "file:$work/console.log" -serial "file:$work/rows.log" </dev/null >"$work/qemu.log" 2>&1 9>&- &
machine=$!
trap 'kill "$machine" 2>/dev/null || true' EXIT
tail -n +1 -s 0.2 -f "$work/rows.log" --pid "$machine" 9>&- &
until ! kill -0 "$machine" 2>/dev/null || [ $SECONDS -ge "$limit_s" ]; do sleep 0.5; done
if kill -0 "$machine" 2>/dev/null; then
  kill "$machine"
  late="it was still running after $limit_s s"
fi
wait "$machine" || true
wait
[ ! -s "$work/qemu.log" ] || cat "$work/qemu.log" >&2

passed=$(grep -c '^ok ' "$work/rows.log" || true)
failed=$(grep -c '^FAILED ' "$work/rows.log" || true)
if ! grep -q '^end of rows' "$work/rows.log"; then
  tail -30 "$work/console.log" >&2
  give_up 1 "the machine did not come to the end of its rows${late:+: $late}; see $work/console.log and $work/rows.log"
fi
printf 'machine with systemd and cgroup v2: %s rows held, %s failed (%s s)\n' "$passed" "$failed" "$SECONDS"
[ "$failed" -eq 0 ] && [ "$passed" -gt 0 ]
