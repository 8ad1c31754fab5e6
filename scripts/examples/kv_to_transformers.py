#!/usr/bin/env python3
"""Continues a hetero-kv state in Hugging Face transformers, greedily: the same tokens as hetero-decode gives.

Takes whole states whose layers hold K and V of all tokens, as f16, bf16, f32, or int8 by token or channel; others are
refused, for transformers keeps them otherwise, or because kv-quantize is what reads them.
Usage: kv_to_transformers.py MODEL STATE.h5 [N]
MODEL is a Hugging Face folder or a .gguf file (transformers widens its weights). Needs torch, transformers, h5py; a
.gguf also needs gguf. The state's file format is described in hetero-kv(5). Prints the N (default 32) new token ids.
"""
import os
import sys

import h5py
import numpy as np
import torch
from transformers import AutoModelForCausalLM, DynamicCache


def refusal(a):
    """Why this K or V is not read here; None where it is. Attributes as in hetero-kv(5)."""
    scheme, axis = a.attrs["scheme"], a.attrs.get("axis")
    if "rotation" in a.attrs or scheme.startswith("had:"):
        return f"its heads are rotated ({scheme})"
    if a.attrs.get("sinks", 0) != 0 or a.attrs.get("window", 0) != 0:
        return "its first or last tokens are kept apart (sinks, window)"
    if scheme in ("f16", "bf16", "f32") or (scheme == "int8" and axis in ("token", "channel")):
        return None
    return f"its scheme is {scheme}" + (f" along the axis {axis}" if axis else "")


def load(layer, name):
    """K or V of a layer as float32 [1][kv_head][token][head_dim], the order that transformers has."""
    a = layer[name]
    why = refusal(a)
    if why:
        sys.exit(f"{state}: {a.name}: {why}; f16, bf16, f32 and int8 by token or channel are read here: "
                 f"kv-quantize --dtype f16 {state} -o PLAIN.h5")
    x = a[...].astype(np.float32)
    if a.attrs["scheme"] == "int8":
        axis, n = (2, x.shape[2]) if a.attrs["axis"] == "token" else (0, x.shape[0])
        group = int(a.attrs["group"]) or n
        widen = lambda s: np.repeat(s[...].astype(np.float32), group, axis=axis).take(range(n), axis=axis)
        x = x * widen(layer[name + "_scale"])
        if not a.attrs["symmetric"]:
            x = x + widen(layer[name + "_zero"])
    return torch.from_numpy(np.ascontiguousarray(x.transpose(1, 0, 2)))[None]


path, state, steps = sys.argv[1], sys.argv[2], int(sys.argv[3]) if len(sys.argv) > 3 else 32
where = dict(pretrained_model_name_or_path=path)
if path.endswith(".gguf"):
    where = dict(pretrained_model_name_or_path=os.path.dirname(path) or ".", gguf_file=os.path.basename(path))
model = AutoModelForCausalLM.from_pretrained(**where, torch_dtype=torch.float32, attn_implementation="eager").eval()

with h5py.File(state) as f:
    if f.attrs["format"] != "hetero-kv" or f.attrs["schema_major"] != 1 or f.attrs["state"] != "complete":
        sys.exit(f"{state}: not a complete hetero-kv 1 state")
    if f.attrs["tp_size"] != 1:
        sys.exit(f"{state}: one shard of {f.attrs['tp_size']}; put them together first: kv-send {state} -o WHOLE.h5")
    sequence, cache = f["sequences/0000"], DynamicCache()
    for l in range(f.attrs["n_layers"]):
        layer = sequence[f"layers/{l:03}"]
        kind, first = layer.attrs["kind"], layer.attrs["first_token"]
        if kind == "mla" or first != 0:
            what = "latent and RoPE key" if kind == "mla" else f"tokens from {first} on"
            sys.exit(f"{state}: layer {l} is of kind {kind} and holds the {what}; K and V of all tokens are needed")
        cache.update(load(layer, "k"), load(layer, "v"), l)
    token = int(sequence.attrs["pending_token"])
    if token < 0:
        token = int(np.argmax(sequence["logits"][...]))

tokens = [token]
with torch.no_grad():
    while len(tokens) < steps:
        logits = model(input_ids=torch.tensor([[tokens[-1]]]), past_key_values=cache, use_cache=True).logits
        tokens.append(int(logits[0, -1].argmax()))
print(*tokens)
