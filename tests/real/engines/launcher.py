"""Starts engines by fork, from one process that has imported vLLM: that takes a second instead of half a minute.

Each line of standard input is an order: {"log": PATH, "env": {...}, "args": [...]} starts vLLM's gRPC server with these
arguments; with "program" it starts that program. The answer to an order is {"started": PID}; {"ended": PID} follows when the
process ends. An engine begins a process group. At the end of standard input all processes are killed, so that none outlives
the tests, however those end.
"""

import ctypes
import json
import multiprocessing
import os
import select
import signal
import sys

PR_SET_CHILD_SUBREAPER = 36  # processes whose parents have ended become children of this one


def prepare():
    """Imports what servers, engine cores and workers need. Those are forked too, where vLLM for the CPU would spawn them."""
    from vllm.utils import system_utils

    system_utils.get_mp_context = lambda: multiprocessing.get_context("fork")
    import vllm.distributed.kv_transfer.kv_connector.v1.nixl.connector  # noqa: F401
    import vllm.entrypoints.launchers.grpc_server
    import vllm.model_executor.models.llama  # noqa: F401
    import vllm.v1.worker.cpu_worker  # noqa: F401

    return vllm.entrypoints.launchers.grpc_server.main


def run(order, serve):
    """Becomes the engine. It does not return."""
    os.setpgid(0, 0)
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    nothing = os.open(os.devnull, os.O_RDONLY)
    log = os.open(order["log"], os.O_CREAT | os.O_APPEND | os.O_WRONLY, 0o600)
    os.dup2(nothing, 0)
    os.dup2(log, 1)
    os.dup2(log, 2)
    os.environ.update(order["env"])
    if "program" in order:
        os.execv(order["program"], [order["program"], *order["args"]])
    sys.argv[1:] = order["args"]
    serve()


def ended():
    """Returns the processes that have ended since the last call."""
    while True:
        try:
            pid, _ = os.waitpid(-1, os.WNOHANG)
        except ChildProcessError:
            return
        if pid == 0:
            return
        yield pid


def descendants():
    """Returns all processes that this one has started, directly or not."""
    parents = {}
    for pid in filter(str.isdigit, os.listdir("/proc")):
        try:
            with open(f"/proc/{pid}/stat", "rb") as stat:
                parents[int(pid)] = int(stat.read().rpartition(b")")[2].split()[1])
        except FileNotFoundError:
            pass  # it has ended
    found = {os.getpid()}
    while more := {pid for pid, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {os.getpid()}


def main():
    say = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)  # what vLLM prints is no answer
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    serve = prepare()
    wake, woken = os.pipe()
    os.set_blocking(woken, False)
    signal.set_wakeup_fd(woken)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    rest = b""
    while True:
        ready, _, _ = select.select([0, wake], [], [])
        if wake in ready:
            os.read(wake, 4096)
            for pid in ended():
                say.write(json.dumps({"ended": pid}) + "\n")
        if 0 not in ready:
            continue
        more = os.read(0, 1 << 16)
        if not more:
            break
        *orders, rest = (rest + more).split(b"\n")
        for order in orders:
            pid = os.fork()
            if pid == 0:
                try:
                    run(json.loads(order), serve)
                finally:
                    sys.stdout.flush()
                    sys.stderr.flush()
                    os._exit(1)
            say.write(json.dumps({"started": pid}) + "\n")
    for pid in descendants():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass

main()
