open(my $progress, ">", $ENV{MYCOJOBS_PROGRESS}) or die $!;
print $progress "0.5 half\n";
