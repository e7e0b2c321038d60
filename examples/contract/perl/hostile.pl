use IO::Socket::INET;
print "GOT shadow\n" if open(my $shadow, "<", "/etc/shadow");
print "GOT usr\n" if open(my $usr, ">", "/usr/bin/mine");
print "GOT signal\n" if kill "TERM", 1;
print "GOT network\n" if eval { IO::Socket::INET->new(PeerAddr => "1.1.1.1:53", Timeout => 1) };
print "TRIED\n";
