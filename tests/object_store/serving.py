"""Object stores for tests: a small one, which can be without conditional puts, and versitygw.

Each is a process: delta-rs holds Python's lock while it waits for an answer.
"""

import os
import shutil
import subprocess
import sys
from contextlib import contextmanager
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Lock
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape, unescape

from tests.conftest import PROJECT
from tests.processes import free_ports, until

BUCKET = "lake"
KEYS = {"AWS_ACCESS_KEY_ID": "tidemark", "AWS_SECRET_ACCESS_KEY": "only-for-tests", "AWS_REGION": "us-east-1"}


def variables(address):
    """What delta-rs and the session take a store's address from."""
    return KEYS | {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}


class _Objects(BaseHTTPRequestHandler):
    """As much of S3 as delta-rs asks for; nobody is asked who they are."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # an answer is a packet, not two of which the second waits

    @property
    def _key(self):
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    @property
    def _asked(self):
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in query.items()}

    def _answer(self, code, content=b"", **headers):
        self.send_response(code)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "uploadId" in self._asked:
            self.server.parts.append(content)  # one writer at a time, and its parts in order
            self._answer(200, ETag='"part"')
            return
        with self.server.lock:
            if self.server.conditional and self.headers.get("If-None-Match") and self._key in self.server.objects:
                self._answer(412)
                return
            self.server.objects[self._key] = content
        self._answer(200, ETag=f'"{hash(content)}"')

    def do_GET(self):
        if "list-type" in self._asked:
            self._list(self._asked)
        elif (content := self.server.objects.get(self._key)) is None:
            self._answer(404)
        else:
            first, last = 0, len(content) - 1
            if given := self.headers.get("Range"):
                start, _, end = given.removeprefix("bytes=").partition("-")
                first, last = (int(start), min(last, int(end or last))) if start else (len(content) - int(end), last)
            told = {"ETag": f'"{hash(content)}"', "Last_Modified": formatdate(usegmt=True)}
            told |= {"Content_Range": f"bytes {first}-{last}/{len(content)}"} if given else {}
            self._answer(206 if given else 200, content[first : last + 1], **told)

    do_HEAD = do_GET  # noqa: N815 - the server calls it so

    def do_DELETE(self):
        self.server.objects.pop(self._key, None)
        self._answer(204)

    def do_POST(self):
        """Remove several, or write in parts."""
        if "uploads" in self._asked:
            self.server.parts.clear()
            self._answer(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
            return
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "uploadId" in self._asked:
            self.server.objects[self._key] = b"".join(self.server.parts)
            self._answer(200, b'<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
            return
        keys = [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
        for key in keys:
            self.server.objects.pop(unescape(key), None)
        told = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._answer(200, f"<DeleteResult>{told}</DeleteResult>".encode())

    def _list(self, asked):
        prefix, after, until_ = asked.get("prefix", ""), asked.get("start-after", ""), asked.get("delimiter")
        contents, folders = [], {}
        for key, content in sorted(self.server.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            if until_ and until_ in key[len(prefix) :]:
                folders[prefix + key[len(prefix) :].partition(until_)[0] + until_] = None
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>{hash(content)}</ETag></Contents>"
            )
        named = (f"<CommonPrefixes><Prefix>{escape(one)}</Prefix></CommonPrefixes>" for one in folders)
        listed = f"<IsTruncated>false</IsTruncated>{''.join(contents)}{''.join(named)}"
        self._answer(200, f"<ListBucketResult>{listed}</ListBucketResult>".encode())

    def log_message(self, *_):
        """Nobody reads it."""


@contextmanager
def small_store(*, conditional):
    """The small store; its address."""
    command = [sys.executable, "-m", "tests.object_store.serving", "conditional" if conditional else "overwriting"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def serve(kind):
    """Serve until ended, and print the address."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Objects)
    server.objects, server.parts, server.lock, server.conditional = {}, [], Lock(), kind == "conditional"
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def versity():
    """The program of versitygw, None where `make s3` has not installed it."""
    found = shutil.which("versitygw", path=f"{PROJECT / '.cache/s3'}:{os.environ['PATH']}")
    return Path(found) if found else None


@contextmanager
def real_store(folder):
    """versitygw over a folder; its address."""
    (folder / BUCKET).mkdir(parents=True)
    (port,) = free_ports(1)
    keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    command = [versity(), "--port", f"127.0.0.1:{port}", "posix", folder]
    with (folder.parent / "versitygw.log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | keys, stdout=log, stderr=log)
    try:
        until(lambda: b"version" in log_of(folder).lower(), 30, "versitygw did not start", every=0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def log_of(folder):
    """What versitygw has said."""
    return (folder.parent / "versitygw.log").read_bytes()


if __name__ == "__main__":
    serve(sys.argv[1])
