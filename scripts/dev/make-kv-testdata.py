#!/usr/bin/env python3
"""Makes testdata/kv/v1*-h5py*.h5 with h5py and NumPy from hetero-kv(5) alone, sharing no code with hetero.

Usage: make-kv-testdata.py OUTPUT_FOLDER      (needs h5py >= 3 and numpy; the files are committed, tests do not run this)
"""
import hashlib
import json
import shutil
import struct
import sys

import h5py
import numpy as np

DIM, TOKENS, VOCAB, CHUNK = 6, 5, 20, 2


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc ^= byte
        for _ in range(8):
            crc = crc >> 1 ^ (0x82F63B78 if crc & 1 else 0)
    return crc ^ 0xFFFFFFFF


def sha(data):
    return hashlib.sha256(data).hexdigest()


def number(layer, token, head, dim):
    """What tests/unit/kv/golden.cpp expects: multiples of 1/16, exact in binary16."""
    return (layer * 97 + token * 31 + head * 17 + dim * 5) % 64 / 16 - 2


def stored(kind, window):
    """The first token that a layer of this kind stores."""
    return max(0, TOKENS - window) if kind == "swa" else 0


def make(path, layers=(("gqa", 0),) * 2, kv_heads=2, shard=None):
    """`layers`: kind and window of each. `shard`: tp_size, tp_rank, head_first, head_count."""
    n = len(layers)
    size, rank, first_head, heads = shard or (1, 0, 0, kv_heads)
    minor = int(shard is not None or any(kind != "gqa" for kind, _ in layers))
    f = h5py.File(path, "w", libver=("v110", "v110"))
    a = f.attrs
    identity = {"arch": "llama", "n_layers": n, "n_heads": 4, "n_kv_heads": kv_heads, "head_dim_k": DIM,
                "head_dim_v": DIM, "vocab_size": VOCAB, "context_length": 64, "rope_convention": "half-split"}
    digests = {name: sha(name.encode()) for name in ("arch_digest", "tokenizer_digest", "lineage", "weights_digest")}
    provenance = {"tool": "make-kv-testdata", "version": "1", "what": "by h5py"}
    a.update({"format": "hetero-kv", "schema_major": 1, "schema_minor": minor, "state": "complete", "writer": "h5py",
              "model_id": "h5py \u00b5", **identity, "rope_theta": 10000.5, "rope_scaling": "none",
              "rope_applied": np.bool_(True), **digests, "layout": "token,kv_head,head_dim", "n_sequences": 1,
              "tokens_per_chunk": CHUNK, "tp_size": size, "tp_rank": rank, "head_first": first_head,
              "head_count": heads, "layer_first": 0, "layer_count": n, "provenance": json.dumps(provenance) + "\n"})
    compat = "hetero-kv-compat 1\n" + "".join(f"{k}={v}\n" for k, v in {
        **identity, "rope_theta": struct.pack(">d", 10000.5).hex(), "rope_scaling": "none", "rope_applied": 1,
        **{k: digests[k] for k in ("arch_digest", "tokenizer_digest", "lineage")}}.items())
    a["compat_hash"] = sha(compat.encode())

    sequence = f.create_group("sequences/0000")
    sequence.attrs.update({"id": "caf\u00e9", "n_tokens": TOKENS, "next_position": TOKENS, "pending_token": 7,
                           "special_parsed": np.bool_(True)})
    tokens = np.arange(1, TOKENS + 1, dtype="<i4")
    sequence.create_dataset("tokens", data=tokens).attrs["crc32c"] = crc32c(tokens.tobytes())

    text = (f"hetero-kv-root 1\ncompat_hash={a['compat_hash']}\nmodel_id=h5py \u00b5\n"
            f"weights_digest={digests['weights_digest']}\ntokens_per_chunk={CHUNK}\nsequences=1\n"
            f"sequence=caf\u00e9\ntokens={TOKENS} {sha(tokens.tobytes())}\npending_token=7\nspecial_parsed=1\nlogits=0\n")
    text += "".join(f"k {l} codec=f16 source_dtype=f16\n" for l in range(n))
    text += "".join(f"v {l} codec=int8 axis=token group=4 symmetric=1 scale_dtype=f32 source_dtype=f32\n"
                    for l in range(n))
    text += "".join(f"layer {l} kind={kind} window={window}\n" for l, (kind, window) in enumerate(layers)
                    if kind != "gqa")
    if shard:
        text += f"shard tp_size={size} tp_rank={rank} head_first={first_head} head_count={heads}\n"
    text += "provenance=make-kv-testdata\t1\tby h5py\n"
    root = hashlib.sha256(text.encode())

    columns = ["k", "v", "k_scale", "v_scale", "k_zero", "v_zero"]
    most = max(TOKENS - stored(*layer) for layer in layers)
    table = np.zeros((n, len(columns), -(-most // CHUNK)), dtype="<u4")
    for l, (kind, window) in enumerate(layers):
        names = dict(zip(columns, columns))
        if kind == "mla":
            names = {column: column.replace("k", "latent", 1) if column[0] == "k" else column.replace("v", "k_rope", 1)
                     for column in columns}
        first = stored(kind, window)
        layer = sequence.create_group(f"layers/{l:03}")
        layer.attrs.update({"kind": kind, "window": window, "first_token": first})
        x = np.array([[[number(l, t, first_head + h, d) for d in range(DIM)] for h in range(heads)]
                      for t in range(first, TOKENS)])
        arrays = {"k": x.astype("<f2"), "v": np.round(x * 16).astype("i1"),  # codes 16 x, so every scale is 1/16
                  "v_scale": np.full((len(x), heads, 2), 1 / 16, dtype="<f4")}
        chunks = -(-len(x) // CHUNK)
        for name, array in arrays.items():
            layer.create_dataset(names[name], data=array[:, 0] if kind == "mla" else array)
            for c in range(chunks):
                table[l, columns.index(name), c] = crc32c(array[c * CHUNK:(c + 1) * CHUNK].tobytes())
        layer[names["k"]].attrs.update({"scheme": "f16", "dtype": "f16", "source_dtype": "f16", "formula": "x = value"})
        layer[names["v"]].attrs.update({"scheme": "int8", "dtype": "i8", "source_dtype": "f32", "axis": "token",
                                        "group": 4, "symmetric": np.bool_(True), "scale_dtype": "f32",
                                        "formula": "x = q * scale", "rounding": "exact"})
        for name in ("k", "k_scale", "k_zero", "v", "v_scale", "v_zero"):
            crcs = table[l, columns.index(name), :chunks if name in arrays else 0]
            root.update(struct.pack("<I", len(crcs)) + crcs.tobytes())
    integrity = f.create_group("integrity")
    integrity.create_dataset("0000", data=table).attrs["crc32c"] = crc32c(table.tobytes())
    integrity.attrs.update({"algorithm": "crc32c", "columns": ",".join(columns), "root": root.hexdigest()})
    f.close()


def damage(path, name, change):
    target = path.replace(".h5", f"-{name}.h5")
    shutil.copyfile(path, target)
    if name in ("flipped", "truncated"):
        with open(target, "r+b") as raw:
            change(raw)
    else:
        with h5py.File(target, "r+", libver=("v110", "v110")) as f:
            change(f)


def main():
    path = sys.argv[1] + "/v1-h5py.h5"
    make(path)
    with h5py.File(path) as f:
        offset = f["sequences/0000/layers/001/v"].id.get_offset() + 3 * 2 * DIM  # token 3: chunk 1

    def flip(raw):
        raw.seek(offset)
        byte = raw.read(1)[0]
        raw.seek(offset)
        raw.write(bytes([byte ^ 0x10]))

    damage(path, "flipped", flip)
    damage(path, "truncated", lambda raw: raw.truncate(4096))
    damage(path, "partial", lambda f: f.attrs.modify("state", "partial"))
    damage(path, "major2", lambda f: f.attrs.modify("schema_major", 2))
    make(sys.argv[1] + "/v1.1-h5py-swa.h5", (("swa", 3), ("gqa", 0), ("swa", 64)))
    make(sys.argv[1] + "/v1.1-h5py-mla.h5", (("mla", 0), ("swa", 2)), kv_heads=1)
    for rank in range(2):
        make(sys.argv[1] + f"/v1.1-h5py.tp{rank}of2.h5", (("gqa", 0), ("swa", 4)), shard=(2, rank, rank, 1))
    with h5py.File(sys.argv[1] + "/foreign.h5", "w") as f:
        f["values"] = np.arange(10)


main()
