head -c 4194304 /dev/zero | tr "\0" x
