print "line $_\n" for 1 .. 200;
