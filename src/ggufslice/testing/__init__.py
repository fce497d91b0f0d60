"""Models and servers to test with: synthetic GGUF files, and loopback servers that misbehave on request.

For unit tests of recipes and of tools built on ggufslice. Bytes are packed here with `struct` alone, not by ggufslice's
own encoder, so they are an independent truth to compare with:

>>> import struct
>>> from ggufslice import testing
>>> metadata, tensors = testing.synthetic(layers=2, experts=4)
>>> file = testing.build_gguf(metadata, tensors)
>>> struct.unpack("<4sIQQ", file[:24]) == (b"GGUF", 3, len(tensors), len(metadata))
True
>>> experts = next(tensor for tensor in tensors if tensor.name == "blk.1.ffn_up_exps.weight")
>>> slab = experts.n_bytes // 4  # one expert's part: the outermost axis
>>> file.count(experts.tobytes()[2 * slab : 3 * slab])
1

and the same behind HTTP, where a fault in the path makes the server drop the first three replies after 1000 bytes:

>>> from urllib.request import Request, urlopen
>>> with testing.RangeServer({"model.gguf": file}) as server:
...     with urlopen(Request(server.url("model.gguf"), headers={"Range": "bytes=0-3"})) as reply:
...         reply.status, reply.read()
...     flaky = server.url("~cut:n=1000,times=3/model.gguf")
...     [(request.method, request.range, request.status) for request in server.requests]
(206, b'GGUF')
[('GET', (0, 3), 206)]

========================================================== =========================================================
`Typed`, `TensorSpec`                                      a metadata value with its type; a tensor
`build_gguf`, `split_gguf`, `write_shards`, `write_sparse` bytes, shards' bytes, shards as files, a file of holes
`synthetic`, `kimi_k3`                                     metadata and tensors of whole models
`RangeServer`, `HubServer`                                 servers; their faults: `ggufslice.testing.server`
`ggufslice.testing.strategies`                             hypothesis strategies (needs the extra ``testing``)
========================================================== =========================================================
"""

from __future__ import annotations

from ggufslice.testing._build import build_gguf, split_gguf, write_shards, write_sparse
from ggufslice.testing._http import Request
from ggufslice.testing._hub import HubServer
from ggufslice.testing._models import kimi_k3, synthetic
from ggufslice.testing._server import RangeServer
from ggufslice.testing._specs import TensorSpec, Typed

__all__ = [
    "HubServer",
    "RangeServer",
    "Request",
    "TensorSpec",
    "Typed",
    "build_gguf",
    "kimi_k3",
    "split_gguf",
    "synthetic",
    "write_shards",
    "write_sparse",
]
