import os
import socket


def attempt(what, deed):
    try:
        deed()
        print("GOT", what)
    except OSError as error:
        print(what, error)


attempt("shadow", lambda: open("/etc/shadow").read())
attempt("usr", lambda: open("/usr/bin/mine", "w"))
attempt("signal", lambda: os.kill(1, 15))
attempt("network", lambda: socket.create_connection(("1.1.1.1", 53), 1))
print("TRIED")
