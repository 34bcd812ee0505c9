# Takes whatever is posted to a port of this machine, and writes a line for each into a file: the path, the header
# Authorization and the body.
#
#   python3 receiver.py PORT FILE
import http.server
import sys


class Receiver(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"])).decode()
        with open(sys.argv[2], "a", encoding="utf-8") as heard:
            heard.write(f"{self.path} {self.headers['Authorization']} {body}\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.HTTPServer(("127.0.0.1", int(sys.argv[1])), Receiver).serve_forever()
