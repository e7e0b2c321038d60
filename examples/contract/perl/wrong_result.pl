open(my $result, ">", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "{\"not\": closed";
