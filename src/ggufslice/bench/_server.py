"""Run llama-server for as long as a context lasts, and take a sample from it."""

from __future__ import annotations

import contextlib
import http.client
import json
import math
import re
import secrets
import socket
import subprocess
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import attrs

from ggufslice.bench._binaries import Llama
from ggufslice.bench._process import diagnose, group, tail
from ggufslice.errors import BenchError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from os import PathLike

__all__ = ["Sample", "Server", "serve"]

_HOST = "127.0.0.1"
_PORTS_TRIED = 3
_MAX_LOG = 64 << 20
_MAX_REPLY = 16 << 20
_STEP = 0.05
_MOMENT = 5.0
_BIND_FAILED = re.compile(r"couldn't bind|address already in use", re.IGNORECASE)


@attrs.frozen
class Sample:
    """Text that a model went on with.

    Parameters
    ----------
    prompt
        The text, or token ids, that it was given.
    text
        What it wrote, verbatim; bytes that aren't UTF-8 are U+FFFD, as the server sends them.
    tokens
        The token ids of `text`; empty where the server doesn't give them.
    asked, returned
        Tokens asked for, and tokens that came.
    temperature
        0 is greedy.
    stop
        Why it ended, in the server's words: ``limit``, ``eos``, ``word``.
    prompt_tokens
        Tokens of the prompt that were processed, none of them from a cache.
    prompt_per_second, per_second
        The server's timings of this request; None where it gives none that can be a speed.
    flags
        The options that the server was given.
    """

    prompt: str | list[int]
    text: str
    tokens: tuple[int, ...]
    asked: int
    returned: int
    temperature: float
    stop: str
    prompt_tokens: int
    prompt_per_second: float | None
    per_second: float | None
    flags: str = ""


@attrs.define
class Server:
    """A running llama-server of ours: made by `serve`.

    Parameters
    ----------
    port
        Where it listens, on the loopback interface alone.
    alias
        The name that it gives its model, made up for this run: what tells it from anybody else's server.
    log
        File of what it prints.
    flags
        The options that it was given.
    """

    port: int
    alias: str
    log: Path
    flags: str
    _process: subprocess.Popen[bytes]
    _timeout: float

    def sample(self, prompt: str | Sequence[int], n: int = 48, *, temperature: float = 0.0) -> Sample:
        """Let the model go on from a prompt.

        Parameters
        ----------
        prompt
            Text, or token ids.
        n
            Tokens to generate.
        temperature
            0 takes the likeliest token each time.

        Raises
        ------
        BenchError
            The server ended or answered an error, or used cached tokens, which would flatter the prompt's timing.
        """
        given = prompt if isinstance(prompt, str) else list(prompt)
        request = {
            "prompt": given,
            "n_predict": n,
            "temperature": temperature,
            "cache_prompt": False,
            "return_tokens": True,
            "stream": False,
        }
        reply = self._ask("POST", "/completion", request)
        timings = reply.get("timings") or {}
        sent = _count(reply.get("tokens_evaluated"))
        processed = _count(timings.get("prompt_n"))
        if processed < sent:
            raise BenchError(
                f"llama-server processed {processed} of the {sent} tokens of the prompt and took the others from a cache: "
                "its timings don't measure that prompt"
            )
        return Sample(
            prompt=given,
            text=str(reply.get("content", "")).encode("utf-16", "surrogatepass").decode("utf-16", "replace"),
            tokens=tuple(t for t in reply.get("tokens") or () if isinstance(t, int)),
            asked=n,
            returned=_count(reply.get("tokens_predicted")),
            temperature=temperature,
            stop=str(reply.get("stop_type", "not stated")),
            prompt_tokens=processed,
            prompt_per_second=_speed(timings.get("prompt_per_second")),
            per_second=_speed(timings.get("predicted_per_second")),
            flags=self.flags,
        )

    def _ask(self, method: str, path: str, body: Any = None) -> dict[str, Any]:
        self._check_log()
        try:
            status, text = self._http(method, path, body, self._timeout)
        except TimeoutError:
            raise BenchError(
                f"llama-server did not answer {method} {path} within {self._timeout:.0f} s. {self._tail()}"
            ) from None
        except (OSError, http.client.HTTPException) as error:
            raise BenchError(f"llama-server broke off at {method} {path} ({error}){self._epitaph()}") from None
        try:
            reply = json.loads(text)
        except json.JSONDecodeError:
            reply = None
        if status != http.HTTPStatus.OK or not isinstance(reply, dict):
            raise BenchError(f"llama-server answered {method} {path} with {status}: {text:.500}")
        return reply

    def _http(self, method: str, path: str, body: Any, timeout: float) -> tuple[int, str]:
        """Ask over a connection of its own, which knows no proxy."""
        connection = http.client.HTTPConnection(_HOST, self.port, timeout=timeout)
        try:
            data = None if body is None else json.dumps(body)
            connection.request(method, path, data, {"Content-Type": "application/json"} if data else {})
            response = connection.getresponse()
            return response.status, response.read(_MAX_REPLY).decode("utf-8", "replace")
        finally:
            connection.close()

    def _read_log(self) -> str:
        return self.log.read_text("utf-8", "replace")

    def _tail(self) -> str:
        return tail(self._read_log())

    def _check_log(self) -> None:
        if self.log.stat().st_size > _MAX_LOG:
            raise BenchError(f"llama-server wrote more than {_MAX_LOG} bytes of log. {self._tail()}")

    def _epitaph(self) -> str:
        """Say how the process ended, where it has: it may need a moment to."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(_MOMENT)
        code = self._process.returncode
        return "" if code is None else f": {diagnose('llama-server', code, self._read_log())}"

    def _wait_until_ready(self) -> None:
        """Wait for the model and let it make one token: the port opens, and some pages say 200, before it can."""
        deadline = time.monotonic() + self._timeout
        while not self._healthy():
            if self._process.poll() is not None:
                text = self._read_log()
                error = _PortTakenError if _BIND_FAILED.search(text) else BenchError
                raise error(
                    f"llama-server ended before it was ready: {diagnose('llama-server', self._process.returncode, text)}"
                )
            self._check_log()
            if time.monotonic() > deadline:
                raise BenchError(f"llama-server was not ready within {self._timeout:.0f} s. {self._tail()}")
            time.sleep(_STEP)
        status, text = self._http("GET", "/v1/models", None, self._timeout)
        if status != http.HTTPStatus.OK or self.alias not in text:
            raise _PortTakenError(f"another program answers on port {self.port}: {text:.200}")
        self._ask("POST", "/completion", {"prompt": [0], "n_predict": 1, "cache_prompt": False})

    def _healthy(self) -> bool:
        try:
            return self._http("GET", "/health", None, _MOMENT)[0] == http.HTTPStatus.OK
        except (OSError, http.client.HTTPException):
            return False


class _PortTakenError(BenchError):
    """Another program took the port between our looking for a free one and llama-server's binding it."""


@contextlib.contextmanager
def serve(
    model: str | PathLike[str],
    *,
    ngl: int = 99,
    ctx: int = 2048,
    log: str | PathLike[str] | None = None,
    llama: Llama | None = None,
    timeout: float | None = None,
) -> Iterator[Server]:
    """Serve a model on a free port of the loopback interface, until the context is left.

    Parameters
    ----------
    model
        A GGUF file; of shards, the first.
    ngl
        Layers to offload.
    ctx
        Tokens of context. Explicit, because the default is the model's own, which can be a million.
    log
        Where its output goes; None takes a temporary file. It is kept after the server's end only where it is named.
    llama
        Where the programs are.
    timeout
        Seconds until it is ready, and for each answer; None allows ten minutes, and a second for every 10 MB of the file.

    Raises
    ------
    BenchError
        llama-server is missing, ended, is not ready in time or serves something else.

    Notes
    -----
    The server's process group is killed whatever ends the context, an exception included.
    """
    llama = llama or Llama()
    path = Path(model)
    if not path.is_file():
        raise BenchError(f"{path}: no such model file")
    limit = 600 + path.stat().st_size / 1e7 if timeout is None else timeout
    program = llama.tool("llama-server")
    flags = ["-ngl", str(ngl), "-c", str(ctx), "-np", "1", "-ctk", "f16", "-ctv", "f16"]
    with tempfile.TemporaryDirectory(prefix="ggufslice-") as folder:
        log_path = Path(log) if log is not None else Path(folder) / "llama-server.log"
        with contextlib.ExitStack() as stack:
            server = _start(stack, [str(program), "-m", str(path), *flags], log_path, limit)
            yield server


def _start(stack: contextlib.ExitStack, command: list[str], log: Path, limit: float) -> Server:
    """Start on a free port; where another program takes it first, try the next."""
    attempts = _PORTS_TRIED
    while True:
        attempts -= 1
        port, alias = _free_port(), f"ggufslice-{secrets.token_hex(8)}"
        with contextlib.ExitStack() as one:
            out = one.enter_context(log.open("wb"))
            words = [*command, "--host", _HOST, "--port", str(port), "--alias", alias]
            process = one.enter_context(group(words, out, out))
            server = Server(port, alias, log, " ".join(command[3:]), process, limit)
            try:
                server._wait_until_ready()  # noqa: SLF001 - not for users
            except _PortTakenError:
                if not attempts:
                    raise
                continue
            stack.push(one.pop_all())
            return server


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind((_HOST, 0))
        return int(probe.getsockname()[1])


def _count(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


def _speed(value: Any) -> float | None:
    good = isinstance(value, int | float) and math.isfinite(value) and value > 0
    return float(value) if good else None
