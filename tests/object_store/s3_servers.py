"""Run object stores for tests: a small S3 server, with or without conditional puts, and versitygw.

Each is another process, because delta-rs holds Python's global lock while it waits for a response.
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
from tests.processes import find_free_ports, wait_for

BUCKET = "lake"
KEYS = {"AWS_ACCESS_KEY_ID": "tidemark", "AWS_SECRET_ACCESS_KEY": "only-for-tests", "AWS_REGION": "us-east-1"}


def create_variables(address):
    """Create the environment variables by which delta-rs and the session access a store."""
    return KEYS | {"AWS_ENDPOINT_URL": address, "AWS_ALLOW_HTTP": "true"}


class _Objects(BaseHTTPRequestHandler):
    """The part of S3 that delta-rs uses, without authentication."""

    protocol_version = "HTTP/1.1"
    wbufsize = -1  # send a response as a single packet: a second packet would wait

    @property
    def _key(self):
        return unquote(urlsplit(self.path).path).removeprefix(f"/{BUCKET}/")

    @property
    def _query(self):
        query = parse_qs(urlsplit(self.path).query, keep_blank_values=True)
        return {name: values[0] for name, values in query.items()}

    def _respond(self, code, content=b"", **headers):
        self.send_response(code)
        for name, value in {"Content-Length": len(content), **headers}.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(content)

    def do_PUT(self):
        content = self.rfile.read(int(self.headers["Content-Length"]))
        if "uploadId" in self._query:
            self.server.parts.append(content)  # there is a single writer, whose parts are in order
            self._respond(200, ETag='"part"')
            return
        with self.server.lock:
            if self.server.conditional and self.headers.get("If-None-Match") and self._key in self.server.objects:
                self._respond(412)
                return
            self.server.objects[self._key] = content
        self._respond(200, ETag=f'"{hash(content)}"')

    def do_GET(self):
        if "list-type" in self._query:
            self._list(self._query)
        elif (content := self.server.objects.get(self._key)) is None:
            self._respond(404)
        else:
            first, last = 0, len(content) - 1
            if byte_range := self.headers.get("Range"):
                start, _, end = byte_range.removeprefix("bytes=").partition("-")
                first, last = (int(start), min(last, int(end or last))) if start else (len(content) - int(end), last)
            headers = {"ETag": f'"{hash(content)}"', "Last_Modified": formatdate(usegmt=True)}
            headers |= {"Content_Range": f"bytes {first}-{last}/{len(content)}"} if byte_range else {}
            self._respond(206 if byte_range else 200, content[first : last + 1], **headers)

    do_HEAD = do_GET  # noqa: N815 - the base class calls this name

    def do_DELETE(self):
        self.server.objects.pop(self._key, None)
        self._respond(204)

    def do_POST(self):
        """Delete several objects, or begin or complete an upload in parts."""
        if "uploads" in self._query:
            self.server.parts.clear()
            self._respond(200, b"<InitiateMultipartUploadResult><UploadId>1</UploadId></InitiateMultipartUploadResult>")
            return
        text = self.rfile.read(int(self.headers["Content-Length"])).decode()
        if "uploadId" in self._query:
            self.server.objects[self._key] = b"".join(self.server.parts)
            self._respond(200, b'<CompleteMultipartUploadResult><ETag>"1"</ETag></CompleteMultipartUploadResult>')
            return
        keys = [part.partition("</Key>")[0] for part in text.split("<Key>")[1:]]
        for key in keys:
            self.server.objects.pop(unescape(key), None)
        deleted = "".join(f"<Deleted><Key>{key}</Key></Deleted>" for key in keys)
        self._respond(200, f"<DeleteResult>{deleted}</DeleteResult>".encode())

    def _list(self, query):
        """Respond with objects and folders under a prefix."""
        prefix, after, delimiter = query.get("prefix", ""), query.get("start-after", ""), query.get("delimiter")
        contents, folders = [], {}
        for key, content in sorted(self.server.objects.items()):
            if not key.startswith(prefix) or key <= after:
                continue
            if delimiter and delimiter in key[len(prefix) :]:
                folders[prefix + key[len(prefix) :].partition(delimiter)[0] + delimiter] = None
                continue
            contents.append(
                f"<Contents><Key>{escape(key)}</Key><Size>{len(content)}</Size>"
                f"<LastModified>2024-01-01T00:00:00.000Z</LastModified><ETag>{hash(content)}</ETag></Contents>"
            )
        prefixes = (f"<CommonPrefixes><Prefix>{escape(folder)}</Prefix></CommonPrefixes>" for folder in folders)
        listing = f"<IsTruncated>false</IsTruncated>{''.join(contents)}{''.join(prefixes)}"
        self._respond(200, f"<ListBucketResult>{listing}</ListBucketResult>".encode())

    def log_message(self, *_):
        """Log nothing."""


@contextmanager
def run_small_store(*, conditional):
    """Run the small store with or without conditional puts; yield its address."""
    command = [sys.executable, "-m", "tests.object_store.s3_servers", "conditional" if conditional else "overwriting"]
    with subprocess.Popen(command, cwd=PROJECT, stdout=subprocess.PIPE, text=True) as server:
        try:
            yield server.stdout.readline().strip()
        finally:
            server.terminate()


def serve(mode):
    """Print the address and serve forever; mode `conditional` supports conditional puts."""
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Objects)
    server.objects, server.parts, server.lock, server.conditional = {}, [], Lock(), mode == "conditional"
    sys.stdout.write(f"http://127.0.0.1:{server.server_port}\n")
    sys.stdout.flush()
    server.serve_forever()


def find_versitygw():
    """Find the program of versitygw, None if `make s3` has not installed it."""
    program = shutil.which("versitygw", path=f"{PROJECT / '.cache/s3'}:{os.environ['PATH']}")
    return Path(program) if program else None


@contextmanager
def run_versitygw(folder):
    """Run versitygw over a folder; yield its address."""
    (folder / BUCKET).mkdir(parents=True)
    (port,) = find_free_ports(1)
    keys = {"ROOT_ACCESS_KEY": KEYS["AWS_ACCESS_KEY_ID"], "ROOT_SECRET_KEY": KEYS["AWS_SECRET_ACCESS_KEY"]}
    command = [find_versitygw(), "--port", f"127.0.0.1:{port}", "posix", folder]
    with (folder.parent / "versitygw.log").open("w") as log:
        server = subprocess.Popen(command, env=os.environ | keys, stdout=log, stderr=log)
    try:
        wait_for(lambda: b"version" in read_log(folder).lower(), 30, "versitygw did not start", every=0.1)
        yield f"http://127.0.0.1:{port}"
    finally:
        server.terminate()
        server.wait(timeout=30)


def read_log(folder):
    """Read the log of versitygw."""
    return (folder.parent / "versitygw.log").read_bytes()


if __name__ == "__main__":
    serve(sys.argv[1])
