#!/usr/bin/env python3
"""What a gateway costs: CPU microseconds a request, for a JSON reply (`json`), a stream of 50 events that arrive
together (`stream50`), and a stream of 50 events 10 ms apart, as an engine really sends them (`paced50`).

usage: overhead.py [--peers] [--name NAME] [--port PORT] [--conns 32] [--seconds 5] [--model m] [--key KEY]
                   [-- COMMAND [ARG ...]]

COMMAND starts the gateway in the foreground, listening on 127.0.0.1:PORT, with 127.0.0.1:9001 (engine_stub.py, started
here) as its only engine. --peers measures, in the same run, nginx and those of vllm-router and sglang-router that are
on the PATH. The gateway is pinned to core 1, load and engine to core 0. Needs wrk, and uvloop for the stub. CPU is
utime + stime of the gateway's whole process tree over the timed run, divided by the requests answered: steadier than a
rate on a shared machine, but only figures of one run compare.
"""

import argparse
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path

STUB = Path(__file__).with_name("engine_stub.py")
STUB_PORT = 9001
NGINX_PORT, VLLM_ROUTER_PORT, SGLANG_ROUTER_PORT = 9110, 9120, 9121
KINDS = ("json", "stream50", "paced50")
NGINX = """worker_processes 1; daemon off; pid %(dir)s/nginx.pid; error_log %(dir)s/nginx.err;
events { worker_connections 4096; }
http {
 access_log off; client_body_temp_path %(dir)s; proxy_temp_path %(dir)s;
 fastcgi_temp_path %(dir)s; uwsgi_temp_path %(dir)s; scgi_temp_path %(dir)s;
 upstream engine { server 127.0.0.1:9001; keepalive 256; }
 server {
  listen 127.0.0.1:9110;
  location / {
   proxy_pass http://engine; proxy_http_version 1.1; proxy_set_header Connection ""; proxy_buffering off;
  }
 }
}
"""


def process_tree(root: int) -> set[int]:
    parents: dict[int, int] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                parents[int(folder.name)] = int((folder / "stat").read_text().rsplit(")", 1)[1].split()[1])
            except (OSError, IndexError):
                continue
    tree = {root}
    while new := {process for process, parent in parents.items() if parent in tree} - tree:
        tree |= new
    return tree


def cpu_seconds(root: int) -> float:
    ticks = 0
    for process in process_tree(root):
        try:
            fields = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()
        except OSError:
            continue
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def memory_mb(root: int) -> float:
    """Proportional set size, in MiB."""
    total = 0
    for process in process_tree(root):
        try:
            found = re.search(r"^Pss:\s+(\d+)", Path(f"/proc/{process}/smaps_rollup").read_text(), re.MULTILINE)
        except OSError:
            continue
        total += int(found[1]) if found else 0
    return total / 1024


def wrk(port: int, kind: str, args: argparse.Namespace, seconds: int) -> str:
    whom = "paced" if kind == "paced50" else "world"
    body = {
        "model": args.model,
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            {"role": "user", "content": f"Say hi to the {whom} in a few words please."},
        ],
        "max_tokens": 20,
        **({"stream": True} if kind != "json" else {}),
    }
    with tempfile.NamedTemporaryFile("w", suffix=".lua") as script:
        script.write(
            'wrk.method="POST"; wrk.headers["content-type"]="application/json"; '
            f'wrk.headers["authorization"]="Bearer {args.key}"\n'
            f"wrk.body=[=[{json.dumps(body, separators=(',', ':'))}]=]\n"
        )
        script.flush()
        load = ["wrk", "-t1", f"-c{args.conns}", f"-d{seconds}s", "--latency", "--timeout", "20s", "-s", script.name]
        command = ["taskset", "-c", "0", *load, f"http://127.0.0.1:{port}/v1/chat/completions"]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def wait_for(port: int, limit: float) -> None:
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
        except OSError:
            time.sleep(0.2)
        else:
            return
    raise SystemExit(f"nothing listens on port {port} after {limit:.0f} s")


def found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    return match[1] if match else "?"


def measure(name: str, port: int, command: list[str], args: argparse.Namespace) -> None:
    with tempfile.NamedTemporaryFile("w", suffix=f".{name.split()[0]}.log") as log:
        gateway = subprocess.Popen(
            ["taskset", "-c", "1", *command], stdout=log, stderr=subprocess.STDOUT, start_new_session=True
        )
        try:
            wait_for(port, 120)
            time.sleep(2)
            for kind in KINDS:
                wrk(port, kind, args, 2)
                before = cpu_seconds(gateway.pid)
                out = wrk(port, kind, args, args.seconds)
                report(name, kind, out, cpu_seconds(gateway.pid) - before, memory_mb(gateway.pid))
        finally:
            os.killpg(gateway.pid, signal.SIGTERM)
            try:
                gateway.wait(10)
            except subprocess.TimeoutExpired:
                os.killpg(gateway.pid, signal.SIGKILL)


def report(name: str, kind: str, out: str, spent: float, memory: float) -> None:
    count = found(r"(\d+) requests in", out)
    per_request = f"{spent / int(count) * 1e6:9.1f}" if count.isdigit() and int(count) else "        ?"
    faults = " ".join(re.findall(r"(Non-2xx.*|Socket errors.*)", out))
    rate = found(r"Requests/sec: *([0-9.]+)", out)
    half, slowest = found(r"50% +(\S+)", out), found(r"99% +(\S+)", out)
    print(
        f"{name:24s} {kind:9s} cpu_us/req={per_request} rps={rate:>9s} "
        f"p50={half:>9s} p99={slowest:>9s} pss={memory:6.0f}MB {faults}",
        flush=True,
    )


def measure_peers(args: argparse.Namespace) -> None:
    with tempfile.TemporaryDirectory() as folder:
        conf = Path(folder, "nginx.conf")
        conf.write_text(NGINX % {"dir": folder})
        if shutil.which("nginx"):
            measure("nginx", NGINX_PORT, ["nginx", "-c", str(conf)], args)
    common = ["--host", "127.0.0.1", "--worker-urls", f"http://127.0.0.1:{STUB_PORT}", "--log-level", "error"]
    if shutil.which("vllm-router"):
        for policy in ("round_robin", "cache_aware"):
            command = ["vllm-router", "--port", str(VLLM_ROUTER_PORT), "--policy", policy, "--prometheus-port", "29001"]
            measure(f"vllm-router {policy}", VLLM_ROUTER_PORT, [*command, *common], args)
    if shutil.which("sglang-router"):
        command = ["sglang-router", "launch", "--port", str(SGLANG_ROUTER_PORT), "--policy", "round_robin"]
        measure("sglang-router", SGLANG_ROUTER_PORT, [*command, "--prometheus-port", "29002", *common], args)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--port", type=int, default=9100)
    parser.add_argument("--name", default="sluice")
    parser.add_argument("--conns", type=int, default=32)
    parser.add_argument("--seconds", type=int, default=5)
    parser.add_argument("--model", default="m")
    parser.add_argument("--key", default="sk-bench")
    parser.add_argument("--peers", action="store_true")
    parser.add_argument("command", nargs=argparse.REMAINDER)
    args = parser.parse_args()
    stub = subprocess.Popen(["taskset", "-c", "0", sys.executable, str(STUB), str(STUB_PORT)])
    try:
        wait_for(STUB_PORT, 10)
        if args.peers:
            measure_peers(args)
        command = args.command[1:] if args.command[:1] == ["--"] else args.command
        if command:
            measure(args.name, args.port, command, args)
    finally:
        stub.terminate()


if __name__ == "__main__":
    main()
