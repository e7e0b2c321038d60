$| = 1; print "ready\n"; sleep 3600;
