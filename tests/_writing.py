"""What tests of writing share: options that don't wait, and checks that every result has to pass."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from gguf import GGUFReader

from ggufslice.io.options import TransferOptions

if TYPE_CHECKING:
    from pathlib import Path

    from ggufslice.accounting import Transfer
    from ggufslice.receipt import Receipt

QUICK = TransferOptions(
    split_size=1 << 16,
    min_split=1 << 14,
    attempts=3,
    backoff=0.001,
    backoff_max=0.002,
    max_wait=5,
    read_timeout=0.5,
    connect_timeout=2,
)
"""Small requests, so that small files take several, and no patience."""


def check_accounts(receipt: Receipt) -> Transfer:
    """Check that all bytes of a receipt are accounted for, and return its transfer."""
    assert receipt.metadata_bytes + receipt.padding_bytes + receipt.tensor_bytes == receipt.file_bytes
    transfer = receipt.transfer
    assert transfer is not None
    assert transfer.payload + transfer.gap + transfer.header + transfer.wasted == transfer.received
    assert all(s.payload + s.gap + s.header + s.wasted == s.received for s in transfer.sources)
    return transfer


def tensors_of(*paths: Path) -> dict[str, bytes]:
    """Return the stored bytes of all tensors, as gguf-py reads them."""
    return {t.name: np.ascontiguousarray(t.data).tobytes() for path in paths for t in GGUFReader(path).tensors}


def leftovers(folder: Path) -> list[str]:
    """Return the names of files that only an unfinished write has."""
    return sorted(path.name for path in folder.iterdir() if ".part" in path.name)


def names(folder: Path) -> list[str]:
    """Return the names of all files in a folder, sorted."""
    return sorted(path.name for path in folder.iterdir())
