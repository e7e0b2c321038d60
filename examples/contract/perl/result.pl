open(my $result, ">", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "{\"text\": \"grüße & more\", \"number\": 42, \"list\": [1, \"two\", null]}";
