"""``ggufslice demo``: the whole way in seconds, without a network, a download or another program."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated

import typer

import ggufslice as gs
from ggufslice.cli.console import note, progress_bar, result
from ggufslice.testing import RangeServer, kimi_k3, write_shards
from ggufslice.units import bytes_text

if TYPE_CHECKING:
    from ggufslice.receipt import Receipt

__all__ = ["register"]

SHARDS = 14
KEPT_LAYERS, KEPT_EXPERTS, USED = 12, 16, 2
KIB = 1 << 10


def register(app: typer.Typer) -> None:
    """Add the command."""
    app.command()(demo)


def demo(*, as_json: Annotated[bool, typer.Option("--json", help="Print the receipt as JSON.")] = False) -> None:
    """Cut a synthetic model of Kimi-K3's shape, served from this machine, and print the receipt."""
    with TemporaryDirectory(prefix="ggufslice-demo-") as name:
        folder = Path(name)
        note(f"making a synthetic mixture of experts in {SHARDS} shards: 93 layers of 896 experts, very narrow")
        shards = write_shards(folder, "Kimi-K3-synthetic", *kimi_k3(width=16, vocab=512), SHARDS)
        with RangeServer(folder) as server:
            made = _cut(server, shards[0].name, folder / "cut.gguf", quiet=as_json)
        if as_json:
            result(made.to_json())
        else:
            result(f"$ ggufslice receipt cut.gguf\n{gs.Receipt.of(folder / 'cut.gguf')}")


def _cut(server: RangeServer, shard: str, out: Path, *, quiet: bool) -> Receipt:
    def show(command: str, text: object) -> None:
        if not quiet:
            typer.echo(f"$ ggufslice {command}\n{text}\n")

    url, cut = server.url(shard), f"--experts {KEPT_EXPERTS} --expert-used {USED} --layers {KEPT_LAYERS}"
    # An expert of a model this narrow has 96 bytes in a tensor, not megabytes: what is worth reading at once is as small.
    options = gs.TransferOptions(max_gap=KIB, header_first=16 * KIB, header_next=16 * KIB)
    with gs.open(url, options=options) as model, progress_bar() as bar:
        show(f"inspect {url}", model)
        view = model.pipe(gs.select_experts(KEPT_EXPERTS), gs.set_expert_used(USED), gs.keep_layers(range(KEPT_LAYERS)))
        show(f"plan {url} {cut}", view.plan())
        receipt = view.write(out, progress=bar)
    sent = f"{len(server.requests)} replies of the server had {bytes_text(server.bytes_sent)}, all headers included"
    show(f"build {url} {out.name} {cut}", f"{out.name} has {bytes_text(out.stat().st_size)}; {sent}")
    return receipt
