print "x" x 1024 for 1 .. 4096;
