"""The small model's folder: deterministic, complete, remade when it is not what was asked, never somebody else's."""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
from filelock import FileLock

from mtpgate.engine import model
from mtpgate.engine.model import MANIFEST, ensure_model
from mtpgate.engine.model_recipe import DEFAULT, Recipe
from mtpgate.engine.model_weights import build_weights
from mtpgate.errors import InfrastructureFault, UsageError

TINY = Recipe(hidden_size=384, num_hidden_layers=2, intermediate_size=64, num_attention_heads=6, num_key_value_heads=2)
TINY_WEIGHTS = "b508ddc43ac5d49c1eef69b4fb002eaff8d13f58d4a3fa9e19cf334c11843846"


def contents(directory: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in directory.iterdir()}


def test_the_same_recipe_gives_the_same_bytes(tmp_path: Path) -> None:
    assert contents(ensure_model(tmp_path / "a", recipe=TINY)) == contents(ensure_model(tmp_path / "b", recipe=TINY))


def test_the_bytes_are_the_recorded_ones() -> None:
    digest = hashlib.sha256()
    for name, tensor in sorted(build_weights(TINY).items()):
        digest.update(name.encode() + tensor.tobytes())
    assert digest.hexdigest() == TINY_WEIGHTS, (
        "the code makes other weights than it did: raise WEIGHTS_VERSION so that existing models are made anew, "
        "check the figures in model_recipe, and record the new digest here"
    )


def test_another_seed_gives_other_weights_and_another_digest() -> None:
    other = replace(TINY, seed=2)
    assert (build_weights(other)["lm_head.weight"] != build_weights(TINY)["lm_head.weight"]).any()
    assert other.digest != TINY.digest


def test_a_finished_model_is_not_made_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = ensure_model(tmp_path / "model", recipe=TINY)
    monkeypatch.setattr(model, "_write", lambda *_: pytest.fail("made again"))
    assert ensure_model(tmp_path / "model", recipe=TINY) == folder


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
@pytest.mark.parametrize("damage", ["gone", "one bit"])
def test_a_damaged_model_is_made_anew(tmp_path: Path, name: str, damage: str) -> None:
    folder = ensure_model(tmp_path / "model", recipe=TINY)
    whole = contents(folder)
    if damage == "gone":
        (folder / name).unlink()
    else:
        data = bytearray((folder / name).read_bytes())
        data[-1] ^= 1
        (folder / name).write_bytes(data)
    assert contents(ensure_model(folder, recipe=TINY)) == whole


def test_an_unreadable_manifest_makes_the_model_anew(tmp_path: Path) -> None:
    folder = ensure_model(tmp_path / "model", recipe=TINY)
    whole = contents(folder)
    (folder / MANIFEST).write_text('{"digest": ', encoding="utf-8")
    assert contents(ensure_model(folder, recipe=TINY)) == whole


def test_another_recipe_replaces_the_model(tmp_path: Path) -> None:
    folder = ensure_model(tmp_path / "model", recipe=TINY)
    ensure_model(folder, recipe=replace(TINY, num_hidden_layers=3))
    assert json.loads((folder / "config.json").read_text(encoding="utf-8"))["num_hidden_layers"] == 3


def test_a_killed_run_leaves_no_model_and_its_remains_are_cleared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "model"
    remains = tmp_path / ".model.part-killed"

    def killed(directory: Path, _: Recipe) -> None:
        shutil.copytree(directory.parent, remains)  # what TemporaryDirectory cannot remove after SIGKILL
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(model, "_write", killed)
        ensure_model(folder, recipe=TINY)
    assert not folder.exists()
    assert remains.exists()
    ensure_model(folder, recipe=TINY)
    assert {path.name for path in tmp_path.iterdir()} == {"model", "model.lock"}


def test_a_folder_of_somebody_else_is_refused_and_left_alone(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UsageError, match="not a model made by mtpgate"):
        ensure_model(tmp_path, recipe=TINY)
    assert (tmp_path / "config.json").read_text(encoding="utf-8") == "{}"


def test_a_file_in_the_way_is_refused(tmp_path: Path) -> None:
    (tmp_path / "model").write_text("mine", encoding="utf-8")
    with pytest.raises(UsageError, match="not a model made by mtpgate"):
        ensure_model(tmp_path / "model", recipe=TINY)


@pytest.mark.parametrize(
    ("number", "kind", "text"),
    [
        (errno.ENOSPC, InfrastructureFault, r"No space left on device; it needs about 0.4 GB"),
        (errno.EIO, InfrastructureFault, r"Input/output error$"),
        (errno.EROFS, UsageError, r"Read-only file system; name a folder that can be written"),
    ],
)
def test_a_failing_disk_is_one_clear_message(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int, kind: type[Exception], text: str
) -> None:
    def fails(*_: object) -> None:
        raise OSError(number, errno_text(number))

    monkeypatch.setattr(model, "_write", fails)
    with pytest.raises(kind, match=text) as caught:
        ensure_model(tmp_path / "model", recipe=TINY)
    assert str(tmp_path / "model") in str(caught.value)
    assert not (tmp_path / "model").exists()


def errno_text(number: int) -> str:
    return {
        errno.ENOSPC: "No space left on device",
        errno.EIO: "Input/output error",
        errno.EROFS: "Read-only file system",
    }[number]


def test_a_held_lock_is_reported_rather_than_waited_for_forever(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model, "LOCK_TIMEOUT", 0.0)
    with FileLock(tmp_path / "model.lock"), pytest.raises(InfrastructureFault, match="locked by another process"):
        ensure_model(tmp_path / "model", recipe=TINY)


def test_a_recipe_without_room_for_a_recalled_token_is_refused() -> None:
    with pytest.raises(ValueError, match="spoken dimensions"):
        Recipe(hidden_size=320, num_attention_heads=5, num_key_value_heads=1)


def test_the_head_has_the_names_that_mimo_mtp_loads() -> None:
    names = {name.removeprefix("model.mtp_layers.0.") for name in build_weights(TINY) if "mtp_layers" in name}
    block = {
        *(f"self_attn.{part}_proj.{kind}" for part in "qkv" for kind in ("weight", "bias")),
        "self_attn.o_proj.weight",
        *(f"mlp.{part}_proj.weight" for part in ("gate", "up", "down")),
        "input_layernorm.weight",
        "post_attention_layernorm.weight",
    }
    own = {"token_layernorm.weight", "hidden_layernorm.weight", "input_proj.weight", "final_layernorm.weight"}
    assert names == block | own


def test_the_default_model_is_heavy_and_its_head_light() -> None:
    """Heavy enough that a decode step is bound by memory, with a head that costs less than a tenth of it."""
    hidden, width = DEFAULT.hidden_size, DEFAULT.intermediate_size
    values = DEFAULT.num_key_value_heads * DEFAULT.head_dim
    layer = 2 * hidden * hidden + 2 * hidden * values + 3 * hidden * width
    assert 60e6 < DEFAULT.num_hidden_layers * layer < 100e6
    assert layer + 2 * hidden * hidden < 0.1 * DEFAULT.num_hidden_layers * layer
    assert DEFAULT.max_position_embeddings >= 4096
