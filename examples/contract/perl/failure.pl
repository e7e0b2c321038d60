die "it broke\n";
