"""A minimal worker of beanstalkd, which reserves, runs and deletes jobs in a loop. Argument: the port of beanstalkd.

The body of a job is "<kind> <id>", or "<kind> <id> <remaining>" for a chain. After a job of a chain, the worker submits the
next job. After the last job, with 0 remaining, the worker sends a reply."""
import socket
import sys

from . import jobs


class Beanstalk:
    """A client with the commands of the protocol that the bench needs."""

    def __init__(self, port):
        self.socket = socket.create_connection(("127.0.0.1", port))
        self.socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.reader = self.socket.makefile("rb")

    def request(self, line, body=None):
        """Sends a command, and returns the words of the first line of the answer."""
        self.socket.sendall(line + b"\r\n" if body is None else b"%s %d\r\n%s\r\n" % (line, len(body), body))
        return self.reader.readline().split()

    def use(self, tube):
        self.request(b"use " + tube)

    def watch(self, tube):
        self.request(b"watch " + tube)
        self.request(b"ignore default")

    def put(self, body):
        """Submits a job with a time limit of 120 s."""
        answer = self.request(b"put 0 0 120", body)
        if answer[0] != b"INSERTED":
            raise RuntimeError(answer)

    def put_many(self, bodies):
        """Submits jobs in batches. A batch has at most 1,000 jobs, so that its commands and answers fit into the socket
        buffers."""
        for first in range(0, len(bodies), 1000):
            batch = bodies[first : first + 1000]
            self.socket.sendall(b"".join(b"put 0 0 120 %d\r\n%s\r\n" % (len(body), body) for body in batch))
            for _ in batch:
                if not self.reader.readline().startswith(b"INSERTED"):
                    raise RuntimeError("beanstalkd refused a job")

    def reserve(self):
        """Waits for a job, and returns (number, body)."""
        answer = self.request(b"reserve")
        if answer[0] != b"RESERVED":
            raise RuntimeError(answer)
        return answer[1], self.reader.read(int(answer[2]) + 2)[:-2]

    def delete(self, number):
        self.request(b"delete " + number)

    def read_stats(self, tube):
        """Returns the statistics of a tube, or {} if the tube does not exist."""
        answer = self.request(b"stats-tube " + tube)
        if answer[0] != b"OK":
            return {}
        text = self.reader.read(int(answer[1]) + 2).decode()
        return dict(line.split(": ", 1) for line in text.splitlines() if ": " in line)


def run_worker(port):
    client = Beanstalk(port)
    client.watch(b"jobs")
    used_tube = b"default"
    while True:
        number, body = client.reserve()
        kind, ident, *chain = body.decode().split()
        jobs.run_job(kind, int(ident))
        client.delete(number)
        if not chain:
            continue
        remaining = int(chain[0])
        tube = b"jobs" if remaining else b"replies"
        if tube != used_tube:
            client.use(tube)
            used_tube = tube
        client.put(f"{kind} {int(ident) + 1} {remaining - 1}".encode() if remaining else b"done")


if __name__ == "__main__":
    run_worker(int(sys.argv[1]))
