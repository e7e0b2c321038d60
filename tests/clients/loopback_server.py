"""A server on the loopback interface, whose answers are those of a test."""
import socket
import threading


class LoopbackServer:
    """Subclasses define serve(), which a thread calls for each connection with its socket and a file of its input."""

    def __init__(self):
        self._listening = socket.create_server(("127.0.0.1", 0), backlog=256)
        self.url = f"http://127.0.0.1:{self._listening.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self):
        while True:
            try:
                client, _ = self._listening.accept()
            except OSError:
                return
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client):
        with client, client.makefile("rb") as lines:
            try:
                self.serve(client, lines)
            except OSError:
                pass  # the client has closed the connection

    def close(self):
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


def read_head(lines):
    """Returns the headers of a request by their names in lower case."""
    head = {}
    while (line := lines.readline()).strip():
        name, _, value = line.decode().partition(":")
        head[name.lower()] = value.strip()
    return head
