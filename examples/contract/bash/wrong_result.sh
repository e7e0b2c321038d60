echo "no equals sign" > "$MYCOJOBS_RESULT"
