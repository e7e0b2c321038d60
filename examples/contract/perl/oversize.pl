open(my $result, ">", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "big=", "x" x 100_000, "\n";
