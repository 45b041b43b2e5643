"""``replan serve`` as a user runs it."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys

import pytest

pytest.importorskip("websockets", reason="pip install 'replan[remote]'")
from click.testing import CliRunner
from replan.eval.commands.serve import serve_command
from replan.eval.spec import BadInput

MAIN = "from replan.eval.cli import main; main()"


@pytest.mark.slow
def test_a_served_policy_is_evaluated_and_ctrl_c_ends_the_server(policy_file, tmp_path):
    server = subprocess.Popen(
        [sys.executable, "-c", MAIN, "serve", "--policy", policy_file, "--port", "0", "--json"],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        said = server.stderr.readline()
        url = next(word.rstrip(";") for word in said.split() if word.startswith("ws://127.0.0.1:"))
        done = subprocess.run(
            [sys.executable, "-c", MAIN, "eval", "--policy", url, "--episodes", "2", "--workers", "2", "--set",
             "speed=15", "--device", "cpu", "--out", tmp_path / "run", "--json"],
            capture_output=True, text=True,
        )  # fmt: skip
        assert done.returncode == 0, done.stderr
        result = json.loads(done.stdout.splitlines()[-1])
        assert (result["episodes"], result["errors"]) == (2, 0)
        assert "computed by a server on cpu" in json.dumps(result["board"])
        server.send_signal(signal.SIGINT)
        out, err = server.communicate(timeout=60)
    finally:
        server.kill()
    assert server.returncode == 0 and "Traceback" not in err
    assert json.loads(out.splitlines()[-1]) == {"address": url}


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.1", "robot", ""])
def test_only_this_machine_is_served_without_a_token(host, policy_file):
    refused = CliRunner().invoke(serve_command, ["--policy", str(policy_file), "--host", host])
    assert "add --token, or serve on 127.0.0.1" in str(refused.exception)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--policy", "nobody"], "unknown policy 'nobody'"),
        (["--policy", "pi0-tiny", "--method", "nothing"], "nothing"),
        (["--policy", "pi0-tiny", "--convention", "narnia"], "unknown convention 'narnia'"),
        (["--policy", "pi0-tiny", "--token", ""], "the token is empty"),
    ],
)
def test_what_cannot_be_served_is_refused_before_it_listens(arguments, words):
    refused = CliRunner().invoke(serve_command, arguments)
    assert words in str(refused.exception)


def test_a_port_that_is_taken_is_named(policy_file):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        port = other.getsockname()[1]
        failed = CliRunner().invoke(serve_command, ["--policy", str(policy_file), "--port", str(port)])
    assert isinstance(failed.exception, BadInput)  # exit code 2
    assert f"cannot listen on 127.0.0.1:{port}: Address already in use; name another --port" in str(failed.exception)


def test_without_the_packages_for_servers_the_extra_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "msgpack", None)
    with pytest.raises(ValueError, match=r"pip install 'replan\[remote\]'"):
        from replan.eval.registry import Registry

        Registry().policy("ws://127.0.0.1:1")
