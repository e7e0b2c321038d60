"""A bare worker of beanstalkd: reserve, run, delete. Argument: port.

A job is "kind id", or "kind id left": so many jobs follow it, one after the other; the last one is answered."""
import socket
import sys

from . import jobs


class Beanstalk:
    """As much of the protocol as this needs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def ask(self, line, body=None):
        """The words of the answer's first line."""
        self.socket.sendall(line + b"\r\n" if body is None else b"%s %d\r\n%s\r\n" % (line, len(body), body))
        return self.reader.readline().split()

    def use(self, tube):
        self.ask(b"use " + tube)

    def watch(self, tube):
        self.ask(b"watch " + tube)
        self.ask(b"ignore default")

    def put(self, body):
        """Time to run: 120 s."""
        answer = self.ask(b"put 0 0 120", body)
        if answer[0] != b"INSERTED":
            raise RuntimeError(answer)

    def put_many(self, bodies):
        """As put, without waiting for each answer; thousand at a time, so that neither side's buffer runs full."""
        for first in range(0, len(bodies), 1000):
            some = bodies[first : first + 1000]
            self.socket.sendall(b"".join(b"put 0 0 120 %d\r\n%s\r\n" % (len(body), body) for body in some))
            for _ in some:
                if not self.reader.readline().startswith(b"INSERTED"):
                    raise RuntimeError("beanstalkd refused a job")

    def reserve(self):
        """(number, body), when there is one."""
        answer = self.ask(b"reserve")
        if answer[0] != b"RESERVED":
            raise RuntimeError(answer)
        return answer[1], self.reader.read(int(answer[2]) + 2)[:-2]

    def delete(self, number):
        self.ask(b"delete " + number)

    def stats(self, tube):
        answer = self.ask(b"stats-tube " + tube)
        if answer[0] != b"OK":
            return {}
        text = self.reader.read(int(answer[1]) + 2).decode()
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def work(port):
    client = Beanstalk(port)
    client.watch(b"jobs")
    using = b"default"
    while True:
        number, body = client.reserve()
        kind, ident, *then = body.decode().split()
        jobs.run(kind, int(ident))
        client.delete(number)
        if not then:
            continue
        left = int(then[0])  # remaining jobs of the chain; 0: report the end
        tube = b"jobs" if left else b"replies"
        if tube != using:
            client.use(tube)
            using = tube
        client.put(f"{kind} {int(ident) + 1} {left - 1}".encode() if left else b"done")


if __name__ == "__main__":
    work(int(sys.argv[1]))
