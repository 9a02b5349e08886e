"""Send a text to a port of a pod through the Python client's port-forward, and print the answer.

Used as `python forward.py NAMESPACE POD PORT TEXT`. A process of its own: the client replaces functions of `socket`.
"""

from __future__ import annotations

import contextlib
import sys

from kubernetes import client, config
from kubernetes.stream import portforward

if __name__ == "__main__":
    namespace, pod, port, text = sys.argv[1:]
    config.load_kube_config()  # type: ignore[no-untyped-call]
    api = client.CoreV1Api()
    forward = portforward(api.connect_get_namespaced_pod_portforward, pod, namespace, ports=port)
    with contextlib.closing(forward.socket(int(port))) as connection:
        connection.sendall(text.encode())
        connection.settimeout(30)
        answer = b""
        while data := connection.recv(4096):
            answer += data
    if error := forward.error(int(port)):
        sys.exit(error)
    sys.stdout.write(answer.decode())
