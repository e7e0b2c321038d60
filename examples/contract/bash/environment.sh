printf "greeting=%s\njob=%s\n" "$GREETING" "$MYCOJOBS_JOB_ID" >> "$MYCOJOBS_RESULT"
