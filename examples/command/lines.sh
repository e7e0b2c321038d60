# Counts the system's programs that are scripts, by language. Needs [executors.bash] (config.toml).
set -euo pipefail
for program in /usr/bin/*; do
  if [ -f "$program" ] && [ -r "$program" ]; then
    first=$(head -c 60 "$program" | head -n 1 | tr -d '\0')
    if [[ $first == '#!'* ]]; then
      first=${first%% -*}
      echo "${first##*[/ ]}"
    fi
  fi
done | sort | uniq -c | sort -rn > "$MYCOJOBS_ARTIFACTS/languages.txt"
echo "languages=$(wc -l < "$MYCOJOBS_ARTIFACTS/languages.txt")" >> "$MYCOJOBS_RESULT"
head -5 "$MYCOJOBS_ARTIFACTS/languages.txt"
