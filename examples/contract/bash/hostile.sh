cat /etc/shadow 2>/dev/null && echo GOT shadow
touch /usr/bin/mine 2>/dev/null && echo GOT usr
kill -TERM 1 2>/dev/null && echo GOT signal
(exec 3<>/dev/tcp/1.1.1.1/53) 2>/dev/null && echo GOT network
echo TRIED
