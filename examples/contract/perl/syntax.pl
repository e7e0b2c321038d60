my $x = (1;
