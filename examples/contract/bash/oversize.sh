printf "big=%0100000d\n" 0 > "$MYCOJOBS_RESULT"
