"""Runs that are really killed, in processes of their own, at chosen model calls."""

import json
import os
import subprocess
import sys

CHILD = """
import importlib.util, json, os, signal, sys

spec = importlib.util.spec_from_file_location("killed", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
calls = 0

def killing(reply, at):
    def script(prompt, number):
        global calls
        calls += 1
        if calls == at:
            os.kill(os.getpid(), signal.SIGKILL)
        return reply(prompt, number)
    return script

for at in json.loads(sys.argv[3]):
    pid = os.fork()
    if pid == 0:
        module.run_to_kill(lambda reply: killing(reply, at), f"{sys.argv[2]}/{at}")
        os._exit(0)
    _, status = os.waitpid(pid, 0)
    assert os.WIFSIGNALED(status) and os.WTERMSIG(status) == signal.SIGKILL, (at, status)
"""


def kill_runs(file, directory, calls):
    """Kill one run at each of these model calls; each leaves what it kept in a directory named by the call.

    The file's `run_to_kill(killing, log_dir)` does the run; `killing` makes a script for an engine count, and kill.
    """
    arguments = [sys.executable, "-W", "ignore", "-c", CHILD, str(file), str(directory), json.dumps(calls)]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path), "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
    subprocess.run(arguments, check=True, env=environment)
