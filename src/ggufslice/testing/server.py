"""Loopback servers for tests: byte ranges, a log of requests, and faults; ``python -m ggufslice.testing.server DIR``.

A path may start with faults, ``~name`` or ``~name:parameter=value,parameter=value``, as many as wanted, and siblings
in the same folder share them: ``server.url("~sign:uses=2/~cut:n=1000,times=3/model-00001-of-00003.gguf")``. What a
fault does not say is done as by a good server: strong ETags, If-Match, If-Range, single ranges, kept connections.

Every fault takes ``after=K`` (the first K requests are answered well) and ``times=N`` (and those after the N faulty
ones too). Requests are counted for each server, path and fault; a fault that only changes replies' ranges and bodies
counts GETs alone, and only those that it could act on. Faults act in the order of the path; one that answers in the
content's place (`status`, `redirect` and so on) keeps those behind it from seeing the request.

================================================== =========================================================================
instead of the content
`status:code=503,retry_after=1,form=seconds`       That status. `retry_after` adds a header, in the `form` ``seconds``,
                                                   ``date`` (of Retry-After) or ``ratelimit`` (``RateLimit: "…";r=0;t=1``).
                                                   A 416 says the size.
`auth:token=T`                                     401 without ``Authorization: Bearer T``.
`no-head:code=405`                                 HEAD is refused.
`redirect:to=same,code=302`                        To the path behind, on this origin (``same``: an absolute URL,
                                                   ``relative``: a path) or the ``other`` one.
`sign:uses=0,seconds=3600,style=expires,to=other`  To a signed link to the path behind, on the other origin if there is one,
                                                   or ``to=same``. Good for `seconds` of the server's clock (see
                                                   `RangeServer.advance`) and, when not 0, so many `uses`; then it is a
                                                   403. `style` is ``expires`` (CloudFront) or ``amz`` (S3).
`signed:uses=0`                                    Where such links lead: 403 when expired, used up or changed in any
                                                   character, 400 when there is an Authorization header too.
the content
`new-etag`                                         Another ETag, the same bytes.
`swap:etag=new`                                    Other bytes of the same size (all bits inverted), with another ETag, or
                                                   ``etag=keep``.
`weak-etag`, `no-etag:modified=yes`                A weak ETag; none (and ``modified=no``: no Last-Modified).
`gzip:always=no,ranges=yes`                        Compressed when Accept-Encoding allows it, or ``always=yes``; ranges are
                                                   of the compressed bytes, or ``ranges=no``: ignored.
`ignore-range:above=0`                             200 and everything, for ranges longer than `above`.
the range of a 206
`shift:by=-1`                                      Another range than asked, and the headers say so.
`cap:n=1048576`                                    At most so many bytes of the range, and the headers say so.
`whole-206`                                        The whole file, as a 206.
`multipart`                                        ``multipart/byteranges`` with one part.
`no-content-range`                                 Without Content-Range.
`wrong-total:add=1`, `unknown-total`               Content-Range with another size, or with ``*``.
the body
`cut:n=0,length=yes`                               The connection closes after `n` bytes. ``length=no``: there was no
                                                   Content-Length to tell.
`overlong:by=1,length=yes`                         So many bytes too many, with a Content-Length that counts them, or none.
`reset:n=0`                                        The connection is reset after about `n` bytes (it may overtake the last).
`stall:n=0`                                        Nothing comes after `n` bytes, and the connection stays open.
`drip:n=1,every=1.0`                               `n` bytes, a pause of so many seconds, and so on.
`rate:bytes_per_s=30000000`                        No faster than this on each connection.
`chunked`                                          Chunked, without Content-Length.
================================================== =========================================================================
"""

from __future__ import annotations

import argparse
import sys
import threading

from ggufslice.testing._http import Request
from ggufslice.testing._hub import HubServer
from ggufslice.testing._server import RangeServer

__all__ = ["HubServer", "RangeServer", "Request", "main"]


def main(argv: list[str] | None = None) -> int:
    """Serve a folder until Ctrl-C.

    Parameters
    ----------
    argv
        Arguments, without the program's name; None takes the process's.

    Returns
    -------
    int
        The exit code: 0, or 1 when the folder or the port can't be used.
    """
    parser = argparse.ArgumentParser("python -m ggufslice.testing.server", description="Serve a folder with byte ranges.")
    parser.add_argument("folder", metavar="DIR", help="the folder to serve")
    parser.add_argument(
        "--port", type=int, default=8000, help="port on 127.0.0.1; 0 takes a free one (default: %(default)s)"
    )
    arguments = parser.parse_args(argv)
    try:
        with RangeServer(arguments.folder, port=arguments.port) as server:
            sys.stdout.write(f"{server.url()}\n")
            sys.stdout.flush()
            threading.Event().wait()
    except KeyboardInterrupt:
        return 0
    except OSError as error:
        sys.stderr.write(f"{arguments.folder}: {error}\n")
        return 1
    return 0  # pragma: no cover - the wait has no other end


if __name__ == "__main__":
    sys.exit(main())
