# Fails, and the job's error names line 3.
BEGIN {
  print "no end of this text
}
