"""Tries to use the network and a file of the host without permission. Both are denied."""
import socket

try:
    socket.create_connection(("127.0.0.1", 6379), timeout=1)
    result["network"] = "open"
except OSError as error:
    print(f"network: {error}")
    result["network"] = "denied"

try:
    with open("/etc/shadow") as file:
        result["host_file"] = file.read(16)
except OSError as error:
    print(f"host file: {error}")
    result["host_file"] = "denied"

if set(result.values()) != {"denied"}:
    raise SystemExit("the sandbox has a hole")
