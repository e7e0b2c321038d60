# Counts requests by their status in a log. Needs [executors.perl] (config.toml).
use strict;
use warnings;

my %count;
while (my $line = <DATA>) {
    $count{$1}++ if $line =~ /" (\d{3}) /;
}
open(my $result, '>>', $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "status_$_=$count{$_}\n" for sort keys %count;
print join(', ', map { "$_: $count{$_}" } sort keys %count), "\n";

__DATA__
192.0.2.1 "GET / HTTP/1.1" 200 512
192.0.2.7 "GET /a HTTP/1.1" 404 12
192.0.2.1 "GET /b HTTP/1.1" 200 99
