"""What stands in for Jaeger where its image can't be pulled: takes OTLP/JSON on port 4318, and answers the one question
of Jaeger's API that a scenario asks, on port 16686. Runs on a bare Python, without this repository.
"""

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlsplit

SPANS: dict[str, list[dict[str, Any]]] = {}
"""By the name of their service, as Jaeger's API has them."""


class Handler(BaseHTTPRequestHandler):
    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["content-length"])))
        if urlsplit(self.path).path != "/v1/traces" or self.headers["content-type"] != "application/json":
            return self._answer(404, {})
        for group in body["resourceSpans"]:
            about = {one["key"]: one["value"].get("stringValue", "") for one in group["resource"]["attributes"]}
            for span in (span for scope in group["scopeSpans"] for span in scope["spans"]):
                named = {"traceID": span["traceId"], "operationName": span["name"]}
                SPANS.setdefault(about["service.name"], []).append({**named, "instance": about["service.instance.id"]})
        return self._answer(200, {})

    def do_GET(self) -> None:
        found = SPANS.get(parse_qs(urlsplit(self.path).query).get("service", [""])[0], [])
        tags = [{"key": "service.instance.id", "value": one["instance"]} for one in found]
        traces = [
            {"traceID": one["traceID"], "spans": [one], "processes": {"p1": {"tags": [tag]}}}
            for one, tag in zip(found, tags, strict=True)
        ]
        self._answer(200, {"data": traces})

    def _answer(self, status: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-type", "application/json")
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)


if __name__ == "__main__":
    threading.Thread(target=ThreadingHTTPServer(("", 4318), Handler).serve_forever, daemon=True).start()
    ThreadingHTTPServer(("", 16686), Handler).serve_forever()
