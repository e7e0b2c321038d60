#!/usr/bin/env python3
"""A collector for tests: accepts OTLP in JSON at /v1/traces, and writes each span as a line of JSON to a file.

    span_receiver.py FILE [hang | refuse]     prints the address at which it listens
"""
import http.server
import json
import sys
import threading


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = 'HTTP/1.1'

    def do_POST(self):
        if MODE == 'hang':
            threading.Event().wait()
        body = self.rfile.read(int(self.headers['Content-Length']))
        status = 503 if MODE == 'refuse' or self.path != '/v1/traces' else 200
        if status == 200:
            if self.headers['Content-Type'] != 'application/json':
                status = 415
            else:
                self.write_spans(json.loads(body))
        self.send_response(status)
        self.send_header('Content-Length', '2')
        self.end_headers()
        self.wfile.write(b'{}')

    def write_spans(self, body):
        with open(FILE, 'a', encoding='utf-8') as out:
            for resource in body['resourceSpans']:
                service = {a['key']: a['value']['stringValue'] for a in resource['resource']['attributes']}['service.name']
                for scope in resource['scopeSpans']:
                    for span in scope['spans']:
                        span['service'] = service
                        out.write(json.dumps(span) + '\n')

    def log_message(self, *_):
        pass


FILE = sys.argv[1]
MODE = sys.argv[2] if len(sys.argv) > 2 else ''
server = http.server.ThreadingHTTPServer(('127.0.0.1', 0), Receiver)
server.daemon_threads = True
print(f'http://127.0.0.1:{server.server_port}/v1/traces', flush=True)
server.serve_forever()
