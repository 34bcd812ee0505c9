# What a VM finds in Azure by HTTPS, at port 443 of this machine, for the names in cert.pem: a vault at
# forewarn.vault.azure.net, and elsewhere the files of a folder.
#
#   python3 azure.py DIR
#
# DIR has cert.pem and key.pem, the folder web, and vault, a file with the only secret, or with a status and the inner
# code of an error, such as "403 ForbiddenByRbac".
import functools
import http.server
import json
import ssl
import sys

DIR = sys.argv[1]


class Azure(http.server.SimpleHTTPRequestHandler):
    def do_GET(self):
        if self.headers["Host"] != "forewarn.vault.azure.net":
            super().do_GET()
            return
        with open(f"{DIR}/vault", encoding="utf-8") as file:
            word, _, code = file.read().strip().partition(" ")
        if not self.headers.get("Authorization", "").startswith("Bearer emulated."):
            word, code = "401", "Unauthorized"
        error = {"code": "Forbidden", "message": "No.", "innererror": {"code": code}}
        answer = json.dumps({"error": error} if code else {"value": word}).encode()
        self.send_response(int(word) if code else 200)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 443), functools.partial(Azure, directory=f"{DIR}/web"))
context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
context.load_cert_chain(f"{DIR}/cert.pem", f"{DIR}/key.pem")
server.socket = context.wrap_socket(server.socket, server_side=True)
server.serve_forever()
