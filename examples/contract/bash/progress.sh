echo 0.5 half > "$MYCOJOBS_PROGRESS"
