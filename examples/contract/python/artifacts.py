import mycojobs

(mycojobs.artifacts / "dir").mkdir()
(mycojobs.artifacts / "dir" / "report.txt").write_text("a report\n")
