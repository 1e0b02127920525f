"""The small MTP model on disk: made on first use, checked on every later one, never found half written.

``ensure_model(directory)`` is all that callers need. The folder is an ordinary Hugging Face checkpoint in MiMo's
layout (the draft head inside the target's safetensors file, no remote code) plus one manifest of ours, which records
the recipe and the sha256 of every file.
"""

from __future__ import annotations

import errno
import hashlib
import json
import shutil
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any

from filelock import FileLock, Timeout
from safetensors.numpy import save

from mtpgate.engine.model_recipe import DEFAULT, Recipe
from mtpgate.engine.model_weights import build_weights
from mtpgate.engine.tokenizer import EOS_ID, IM_END_ID, PAD_ID, VOCAB_SIZE, tokenizer_files
from mtpgate.errors import InfrastructureFault, UsageError

__all__ = ["DEFAULT", "MANIFEST", "Recipe", "ensure_model"]

MANIFEST = "mtpgate-model.json"

LOCK_TIMEOUT = 120.0
"""Seconds to wait for another process that is making the same model; making it takes about 3."""


def ensure_model(directory: Path, *, recipe: Recipe = DEFAULT) -> Path:
    """Return ``directory``, holding the checkpoint of ``recipe``; made if it is missing, damaged or of another recipe.

    Takes about 3 seconds and 370 MB for the default recipe, and half a second when the model is there. Safe to call
    from several processes at once.

    Raises:
        UsageError: the folder holds something that is not ours, or may not be written.
        InfrastructureFault: the disk is full or fails, or another process holds the lock for too long.
    """
    directory = directory.expanduser().absolute().resolve()
    try:
        directory.parent.mkdir(parents=True, exist_ok=True)
        with FileLock(f"{directory}.lock", timeout=LOCK_TIMEOUT):
            _refuse_foreign(directory)
            if not _is_whole(directory, recipe):
                _replace(directory, recipe)
    except Timeout as error:
        raise InfrastructureFault(
            f"the small model {directory} has been locked by another process for {LOCK_TIMEOUT:.0f} s "
            f"({directory}.lock); end that process and try again"
        ) from error
    except OSError as error:
        raise _explained(error, directory) from error
    return directory


def _refuse_foreign(directory: Path) -> None:
    """Never delete what somebody else put there: only a folder with our manifest, or an empty one, is replaced."""
    if directory.exists() and (
        not directory.is_dir() or (any(directory.iterdir()) and not (directory / MANIFEST).is_file())
    ):
        raise UsageError(
            f"{directory} exists and is not a model made by mtpgate (no {MANIFEST} in it); "
            "name another folder for the small model, or remove this one"
        )


def _is_whole(directory: Path, recipe: Recipe) -> bool:
    """Whether the folder is what the manifest says, to the byte, and the manifest is of this recipe."""
    try:
        manifest = json.loads((directory / MANIFEST).read_text(encoding="utf-8"))
        return bool(manifest["digest"] == recipe.digest) and all(
            _sha256(directory / name) == digest for name, digest in manifest["files"].items()
        )
    except (FileNotFoundError, ValueError, KeyError, TypeError, AttributeError):
        return False


def _replace(directory: Path, recipe: Recipe) -> None:
    prefix = f".{directory.name}.part-"
    # Under the lock these can only be leftovers of a killed run.
    for leftover in directory.parent.glob(f"{prefix}*"):
        shutil.rmtree(leftover)
    with tempfile.TemporaryDirectory(prefix=prefix, dir=directory.parent, ignore_cleanup_errors=True) as scratch:
        made = Path(scratch) / "model"
        made.mkdir()
        _write(made, recipe)
        if directory.exists():
            directory.rename(Path(scratch) / "old")
        made.rename(directory)


def _write(directory: Path, recipe: Recipe) -> None:
    contents = {name: text.encode() for name, text in tokenizer_files().items()}
    contents["config.json"] = _json(_config(recipe))
    contents["generation_config.json"] = _json(
        {"do_sample": False, "eos_token_id": [EOS_ID, IM_END_ID], "pad_token_id": PAD_ID}
    )
    contents["model.safetensors"] = save(build_weights(recipe), metadata={"format": "pt"})
    for name, content in contents.items():
        (directory / name).write_bytes(content)
    digests = {name: hashlib.sha256(content).hexdigest() for name, content in sorted(contents.items())}
    (directory / MANIFEST).write_bytes(_json({"digest": recipe.digest, "recipe": asdict(recipe), "files": digests}))


def _config(recipe: Recipe) -> dict[str, Any]:
    return {
        "architectures": ["MiMoForCausalLM"],
        "model_type": "qwen2",
        "num_nextn_predict_layers": 1,
        "vocab_size": VOCAB_SIZE,
        "hidden_size": recipe.hidden_size,
        "intermediate_size": recipe.intermediate_size,
        "num_hidden_layers": recipe.num_hidden_layers,
        "num_attention_heads": recipe.num_attention_heads,
        "num_key_value_heads": recipe.num_key_value_heads,
        "max_position_embeddings": recipe.max_position_embeddings,
        "rms_norm_eps": recipe.rms_norm_eps,
        "rope_theta": recipe.rope_theta,
        "hidden_act": "silu",
        "attention_dropout": 0.0,
        "tie_word_embeddings": False,
        "use_sliding_window": False,
        "use_cache": True,
        "bos_token_id": None,
        "eos_token_id": EOS_ID,
        "pad_token_id": PAD_ID,
        "torch_dtype": "float32",
    }


def _json(value: object) -> bytes:
    return (json.dumps(value, indent=2) + "\n").encode()


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _explained(error: OSError, directory: Path) -> UsageError | InfrastructureFault:
    what = f"cannot make the small model in {directory}: {error.strerror or error}"
    if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.ENAMETOOLONG):
        return UsageError(f"{what}; name a folder that can be written")
    if error.errno in (errno.ENOSPC, errno.EDQUOT):
        return InfrastructureFault(f"{what}; it needs about 0.4 GB, free some space or name another folder")
    return InfrastructureFault(what)
