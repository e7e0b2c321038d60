open(my $result, ">>", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "greeting=$ENV{GREETING}\njob=$ENV{MYCOJOBS_JOB_ID}\n";
