"""llama-server: ours alone, ready when it can make a token, gone when the context is left."""

from __future__ import annotations

import signal
import socket
from pathlib import Path
from typing import Any

import pytest

from _fakes import fake, gone
from ggufslice import BenchError
from ggufslice.bench import Llama, Sample, serve
from ggufslice.bench import _server as module

# A server that does as well as the real one; what a test puts into `answer` comes first.
SERVER = """
import http.server
def option(name): return sys.argv[sys.argv.index(name) + 1]
open(option("-m") + ".pid", "w").write(str(os.getpid()))
TIMINGS = dict(prompt_n=4, cache_n=0, prompt_per_second=50.0, predicted_n=2, predicted_per_second=25.0)
DONE = dict(content="ab", tokens=[7, 8], tokens_predicted=2, tokens_evaluated=4, stop_type="limit", timings=TIMINGS)
asked = []
def answer(path, body): return None
{before}
class Handler(http.server.BaseHTTPRequestHandler):
    def reply(self):
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length") or 0)) or b"null")
        asked.append(self.path)
        made = answer(self.path, body) or {{
            "/health": (200, {{"status": "ok"}}),
            "/v1/models": (200, {{"data": [{{"id": option("--alias")}}]}}),
            "/completion": (200, DONE),
        }}.get(self.path, (404, {{}}))
        data = made[1] if isinstance(made[1], bytes) else json.dumps(made[1]).encode()
        self.send_response(made[0])
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
    do_GET = do_POST = reply
    def log_message(self, *words): pass
http.server.ThreadingHTTPServer((option("--host"), int(option("--port"))), Handler).serve_forever()
"""


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    return path


def sampled(model: Path, before: str = "", n: int = 2, **options: Any) -> Sample:
    fake(model.parent, "llama-server", SERVER.format(before=before))
    with serve(model, llama=Llama(model.parent), **options) as server:
        return server.sample("four tokens of prompt", n)


def pid_of(model: Path) -> int:
    return int(Path(f"{model}.pid").read_text())


def test_a_sample(model: Path) -> None:
    sample = sampled(model)

    assert (sample.text, sample.tokens, sample.asked, sample.returned) == ("ab", (7, 8), 2, 2)
    assert (sample.prompt_tokens, sample.prompt_per_second, sample.per_second) == (4, 50.0, 25.0)
    assert sample.flags == "-ngl 99 -c 2048 -np 1 -ctk f16 -ctv f16"
    assert gone(pid_of(model))


def test_no_cache_and_greedy(model: Path) -> None:
    sampled(
        model, "def answer(path, body):\n    if body: open(option('-m') + '.asked', 'a').write(json.dumps(body) + '\\n')"
    )

    asked = Path(f"{model}.asked").read_text().splitlines()
    assert all('"cache_prompt": false' in line for line in asked)
    assert '"temperature": 0.0' in asked[1]


def test_503_is_waited_for(model: Path) -> None:
    loading = "def answer(path, body):\n    if path == '/health' and asked.count(path) < 4: return 503, {'error': 'loading'}"

    assert sampled(model, loading).returned == 2


def test_healthy_is_not_ready(model: Path) -> None:
    refusing = "def answer(path, body):\n    if path == '/completion': return 500, {'error': 'out of memory'}"

    with pytest.raises(BenchError, match=r"answered POST /completion with 500: .*out of memory"):
        sampled(model, refusing)
    assert gone(pid_of(model))


def test_never_ready(model: Path) -> None:
    with pytest.raises(BenchError, match=r"was not ready within 1 s\. The last of its output:\nstill loading"):
        sampled(model, "print('still loading', flush=True)\ndef answer(path, body): return 503, {}", timeout=1)
    assert gone(pid_of(model))


def test_an_end_before_it_is_ready_is_explained(model: Path) -> None:
    dying = "print('llama.cpp:9: GGML_ASSERT(n_expert > 0) failed', flush=True)\nos.abort()"

    with pytest.raises(BenchError, match=r"ended before it was ready: .*assertion.*GGML_ASSERT\(n_expert > 0\) failed"):
        sampled(model, dying)


def test_an_end_in_the_middle_is_explained(model: Path) -> None:
    dying = """
def answer(path, body):
    if body and body.get("n_predict") == 2:
        print("killed by the kernel", flush=True)
        os.kill(os.getpid(), signal.SIGKILL)
"""
    with pytest.raises(BenchError, match=r"broke off at POST /completion .*was killed, most often for want of memory"):
        sampled(model, dying)


def test_an_answer_that_never_comes(model: Path) -> None:
    hanging = "def answer(path, body):\n    if body and body.get('n_predict') == 2: time.sleep(600)"

    with pytest.raises(BenchError, match=r"did not answer POST /completion within 2 s"):
        sampled(model, hanging, timeout=2)
    assert gone(pid_of(model))


def test_an_answer_that_is_no_json(model: Path) -> None:
    with pytest.raises(BenchError, match=r"answered POST /completion with 200: <html>"):
        sampled(model, "def answer(path, body):\n    if path == '/completion': return 200, b'<html>'")


def test_cached_tokens_are_refused(model: Path) -> None:
    cached = "TIMINGS.update(prompt_n=1, cache_n=3)"

    with pytest.raises(BenchError, match=r"processed 1 of the 4 tokens of the prompt and took the others from a cache"):
        sampled(model, cached)


@pytest.mark.parametrize("timings", ["TIMINGS.clear()", "TIMINGS.update(prompt_n=4, predicted_per_second=0)"])
def test_timings_that_are_missing_or_nothing_are_none(model: Path, timings: str) -> None:
    sample = sampled(model, f"{timings}\nif not TIMINGS: DONE.update(tokens_evaluated=0)")

    assert sample.per_second is None


@pytest.mark.parametrize("value", ["float('inf')", "float('nan')", "None", "'fast'"])
def test_timings_that_can_not_be_are_none(model: Path, value: str) -> None:
    assert sampled(model, f"TIMINGS.update(predicted_per_second={value})").per_second is None


def test_a_single_token(model: Path) -> None:
    one = (
        "DONE.update(tokens=[7], content='a', tokens_predicted=1); TIMINGS.update(predicted_n=1, predicted_per_second=1e999)"
    )

    sample = sampled(model, one, n=1)

    assert (sample.returned, sample.per_second) == (1, None)


def test_fewer_tokens_than_asked_are_recorded(model: Path) -> None:
    sample = sampled(model, "DONE.update(stop_type='eos')", n=48)

    assert (sample.asked, sample.returned, sample.stop) == (48, 2, "eos")


def test_somebody_elses_server_is_never_used(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = "def answer(path, body):\n    if path == '/v1/models': return 200, {'data': [{'id': 'theirs'}]}"

    with pytest.raises(BenchError, match=r"another program answers on port \d+: .*theirs"):
        sampled(model, other)


def test_a_port_that_was_taken_is_given_up_for_the_next(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        free = module._free_port
        ports = iter([taken.getsockname()[1], free()])
        monkeypatch.setattr(module, "_free_port", lambda: next(ports))

        assert sampled(model).returned == 2
        assert list(ports) == []


def test_an_exception_in_the_context_ends_the_server(model: Path) -> None:
    fake(model.parent, "llama-server", SERVER.format(before=""))

    with pytest.raises(KeyboardInterrupt), serve(model, llama=Llama(model.parent)):
        signal.raise_signal(signal.SIGINT)

    assert gone(pid_of(model))


def test_an_endless_log_ends_it(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MAX_LOG", 10_000)
    with pytest.raises(BenchError, match="wrote more than 10000 bytes of log"):
        sampled(model, "print('>' * 20000, flush=True)\ndef answer(path, body): return 503, {}", timeout=60)


def test_a_named_log_is_kept(model: Path) -> None:
    log = model.parent / "server.log"
    fake(model.parent, "llama-server", SERVER.format(before="print('hello', flush=True)"))

    with serve(model, llama=Llama(model.parent), log=log) as server:
        assert server.port > 0

    assert log.read_text() == "hello\n"


def test_proxies_are_not_asked(model: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")

    assert sampled(model).returned == 2


@pytest.mark.llama
@pytest.mark.models
def test_the_real_one_takes_text_or_token_ids(zoo: Path, tinymoe: Path, llama: Path) -> None:
    with serve(zoo / "qwen3moe.gguf", ctx=64, llama=Llama(llama)) as server:
        sample = server.sample([1, 2, 3], 4)
    assert (sample.prompt_tokens, sample.returned, len(sample.tokens)) == (3, 4, 4)
    assert sample.per_second is not None

    with serve(tinymoe, ctx=128, llama=Llama(llama)) as server:
        first, again = (server.sample("It is a truth universally", 8) for _ in range(2))
    assert first.text == again.text
    assert first.text.strip()
    assert again.prompt_tokens == first.prompt_tokens, "the second prompt is processed too, not taken from a cache"
