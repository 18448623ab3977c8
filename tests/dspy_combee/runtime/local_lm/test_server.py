"""The embedded server: one a process, health-checked, explained when it ends, gone when its parent is."""

import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import time
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest

from dspy_combee.runtime.local_lm import LocalModelError, LocalServerEndedError, stop_local_servers
from dspy_combee.runtime.local_lm.server import ServerOptions, running_server

pytestmark = pytest.mark.usefixtures("stand_in_server")


def options_for(path, **kwargs):
    return ServerOptions(model=str(path), num_threads=1, parallel=2, context_tokens=64, **kwargs)


def start(path, **kwargs):
    return running_server(options_for(path, **kwargs), restart=True)


def ask(server):
    request = urllib.request.Request(
        f"{server.address}/v1/chat/completions", data=b"{}", headers={"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request) as response:
        return json.loads(json.load(response)["choices"][0]["message"]["content"])


def wait_until_refused(address):
    host, port = address.removeprefix("http://").split(":")
    while True:
        try:
            socket.create_connection((host, int(port))).close()
        except OSError:
            return
        time.sleep(0.02)


def test_threads_that_ask_at_once_share_one_server(model_that):
    path = model_that()
    with ThreadPoolExecutor(8) as pool:
        servers = list(pool.map(lambda _: start(path), range(8)))
    assert len({id(server) for server in servers}) == 1


def test_other_options_get_another_server_and_other_waiting_times_do_not(model_that):
    options = options_for(model_that())
    first = running_server(options, restart=True)
    assert running_server(replace(options, start_seconds=5, progress=False), restart=True) is first
    assert running_server(replace(options, parallel=1), restart=True) is not first


def test_a_server_that_is_still_loading_does_not_hold_up_another(model_that, tmp_path):
    options = options_for(model_that())
    ready = running_server(options, restart=True)
    called, until = tmp_path / "called", tmp_path / "until"
    slow = model_that(load="waits", called=str(called), until=str(until))
    with ThreadPoolExecutor(2) as pool:
        starting = pool.submit(start, slow)
        while not called.exists():
            time.sleep(0.02)
        meanwhile = pool.submit(running_server, options, restart=False)
        try:
            assert meanwhile.result(timeout=60) is ready
        finally:
            until.touch()
        assert starting.result() is not ready


def test_the_options_reach_the_server(model_that):
    facts = ask(start(model_that()))
    assert facts["n_ctx"] == 128  # 64 tokens for each of 2 requests at once
    assert facts["omp"] == "passive"
    assert facts["pid"] != os.getpid()


def test_it_is_ready_only_when_it_is_healthy(model_that):
    server = start(model_that(unhealthy_calls=2))
    with urllib.request.urlopen(f"{server.address}/health") as response:
        assert response.status == 200


def test_a_server_that_never_becomes_healthy_is_given_up_with_its_last_log_lines(model_that):
    # Long enough for a process to start and to log its first line on a busy machine.
    with pytest.raises(LocalModelError, match=r"healthy within 8 seconds and was not(.|\n)*loading the stand-in"):
        start(model_that(unhealthy_calls=10**9), start_seconds=8)


def test_a_server_that_hangs_while_loading_is_given_up_and_ended(model_that):
    with pytest.raises(LocalModelError, match="must be healthy within 1 seconds"):
        start(model_that(load="hangs"), start_seconds=1)


@pytest.mark.parametrize(("load", "message"), [("fails", "RuntimeError: tensor 7 is missing"), ("crashes", "code 9")])
def test_a_model_that_does_not_load_is_explained(model_that, load, message):
    with pytest.raises(LocalModelError, match=rf"did not start: .*{message}(.|\n)*loading the stand-in model"):
        start(model_that(load=load))


def test_a_fixed_port_that_is_in_use_is_named(model_that):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(LocalModelError, match=f"Is port {port} in use"):
            start(model_that(), port=port)


def test_a_failed_start_does_not_stand_in_the_way_of_the_next(model_that, tmp_path):
    path = model_that(load="fails")
    with pytest.raises(LocalModelError):
        start(path)
    path.write_bytes(b"GGUF{}")
    assert start(path).is_running


def test_a_missing_extra_is_named_before_any_weights_are_fetched(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr("platform.system", lambda: "Linux")
    monkeypatch.setattr("platform.machine", lambda: "x86_64")
    with pytest.raises(LocalModelError, match=r'pip install "dspy-combee\[local\]"'):
        start("default")


def test_an_unsupported_platform_is_told_what_else_there_is(monkeypatch):
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr("platform.machine", lambda: "riscv64")
    with pytest.raises(LocalModelError, match=r"on riscv64\. Name another model instead: DSPY_LM="):
        start("default")


def test_a_package_that_does_not_import_is_reported_by_the_child(model_that, tmp_path, monkeypatch):
    (tmp_path / "xllamacpp.py").write_text("raise ImportError('libgomp.so.1: cannot open shared object file')")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(LocalModelError, match=r"cannot be imported \(libgomp\.so\.1: .*needs the system library"):
        start(model_that())


def test_a_killed_server_is_explained_and_replaced_when_asked_for(model_that):
    options = options_for(model_that())
    first = running_server(options, restart=True)
    os.kill(ask(first)["pid"], signal.SIGKILL)
    with pytest.raises(LocalServerEndedError, match=r"ended \(exit code -9(.|\n)*Call local_lm\(\) again"):
        first.check_running(grace_seconds=600)
    with pytest.raises(LocalServerEndedError):
        running_server(options, restart=False)
    second = running_server(options, restart=True)
    assert second is not first
    assert ask(second)["n_ctx"] == 128


def test_stopping_ends_the_process_and_a_later_use_starts_a_new_one(model_that):
    options = options_for(model_that())
    first = running_server(options, restart=True)
    stop_local_servers()
    wait_until_refused(first.address)
    assert not first.is_running
    assert running_server(options, restart=False).is_running


OWNER = textwrap.dedent("""
    import os, sys, time
    from dspy_combee.runtime.local_lm.server import ServerOptions, running_server
    server = running_server(ServerOptions(sys.argv[1], 1, 2, 64), restart=True)
    {then}
""")


def owner_process(path, then):
    return subprocess.Popen(
        [sys.executable, "-c", OWNER.format(then=then), str(path)], stdout=subprocess.PIPE, stdin=subprocess.PIPE
    )


def test_no_server_is_left_after_its_owner_ends(model_that):
    with owner_process(model_that(), "print(server.address, flush=True)") as owner:
        address = owner.stdout.readline().decode().strip()
    wait_until_refused(address)


@pytest.mark.parametrize(
    "then",
    [
        "print(server.address, flush=True); time.sleep(3600)",
        # a forked child that outlives the owner holds the other end of the server's pipe open
        "os.fork() and print(server.address, flush=True); os.read(0, 1); os._exit(0)",
    ],
    ids=["alone", "with a forked child"],
)
def test_no_server_is_left_after_its_owner_is_killed(model_that, then):
    with owner_process(model_that(), then) as owner:
        address = owner.stdout.readline().decode().strip()
        owner.kill()
        wait_until_refused(address)


def test_a_server_ends_when_its_owner_is_killed_while_it_loads(model_that):
    with owner_process(model_that(load="hangs"), "pass") as owner:
        while not (children := children_of(owner.pid)):
            time.sleep(0.02)
        owner.kill()
    while is_alive(children[0]):
        time.sleep(0.02)


def children_of(pid):
    try:
        with open(f"/proc/{pid}/task/{pid}/children") as file:
            return [int(child) for child in file.read().split()]
    except FileNotFoundError:
        pytest.skip("needs /proc")


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_forked_child_uses_the_servers_of_its_parent_and_does_not_stop_them(model_that):
    then = textwrap.dedent("""
        child = os.fork()
        if not child:
            same = running_server(server.options, restart=False) is server and server.is_running
            print("child", same, flush=True)
            sys.exit()
        os.waitpid(child, 0)
        print("parent", server._answers(), flush=True)
    """)
    with owner_process(model_that(), then) as owner:
        assert owner.stdout.read().split() == [b"child", b"True", b"parent", b"True"]


def test_interrupting_the_caller_does_not_reach_the_server(model_that):
    server = start(model_that())
    pid = ask(server)["pid"]
    assert os.getsid(pid) != os.getsid(0)
