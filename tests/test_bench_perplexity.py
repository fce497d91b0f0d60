"""llama-perplexity: results that are numbers, and results that aren't there."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from _fakes import fake
from ggufslice import BenchError
from ggufslice.bench import Divergence, Llama, Perplexity, kl_divergence, perplexity, quantize

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def model(tmp_path: Path) -> Path:
    path = tmp_path / "model.gguf"
    path.write_bytes(b"GGUF")
    (tmp_path / "text.txt").write_text("a text")
    return path


def measured(model: Path, body: str, **options: Any) -> Perplexity:
    fake(model.parent, "llama-perplexity", body)
    return perplexity(model, model.parent / "text.txt", llama=Llama(model.parent), **options)


def test_the_final_estimate(model: Path) -> None:
    body = (
        "print('[1]205.1286,[2]171.6809,')\n"
        "print('0.01 I Final estimate: PPL = 171.6809 +/- 13.82486', file=sys.stderr)\n"
        f"open({str(model.parent / 'words')!r}, 'w').write(' '.join(sys.argv[1:]))"
    )

    made = measured(model, body, ctx=256, chunks=2)

    assert made == Perplexity(171.6809, 13.82486, 256, 2, "text.txt")
    text = model.parent / "text.txt"
    assert (model.parent / "words").read_text() == f"-m {model} -f {text} -c 256 -ngl 99 --chunks 2"


@pytest.mark.parametrize(
    "body",
    [
        "print('[1]nan,[2]nan,')\nprint('Unexpected negative standard deviation of log(prob)', file=sys.stderr)",
        "print('[1]nan,[2]nan,')\nprint('Final estimate: PPL = nan +/- nan', file=sys.stderr)",
        "print('[1]3.0,[2]inf,')\nprint('Final estimate: PPL = inf +/- -nan', file=sys.stderr)",
    ],
)
def test_no_number_is_none(model: Path, body: str) -> None:
    made = measured(model, body)

    assert (made.value, made.error, made.chunks) == (None, None, 2)


def test_a_text_that_is_too_short_is_an_error_though_the_program_says_0(model: Path) -> None:
    said = "E perplexity: you need at least 1024 tokens to evaluate perplexity with a context of 512"

    with pytest.raises(BenchError, match=f"gave no perplexity of .*\n{said}"):
        measured(model, f"print({said!r}, file=sys.stderr)")


ANNOUNCED = "print('calculating perplexity over 2 chunks, n_ctx=512', file=sys.stderr)\n"


def test_a_lost_last_line_is_made_up_for_by_the_last_step(model: Path) -> None:
    made = measured(model, ANNOUNCED + "print('[1]205.1286,[2]171.6809,')")

    assert (made.value, made.error, made.chunks) == (171.6809, None, 2)


def test_a_run_whose_steps_are_lost_too_is_done_again(model: Path) -> None:
    body = ANNOUNCED + (
        f"tries = {str(model.parent / 'tries')!r}\n"
        "open(tries, 'a').write('x')\n"
        "print('[1]205.1286,' + ('[2]171.6809,' if len(open(tries).read()) == 3 else ''))"
    )

    assert measured(model, body).value == 171.6809
    with pytest.raises(BenchError, match="gave no perplexity"):
        measured(model, ANNOUNCED + "print('[1]205.1286,')")


def test_the_last_row_of_the_table_makes_up_for_lost_statistics(model: Path) -> None:
    row = "   2  171.6809 ±  22.5321   1.89194 ±  0.12094   1.84496 ±  0.08177  38.125 ±  2.390 %  24.409 ±  2.701 %"
    body = (
        "if '--kl-divergence' not in sys.argv: open(sys.argv[sys.argv.index('--kl-divergence-base') + 1], 'w')\n"
        f"else: print('computing over 2 chunks'); print({row!r})"
    )
    fake(model.parent, "llama-perplexity", body)

    made = kl_divergence(model, model, model.parent / "text.txt", llama=Llama(model.parent))

    assert made == Divergence(1.84496, 0.08177, 24.409 / 100)


def test_failures(model: Path) -> None:
    with pytest.raises(BenchError, match=r"llama-perplexity of .*model\.gguf failed: .*gave up \(return code 1\)"):
        measured(model, "sys.exit(1)")
    with pytest.raises(BenchError, match=r"none\.txt: no such file"):
        perplexity(model, model.parent / "none.txt", llama=Llama(model.parent))


def test_divergence_without_a_reference_or_a_result(model: Path) -> None:
    def diverged(body: str) -> None:
        fake(model.parent, "llama-perplexity", body)
        kl_divergence(model, model, model.parent / "text.txt", llama=Llama(model.parent))

    with pytest.raises(BenchError, match="wrote no probabilities"):
        diverged("pass")
    with pytest.raises(BenchError, match="gave no KL divergence"):
        diverged("open(sys.argv[sys.argv.index('--kl-divergence-base') + 1], 'w')")


@pytest.mark.llama
@pytest.mark.models
def test_the_real_one(tinymoe: Path, llama: Path, tmp_path: Path) -> None:
    text, programs = tinymoe.with_name("heldout.txt"), Llama(llama)
    quantize(tinymoe, tmp_path / "q1.gguf", "Q1_0", llama=programs)

    whole = perplexity(tinymoe, text, ctx=256, chunks=4, llama=programs)
    coarse = perplexity(tmp_path / "q1.gguf", text, ctx=256, chunks=4, llama=programs)
    apart = kl_divergence(tmp_path / "q1.gguf", tinymoe, text, ctx=256, chunks=4, llama=programs)
    same = kl_divergence(tinymoe, tinymoe, text, ctx=256, chunks=4, llama=programs)

    assert whole.value is not None
    assert coarse.value is not None
    assert whole.value < 60 < coarse.value
    assert whole.chunks == 4
    assert apart.mean is not None
    assert apart.mean > 0.5
    assert same.mean == pytest.approx(0, abs=1e-4)
    assert (same.same_top or 0) > 0.99
