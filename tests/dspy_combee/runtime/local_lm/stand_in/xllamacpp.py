"""A stand-in for the real server's package: a real HTTP server on 127.0.0.1 that behaves as its model file says.

A model file is the GGUF magic followed by JSON: what `load`, `health` and `chat` do.
"""

import json
import os
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace


class _QuietServer(ThreadingHTTPServer):
    """Say nothing of a client that hangs up: its traceback would push the log's own lines out of an error's tail."""

    def handle_error(self, request, client_address):
        pass


class CommonParams:
    def __init__(self):
        self.model = SimpleNamespace(path="")
        self.cpuparams = SimpleNamespace(n_threads=0)
        self.cpuparams_batch = SimpleNamespace(n_threads=0)


class Server:
    def __init__(self, params):
        behaviour = json.loads(Path(params.model.path).read_bytes()[4:] or b"{}")
        sys.stderr.write("loading the stand-in model\n")
        sys.stderr.flush()
        if behaviour.get("load") == "fails":
            raise RuntimeError("tensor 7 is missing")
        if behaviour.get("load") == "hangs":
            time.sleep(3600)
        if behaviour.get("load") == "waits":
            Path(behaviour["called"]).touch()
            while not Path(behaviour["until"]).exists():
                time.sleep(0.02)
        if behaviour.get("load") == "crashes":
            os._exit(9)
        _Handler.behaviour, _Handler.params = behaviour, params
        server = _QuietServer((params.hostnames[0], params.port), _Handler)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.listening_address = f"http://127.0.0.1:{server.server_port}"


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    behaviour: dict
    params: CommonParams
    health_calls = 0
    lock = threading.Lock()
    at_once = 0
    most_at_once = 0

    def do_GET(self):
        type(self).health_calls += 1
        ready = self.health_calls > self.behaviour.get("unhealthy_calls", 0)
        self._send(200 if ready else 503, {"status": "ok" if ready else "loading"})

    def do_POST(self):
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        with self.lock:
            type(self).at_once += 1
            type(self).most_at_once = max(self.most_at_once, self.at_once)
        reply = self._reply(body)
        with self.lock:
            type(self).at_once -= 1
        self._send(*reply)

    def _reply(self, body):
        chat = self.behaviour.get("chat")
        if chat == "dies":
            os._exit(9)
        if chat == "hangs":
            Path(self.behaviour["called"]).write_text(str(os.getpid()))
            time.sleep(3600)
        if chat == "too_long":
            message = "request (9030 tokens) exceeds the available context size (8192 tokens), try increasing it"
            return 400, {"error": {"code": 400, "type": "exceed_context_size_error", "message": message}}
        facts = {
            "pid": os.getpid(),
            "body": body,
            "most_at_once": self.most_at_once,
            "n_ctx": self.params.n_ctx,
            "omp": os.environ.get("OMP_WAIT_POLICY"),
        }
        content = self.behaviour.get("reply", json.dumps(facts))
        choice = {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": content}}
        usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
        return 200, {"id": "1", "object": "chat.completion", "model": "m", "choices": [choice], "usage": usage}

    def _send(self, status, payload):
        data = json.dumps(payload).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, format, *args):
        pass
