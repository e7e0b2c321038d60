printf "token=%s\n" "$(cat "$MYCOJOBS_SECRETS/token")" > "$MYCOJOBS_RESULT"
env
cat /proc/[0-9]*/environ /proc/[0-9]*/cmdline | tr "\0" "\n"
find /job -type f -print -exec cat {} +
