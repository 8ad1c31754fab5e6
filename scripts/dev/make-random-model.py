#!/usr/bin/env python3
"""Writes a GGUF model of a given shape with random bf16 weights and the tokenizer of another GGUF model.

Its text means nothing: it is for speed, where no real model of that size is at hand. Needs numpy and gguf (PyPI).
The default shape is that of Llama 3.2 1B (16 layers of 2048, 32 query heads, 8 KV heads, FFN 8192).
"""

import argparse

import gguf
import numpy


def bf16(rng, rows, cols):
    values = rng.standard_normal((rows, cols), dtype=numpy.float32) / numpy.float32(cols**0.5)
    return (values.view(numpy.uint32) >> 16).astype(numpy.uint16)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("tokenizer", help="a GGUF file of the llama family")
    parser.add_argument("output")
    for name, default in (("layers", 16), ("hidden", 2048), ("heads", 32), ("kv-heads", 8), ("ffn", 8192),
                          ("context", 16384), ("seed", 1)):
        parser.add_argument(f"--{name}", type=int, default=default, help=f"[{default}]")
    options = parser.parse_args()

    source = gguf.GGUFReader(options.tokenizer)
    writer = gguf.GGUFWriter(options.output, "llama")
    for field in source.fields.values():
        if field.name.startswith("tokenizer."):
            writer.add_key_value(field.name, field.contents(), field.types[0],
                                 field.types[-1] if field.types[0] == gguf.GGUFValueType.ARRAY else None)
    vocab = len(source.fields["tokenizer.ggml.tokens"].data)
    head_dim = options.hidden // options.heads
    writer.add_name(f"random {options.layers} x {options.hidden}")
    writer.add_context_length(options.context)
    writer.add_embedding_length(options.hidden)
    writer.add_block_count(options.layers)
    writer.add_feed_forward_length(options.ffn)
    writer.add_head_count(options.heads)
    writer.add_head_count_kv(options.kv_heads)
    writer.add_rope_dimension_count(head_dim)
    writer.add_rope_freq_base(500000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(vocab)

    rng = numpy.random.default_rng(options.seed)
    kv = options.kv_heads * head_dim

    def matrix(name, rows, cols):
        writer.add_tensor(name, bf16(rng, rows, cols), raw_dtype=gguf.GGMLQuantizationType.BF16)

    def norm(name):
        writer.add_tensor(name, numpy.ones(options.hidden, dtype=numpy.float32))

    matrix("token_embd.weight", vocab, options.hidden)
    norm("output_norm.weight")
    for layer in range(options.layers):
        prefix = f"blk.{layer}."
        norm(prefix + "attn_norm.weight")
        norm(prefix + "ffn_norm.weight")
        matrix(prefix + "attn_q.weight", options.hidden, options.hidden)
        matrix(prefix + "attn_k.weight", kv, options.hidden)
        matrix(prefix + "attn_v.weight", kv, options.hidden)
        matrix(prefix + "attn_output.weight", options.hidden, options.hidden)
        matrix(prefix + "ffn_gate.weight", options.ffn, options.hidden)
        matrix(prefix + "ffn_up.weight", options.ffn, options.hidden)
        matrix(prefix + "ffn_down.weight", options.hidden, options.ffn)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


main()
