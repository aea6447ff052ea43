"""Servers that take what is sent to them, on loopback."""

import json
import socketserver
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@contextmanager
def webhooks(*, status=200, silent=False):
    """A server's address, and the requests it has had: path, headers, JSON. A `silent` one never answers."""
    had, over = [], Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            had.append((self.path, dict(self.headers), json.loads(content)))
            if silent:
                over.wait(30)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}", had
        over.set()


@contextmanager
def metrics():
    """The port of a StatsD server, and the lines that it has had."""
    had = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            had.extend(self.request[0].decode().splitlines())

    with _serving(socketserver.ThreadingUDPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, had


@contextmanager
def mails():
    """A mail server's port, and what it was sent: from, to, text."""
    had = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            said, to = "", []
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().strip():
                match line.split(":")[0].split()[0].upper(), line:
                    case "MAIL", _:
                        said = line
                    case "RCPT", _:
                        to.append(line)
                    case "DATA", _:
                        self.wfile.write(b"354 go on\r\n")
                        text = []
                        while (part := self.rfile.readline()) != b".\r\n":
                            text.append(part.decode())
                        had.append((said, to, "".join(text)))
                    case "QUIT", _:
                        self.wfile.write(b"221 bye\r\n")
                        return
                self.wfile.write(b"250 fine\r\n")

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, had


@contextmanager
def _serving(server):
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
