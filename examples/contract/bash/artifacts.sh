mkdir "$MYCOJOBS_ARTIFACTS/dir"
echo "a report" > "$MYCOJOBS_ARTIFACTS/dir/report.txt"
