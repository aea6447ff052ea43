"""Servers on loopback that record what they receive."""

import json
import socketserver
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Event, Thread


@contextmanager
def webhooks(*, status=200, silent=False):
    """Start an HTTP server.

    Args:
        status: HTTP status of every response.
        silent: True to respond to no request.

    Yields:
        The server's address, and its requests so far: path, headers, JSON content.
    """
    requests, is_over = [], Event()

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            content = self.rfile.read(int(self.headers["Content-Length"]))
            requests.append((self.path, dict(self.headers), json.loads(content)))
            if silent:
                is_over.wait(30)
            self.send_response(status)
            self.end_headers()

        def log_message(self, *_):
            pass

    with _serving(ThreadingHTTPServer(("127.0.0.1", 0), Handler)) as port:
        yield f"http://127.0.0.1:{port}", requests
        is_over.set()


@contextmanager
def metrics():
    """Start a StatsD server; yield its port and the lines received so far."""
    lines = []

    class Handler(socketserver.BaseRequestHandler):
        def handle(self):
            lines.extend(self.request[0].decode().splitlines())

    with _serving(socketserver.ThreadingUDPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, lines


@contextmanager
def mails():
    """Start a mail server; yield its port and the mails received so far: sender, recipients, text."""
    received = []

    class Handler(socketserver.StreamRequestHandler):
        def handle(self):
            sender, recipients = "", []
            self.wfile.write(b"220 here\r\n")
            while line := self.rfile.readline().decode().strip():
                match line.split(":")[0].split()[0].upper(), line:
                    case "MAIL", _:
                        sender = line
                    case "RCPT", _:
                        recipients.append(line)
                    case "DATA", _:
                        self.wfile.write(b"354 go on\r\n")
                        text = []
                        while (part := self.rfile.readline()) != b".\r\n":
                            text.append(part.decode())
                        received.append((sender, recipients, "".join(text)))
                    case "QUIT", _:
                        self.wfile.write(b"221 bye\r\n")
                        return
                self.wfile.write(b"250 fine\r\n")

    with _serving(socketserver.ThreadingTCPServer(("127.0.0.1", 0), Handler)) as port:
        yield port, received


@contextmanager
def _serving(server):
    """Run a server in a thread; yield its port."""
    server.daemon_threads = True
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1]
    finally:
        server.shutdown()
        server.server_close()
