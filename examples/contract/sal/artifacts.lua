mycojobs.artifact("dir/report.txt", "a report\n")
