"""A Prometheus that gives one answer."""

import http.server
import threading
from contextlib import contextmanager
from urllib.parse import parse_qs, urlsplit


@contextmanager
def prometheus(status, body):
    """Serves *body*, or what it returns for a query. Yields the server, which keeps what it was *asked*, and URL."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.server.asked.append(self.path)
            self.send_response(status)
            self.send_header("Location", "/elsewhere")
            self.end_headers()
            query = parse_qs(urlsplit(self.path).query)["query"][0]
            self.wfile.write(body if isinstance(body, bytes) else body(query))

        def log_message(self, *args):
            pass

    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.asked = []
        threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True).start()
        yield server, f"http://127.0.0.1:{server.server_port}/prefix/"
        server.shutdown()
