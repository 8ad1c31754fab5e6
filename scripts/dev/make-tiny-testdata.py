#!/usr/bin/env python3
"""Makes testdata/golden/tiny from the complete goldens: the models that tests run everywhere, and of their arrays what
no other array of theirs covers. golden_complete runs all of them from a folder that HETERO_GOLDEN_DIR names.

usage: make-tiny-testdata.py COMPLETE_DIR   (needs numpy and safetensors; then: scripts/check-testdata.sh --write)
"""
import pathlib
import shutil
import sys

import numpy
from safetensors import safe_open
from safetensors.numpy import save_file

# The bf16 models of all families; f32 of one that is dense and of one with latents, and GGUF for one with experts.
FOLDERS = [f"{name}/bf16" for name in (
    "llama", "llama3_rope", "qwen2", "qwen3", "mistral_swa", "gemma2", "gemma3_text", "phi3", "gpt_neox", "mixtral",
    "qwen3_moe", "deepseek_v2", "deepseek_v3")] + ["llama/f32", "deepseek_v2/f32"]
GOLDENS_ONLY = ["mixtral/f32"]  # of gguf/mixtral-f32.gguf
GGUFS = ["llama-f32", "llama-q8_0", "llama3_rope-f16", "qwen2-q8_0", "qwen3-q4_0", "mixtral-f32"]


def kept_positions(length):
    """All of short prompts; of long ones every eighth and the last eight."""
    if length <= 33:
        return list(range(length))
    return [i for i in range(length) if i % 8 == 0 or i >= length - 8]


def trim(source, target):
    arrays = {}
    with safe_open(source, "np") as golden:
        names = set(golden.keys())
        for name in names:
            prompt, _, part = name.partition(".")
            latent = f"{prompt}.mla_ckv.0" in names
            if part.startswith("greedy_top8") or (latent and part.split(".")[0] in ("k", "v")):
                continue
            arrays[name] = golden.get_tensor(name)
    for name in [n for n in arrays if n.endswith(".logits")]:
        positions = kept_positions(len(arrays[name]))
        if len(positions) < len(arrays[name]):
            arrays[name] = numpy.ascontiguousarray(arrays[name][positions])
            arrays[name.replace("logits", "logit_positions")] = numpy.array(positions, numpy.int32)
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(arrays, target)


def main():
    if len(sys.argv) != 2:
        sys.exit(__doc__)
    complete = pathlib.Path(sys.argv[1])
    out = pathlib.Path(__file__).resolve().parents[2] / "testdata/golden/tiny"
    shutil.rmtree(out)
    for folder in FOLDERS:
        for file in sorted((complete / folder).iterdir()):
            target = out / folder / file.name
            target.parent.mkdir(parents=True, exist_ok=True)
            if file.name.startswith("tokenizer") and not folder.startswith("llama/"):
                continue  # testdata/tokenizer has them
            if file.name == "golden.safetensors":
                trim(file, target)
            else:
                shutil.copyfile(file, target)
    for folder in GOLDENS_ONLY:
        trim(complete / folder / "golden.safetensors", out / folder / "golden.safetensors")
    for name in GGUFS:
        (out / "gguf").mkdir(exist_ok=True)
        shutil.copyfile(complete / "gguf" / f"{name}.gguf", out / "gguf" / f"{name}.gguf")
        golden = complete / "gguf" / f"{name}.golden.safetensors"
        if golden.exists():
            trim(golden, out / "gguf" / golden.name)


main()
