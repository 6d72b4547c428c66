"""``vergence serve`` and ``vergence monitor`` as processes of their own: requests, kills, what goes on behind them."""

import contextlib
import json
import re
import signal
import socket
import subprocess
import time

import numpy as np
import pytest
from tests.cli.test_cli import CLI, ENV, apart, call, refused

from vergence.cli.commands import main

httpx = pytest.importorskip("httpx")
RNG = np.random.default_rng(0)
GOOD = RNG.normal(size=500)


@pytest.fixture(autouse=True)
def _seed():
    global RNG
    RNG = np.random.default_rng(1)


@pytest.fixture
def good(tmp_path):
    np.save(tmp_path / "good.npy", GOOD)
    return tmp_path / "good.npy"


@contextlib.contextmanager
def served(*arguments):
    """Yields a client of the service, and its process."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [*CLI, "serve", *map(str, arguments), "--port", str(port)]
    process = subprocess.Popen(command, env=ENV, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        line = process.stdout.readline()
        address = re.search(r"http://\S+", line)
        assert address, process.stderr.read()
        with httpx.Client(base_url=address[0], timeout=60) as client:
            yield client, process
    finally:
        process.kill()
        process.communicate()


def asked(client, n):
    """Returns the answers to n requests of one score each."""
    scores = RNG.normal(size=n).tolist()
    answers = [client.post("/scores", json={"scores": [s]}) for s in scores]
    assert {answer.status_code for answer in answers} == {200}
    return scores, [answer.json()["items"][0] for answer in answers]


def test_an_answer_does_not_wait_for_an_acknowledgment(good):
    with served(good) as (client, _):
        waited = [client.get("/health").elapsed.total_seconds() for _ in range(60)]
        assert np.median(waited) < 0.035  # a delayed acknowledgment takes 0.04


@pytest.mark.parametrize("n", [200, pytest.param(2000, marks=pytest.mark.slow)])
def test_many_requests_and_a_kill(n, good):
    with served(good) as (client, process):
        scores, items = asked(client, n)
        assert [x["p_value"] for x in items] == [(1 + int((GOOD >= s).sum())) / 501 for s in scores]
        assert f"vergence_items_total {n}.0" in client.get("/metrics").text
        assert sum(x["alarm"] for x in items) <= 0.03 * n + 5
        process.send_signal(signal.SIGKILL)
    with served(good) as (client, process):
        assert client.post("/scores", json={"scores": [scores[0]]}).json()["items"][0] == items[0]
        assert client.get("/health").json()["status"] == "ok"
        process.terminate()
        assert process.wait(20) in (0, -signal.SIGTERM)


@pytest.mark.float32
def test_a_run_is_served(images, good):
    with served(images.folder.path, "--device", "cpu") as (client, _):
        assert client.get("/health").json()["takes"] == ["scores", "images"]
        wrong = client.post("/images", content=b"\x89PNG\r\n\x1a\n" + bytes(50), headers={"content-type": "image/png"})
        assert wrong.json()["items"][0]["error"]
        port = str(client.base_url.port)
        refused("serve", good, "--port", port, words="cannot listen")


def test_what_cannot_be_served_is_one_line(good, tmp_path, monkeypatch):
    refused("serve", tmp_path / "none.csv", words="no file")
    refused("serve", good, "--port", 70_000, words="65,536")
    refused("serve", good, "--alarm", 0.001, words="at least 999 calibration scores")
    monkeypatch.setitem(__import__("sys").modules, "uvicorn", None)
    refused("serve", good, words="pip install 'vergence[serve]'")


def jsonl(path, scores):
    path.write_text("".join(json.dumps({"score": s}) + "\n" for s in scores))
    return path


def test_nights_go_on_and_an_alarm_is_one_line(good, tmp_path):
    state, quiet, cold = tmp_path / "state.json", tmp_path / "quiet.npy", tmp_path / "cold.jsonl"
    np.save(quiet, np.r_[RNG.normal(size=300), np.nan])
    jsonl(cold, [*RNG.normal(size=20), *RNG.normal(-2, 1, 12)])
    first = call("monitor", good, quiet, "--state", state, "--fail-on", "alarm")
    assert first.returncode == 0 and first.stdout.splitlines()[:2] == [
        "0 alarms in 301 items; 300 items since the last start.",
        "From each start, an alarm without a change has a probability of at most 1 %, over all time.",
    ]
    assert first.stderr == "note: 1 item without a number skipped\n"
    second = call("monitor", good, cold, "--state", state, "--fail-on", "alarm")
    assert second.returncode == 1
    assert re.search(r"\nalarm at item \d+: lower scores \(3\d\d items since the start\)\n$", second.stdout)
    assert call("monitor", good, cold).returncode == 0
    low = call("monitor", good, jsonl(cold, [4.0] * 90), "--lower-is-anomalous").stdout
    assert low.endswith("alarm at item 3: lower scores (3 items since the start)\n") and low.count("\n") == 3
    np.save(tmp_path / "other.npy", GOOD[::-1])
    refused("monitor", tmp_path / "other.npy", quiet, "--state", state, words="the calibration scores")
    refused("monitor", good, quiet, "--state", good, words="state of a monitor")
    cold.write_text("1\nabc\n")
    refused("monitor", good, cold, words="line 2")


def test_standard_input_is_read_line_by_line_and_a_kill_halves_nothing(good, tmp_path):
    state, command = tmp_path / "s.json", [*CLI, "monitor", str(good), "-", "--state", str(tmp_path / "s.json")]
    process = subprocess.Popen(command, env=ENV, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process.stdin.write("".join(f"{s}\n" for s in [*RNG.normal(size=1000), *[0.7] * 40]))
    process.stdin.flush()
    assert "repeated scores" in process.stdout.readline()  # while the stream is open
    process.kill()
    process.communicate()
    assert json.loads(state.read_text())["items"] == 1000
    done = subprocess.run(command, env=ENV, input="0.1\n\n0.4\n", capture_output=True, text=True)
    assert done.stdout.startswith("0 alarms in 2 items; 1,002 items since the last start.\n"), done.stderr


@pytest.mark.slow
def test_a_killed_night_is_repeated_with_the_same_state(good, tmp_path):
    np.save(tmp_path / "night.npy", RNG.normal(size=20_000))
    arguments = ["monitor", good, tmp_path / "night.npy", "--state"]
    process = subprocess.Popen([*CLI, *map(str, arguments), str(tmp_path / "a.json")], env=ENV)
    time.sleep(4)
    process.kill()
    process.wait()
    for name in ("a.json", "b.json"):
        assert apart(*arguments, tmp_path / name).returncode == 0
    assert (tmp_path / "a.json").read_bytes() == (tmp_path / "b.json").read_bytes()


def test_a_stream_that_fails_leaves_the_state_and_a_quiet_night_is_an_answer(good, tmp_path, capsys):
    state, bad = tmp_path / "s.json", tmp_path / "bad.jsonl"
    bad.write_text("0.1\n" * 1500 + "1" + "0" * 400 + "\n")
    refused("monitor", good, bad, "--state", state, words="in line 1,501")
    assert not state.exists()
    (tmp_path / "none.csv").write_text("id,score\n")
    main(["monitor", str(good), str(tmp_path / "none.csv")])
    assert "0 alarms in 0 items" in capsys.readouterr().out
