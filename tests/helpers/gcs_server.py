"""A double of Google Cloud Storage: the part of its XML API that the store uses, as documented, and no more.

It refuses what the documentation does not name: other parameters, conditions of other protocols, requests
without a token. An ETag is the MD5 of the content, so equal contents have the same one; generations differ.

Source: https://cloud.google.com/storage/docs/xml-api/reference-headers, put-object, get-object,
delete-object, get-bucket-list.

python -P tests/helpers/gcs_server.py -p 5000
"""

import argparse
import hashlib
import re
import threading
from datetime import UTC, datetime
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import count
from typing import NamedTuple
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

TOKEN = "tests-token"
_LIST = {"list-type", "prefix", "delimiter", "start-after", "continuation-token", "max-keys", "encoding-type"}
_MOST_KEYS = 1000
_FOREIGN = ("x-amz-", "x-ms-")


class Stored(NamedTuple):
    """An object."""

    content: bytes
    generation: int
    metadata: dict[str, str]
    kind: str
    moment: datetime

    @property
    def e_tag(self):
        return f'"{hashlib.md5(self.content).hexdigest()}"'


class RefusedError(Exception):
    def __init__(self, status, code):
        super().__init__(code)
        self.status, self.code = status, code


class Buckets:
    """The objects of all buckets, by name and key."""

    def __init__(self):
        self.buckets = {}
        self.lock = threading.Lock()
        self.generations = count(1_700_000_000_000_000)

    def put(self, bucket, key, content, headers):
        objects = self._of(bucket)
        known = objects.get(key)
        condition = headers.get("x-goog-if-generation-match")
        if condition is not None and int(condition) != (known.generation if known else 0):
            raise RefusedError(412, "PreconditionFailed")
        prefix = "x-goog-meta-"
        metadata = {name: value for name, value in headers.items() if name.startswith(prefix)}
        kind = headers.get("content-type", "application/octet-stream")
        stored = Stored(content, next(self.generations), metadata, kind, datetime.now(UTC))
        objects[key] = stored
        return stored

    def get(self, bucket, key):
        found = self._of(bucket).get(key)
        if found is None:
            raise RefusedError(404, "NoSuchKey")
        return found

    def delete(self, bucket, key):
        self.get(bucket, key)
        del self.buckets[bucket][key]

    def listed(self, bucket, given):
        """The keys and the common prefixes of a page, and whether there are more."""
        prefix, delimiter = given.get("prefix", ""), given.get("delimiter", "")
        after = given.get("continuation-token") or given.get("start-after", "")
        keys, prefixes, last = [], [], ""
        for key in sorted(self._of(bucket)):
            if not key.startswith(prefix) or key <= after or (delimiter and last and key.startswith(last)):
                continue
            if len(keys) + len(prefixes) == min(int(given.get("max-keys", _MOST_KEYS)), _MOST_KEYS):
                return keys, prefixes, True
            rest = key[len(prefix) :]
            if delimiter and delimiter in rest:
                last = prefix + rest.partition(delimiter)[0] + delimiter
                if last <= after:
                    continue
                prefixes.append(last)
            else:
                keys.append(key)
        return keys, prefixes, False

    def _of(self, bucket):
        if bucket not in self.buckets:
            raise RefusedError(404, "NoSuchBucket")
        return self.buckets[bucket]


def handler_of(buckets):
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"
        wbufsize = -1  # a body that is sent after its headers waits until the client has acknowledged these

        def handle_any(self):
            content = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            url = urlsplit(self.path)
            _, bucket, *rest = unquote(url.path).split("/", 2)
            key = rest[0] if rest else ""
            given = dict(parse_qsl(url.query, keep_blank_values=True))
            headers = {name.lower(): value for name, value in self.headers.items()}
            try:
                with buckets.lock:
                    self._answer_to(bucket, key, given, headers, content)
            except RefusedError as error:
                body = (
                    f"<?xml version='1.0' encoding='UTF-8'?><Error><Code>{error.code}</Code></Error>".encode()
                )
                self._send(error.status, {"Content-Type": "application/xml"}, body)

        do_GET = do_HEAD = do_PUT = do_DELETE = do_POST = handle_any

        def _answer_to(self, bucket, key, given, headers, content):
            if self.command == "PUT" and not key:  # by tests, without a project
                buckets.buckets.setdefault(bucket, {})
                return self._send(200)
            if not bucket:
                return self._send(200)
            if headers.get("authorization") != f"Bearer {TOKEN}":
                raise RefusedError(401, "AuthenticationRequired")
            if any(name.startswith(_FOREIGN) for name in headers):
                raise RefusedError(400, "InvalidArgument")
            conditions = {"if-match", "if-none-match", "if-modified-since", "if-unmodified-since"} & {
                *headers
            }
            allowed = {"if-match", "if-none-match"} if self.command in ("GET", "HEAD") else set()
            if conditions - allowed or set(given) - (set() if key else _LIST):
                raise RefusedError(400, "InvalidArgument")
            if not key and self.command == "GET":
                return self._list(bucket, given)
            if self.command == "PUT":
                stored = buckets.put(bucket, key, content, headers)
                return self._send(200, self._of(stored))
            if self.command == "DELETE":
                buckets.delete(bucket, key)
                return self._send(204)
            if self.command in ("GET", "HEAD"):
                return self._get(buckets.get(bucket, key), headers)
            raise RefusedError(400, "InvalidArgument")

        def _get(self, stored, headers):
            told = {**self._of(stored), **stored.metadata, "Content-Type": stored.kind}
            told["Last-Modified"] = format_datetime(stored.moment, usegmt=True)
            if headers.get("if-match", stored.e_tag) != stored.e_tag:
                raise RefusedError(412, "PreconditionFailed")
            if headers.get("if-none-match") == stored.e_tag:
                return self._send(304, told)
            asked = re.fullmatch(r"bytes=(\d+)-(\d*)", headers.get("range", ""))
            if not asked:
                return self._send(200, told, stored.content)
            first, size = int(asked[1]), len(stored.content)
            if first >= size:
                raise RefusedError(416, "InvalidRange")
            last = min(int(asked[2] or size), size - 1)
            told["Content-Range"] = f"bytes {first}-{last}/{size}"
            return self._send(206, told, stored.content[first : last + 1])

        def _list(self, bucket, given):
            if given.get("list-type") != "2":
                raise RefusedError(400, "InvalidArgument")
            keys, prefixes, is_more = buckets.listed(bucket, given)
            parts = [f"<IsTruncated>{str(is_more).lower()}</IsTruncated>"]
            if is_more:
                token = max([*keys, *(f"{prefix}\uffff" for prefix in prefixes)])
                parts.append(f"<NextContinuationToken>{escape(token)}</NextContinuationToken>")
            for key in keys:
                stored = buckets.get(bucket, key)
                moment = stored.moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
                parts.append(
                    f"<Contents><Key>{escape(key)}</Key><Generation>{stored.generation}</Generation>"
                    f"<MetaGeneration>1</MetaGeneration><LastModified>{moment}</LastModified>"
                    f"<ETag>{escape(stored.e_tag)}</ETag><Size>{len(stored.content)}</Size></Contents>"
                )
            parts += [f"<CommonPrefixes><Prefix>{escape(p)}</Prefix></CommonPrefixes>" for p in prefixes]
            xmlns = "http://doc.s3.amazonaws.com/2006-03-01"
            body = (
                f'<?xml version="1.0"?><ListBucketResult xmlns="{xmlns}">{"".join(parts)}</ListBucketResult>'
            )
            return self._send(200, {"Content-Type": "application/xml"}, body.encode())

        def _of(self, stored):
            return {
                "ETag": stored.e_tag,
                "x-goog-generation": str(stored.generation),
                "x-goog-metageneration": "1",
                "x-goog-stored-content-length": str(len(stored.content)),
            }

        def _send(self, status, headers=(), body=b""):
            self.send_response(status)
            for name, value in dict(headers).items():
                self.send_header(name, value)
            if status not in (204, 304):
                self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def log_message(self, *_):
            pass

    return Handler


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("-p", type=int, required=True)
    server = ThreadingHTTPServer(("127.0.0.1", parser.parse_args().p), handler_of(Buckets()))
    server.daemon_threads = True
    server.serve_forever()
