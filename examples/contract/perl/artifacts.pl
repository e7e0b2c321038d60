my $folder = "$ENV{MYCOJOBS_ARTIFACTS}/dir";
mkdir $folder or die $!;
open(my $report, ">", "$folder/report.txt") or die $!;
print $report "a report\n";
