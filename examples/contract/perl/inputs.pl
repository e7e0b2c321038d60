use JSON::PP;
local $/;
open(my $inputs, "<", $ENV{MYCOJOBS_INPUTS}) or die $!;
open(my $result, ">", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "size=", decode_json(<$inputs>)->{build}{size}, "\n";
