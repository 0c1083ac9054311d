"""A checkpoint is whole, ours and of this model, or it is refused; a failed write leaves the old one."""

import errno

import pytest
import torch
from safetensors.torch import save_file

from torchcaps import CapsNet
from torchcaps.train.checkpoint import load_checkpoint, load_into, save_checkpoint

SMALL = {"channels": 8, "kernel": 5, "n_types": 2, "primary_kernel": 5, "hidden": (8, 8)}


@pytest.fixture
def written(tmp_path):
    path = tmp_path / "checkpoint.safetensors"
    save_checkpoint(path, {"model/w": torch.arange(1000.0), "step/counter": torch.tensor(7)}, {"step": 7})
    return path


def test_what_was_written_comes_back(written):
    found = load_checkpoint(written)
    assert found.about == {"step": 7}
    assert torch.equal(found.part("model")["w"], torch.arange(1000.0))
    assert found.part("step")["counter"] == 7


def test_channels_last_tensors_are_stored_by_value(tmp_path):
    tensor = torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last)
    save_checkpoint(tmp_path / "c", {"t": tensor}, {})
    assert torch.equal(load_checkpoint(tmp_path / "c").tensors["t"], tensor)


def test_a_missing_one_says_who_writes_it(tmp_path):
    with pytest.raises(ValueError, match=r"no checkpoint at .*; `torchcaps train"):
        load_checkpoint(tmp_path / "nothing")


@pytest.mark.parametrize("keep", [0, 5, 300, -1])
def test_a_truncated_one_is_refused(written, keep):
    written.write_bytes(written.read_bytes()[:keep])
    with pytest.raises(ValueError, match="is not a whole checkpoint"):
        load_checkpoint(written)


def test_a_single_flipped_bit_is_noticed_wherever_it_is(written):
    content = written.read_bytes()
    for place in [*range(0, 400, 7), len(content) // 2, len(content) - 3]:
        flipped = bytearray(content)
        flipped[place] ^= 4
        written.write_bytes(flipped)
        with pytest.raises(
            ValueError,
            match=rf"{written} (is damaged|is not a whole checkpoint|is a safetensors file of something else)",
        ):
            load_checkpoint(written)


def test_a_foreign_safetensors_file_is_refused(tmp_path):
    save_file({"w": torch.zeros(2)}, tmp_path / "other.safetensors")
    with pytest.raises(ValueError, match="has no torchcaps header"):
        load_checkpoint(tmp_path / "other.safetensors")


@pytest.mark.parametrize("change", [{"d_class": 4}, {"reconstruction": False}])
def test_the_weights_of_another_model_are_refused_and_none_is_copied(change):
    model, other = CapsNet((1, 16, 16), **SMALL), CapsNet((1, 16, 16), **SMALL | change)
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with pytest.raises(ValueError, match="somewhere is a checkpoint of another model: "):
        load_into(model, other.state_dict(), "somewhere")
    assert all(torch.equal(tensor, before[name]) for name, tensor in model.state_dict().items())


@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EACCES])
def test_a_full_disk_leaves_the_old_one(written, monkeypatch, code):
    def full(file):
        raise OSError(code, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match=r"could not write the checkpoint .*the previous checkpoint .* is untouched"):
        save_checkpoint(written, {"model/w": torch.zeros(3)}, {"step": 8})
    assert load_checkpoint(written).about == {"step": 7}
    assert [path.name for path in written.parent.iterdir()] == [written.name]
