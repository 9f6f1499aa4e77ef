"""The model folders that the strangers of tests/gpu run on: no two weights alike, and made once whoever asks first."""

import fcntl
import importlib.util
from pathlib import Path

import pytest

pytest.importorskip("torch")
safetensors = pytest.importorskip("safetensors.torch")

PATH = Path(__file__).resolve().parents[1] / "gpu" / "strangers" / "checkpoint.py"
TINY = dict(hidden=64, inner=96, heads=4, key_value_heads=2, layers=3, vocabulary=128)


@pytest.fixture(scope="module")
def checkpoint():
    spec = importlib.util.spec_from_file_location("strangers_checkpoint", PATH)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def weights_of(folder):
    return {
        key: weight
        for file in folder.glob("*.safetensors")
        for key, weight in safetensors.load_file(file).items()
    }


def test_no_two_weights_begin_with_the_same_numbers_and_the_index_names_all(
    checkpoint, tmp_path, monkeypatch
):
    monkeypatch.setenv("GPU_CASES_CACHE", str(tmp_path))
    folder = checkpoint.llama("tiny", **TINY)
    weights = weights_of(folder)
    assert len(weights) == 3 + 9 * TINY["layers"]
    beginnings = {tuple(weight.flatten()[:64].tolist()) for weight in weights.values()}
    assert len(beginnings) == len(weights)
    assert checkpoint.weights_bytes(folder) == sum(weight.nbytes for weight in weights.values())


def test_numbers_larger_than_the_pool_go_on_where_it_began(checkpoint, monkeypatch):
    import torch

    monkeypatch.setattr(checkpoint, "POOL_ELEMENTS", 1000)
    pool = checkpoint.Pool()
    weight = pool.fill("w", torch.empty(50, 70, dtype=torch.bfloat16)).flatten()
    assert torch.equal(weight[:1000], weight[1000:2000]) and torch.equal(weight[:500], weight[3000:])
    assert not torch.equal(weight[:500], weight[500:1000])


def test_who_makes_a_folder_is_alone_and_makes_it_once(checkpoint, tmp_path, monkeypatch):
    monkeypatch.setenv("GPU_CASES_CACHE", str(tmp_path))
    makers = []

    def make(folder):
        # Another opening of the file stands for another process.
        with (tmp_path / "one.lock").open() as file, pytest.raises(BlockingIOError):
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        makers.append(folder)

    assert checkpoint.made("one", make) == checkpoint.made("one", make) == tmp_path / "one"
    assert len(makers) == 1
