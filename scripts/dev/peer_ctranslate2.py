"""A worker of compare_peers.py: CTranslate2, int8. Reads [ids, n_new] a line, prints the seconds.

The first time, the GGUF file is turned into a Hugging Face folder beside it in the cache, and that into CTranslate2's form.
"""

import json
import os
import sys
import time
from pathlib import Path

import ctranslate2

source = Path(sys.argv[1])
cache = Path(os.environ.get("HETERO_CACHE", Path.home() / ".cache" / "hetero")) / "peers"
converted = cache / f"{source.stem}.ct2-int8"
if not converted.exists():
    import torch
    import transformers

    folder = cache / f"{source.stem}.folder"
    model = transformers.AutoModelForCausalLM.from_pretrained(
        source.parent, gguf_file=source.name, dtype=torch.float32,
        quantization_config=transformers.GgufConfig(dequantize=True))
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    for flag in ("hf_quantizer", "is_quantized", "quantization_method"):
        if hasattr(model, flag):
            setattr(model, flag, None)
    model.save_pretrained(folder)
    transformers.AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(folder)
    ctranslate2.converters.TransformersConverter(str(folder)).convert(str(converted), quantization="int8")

generator = ctranslate2.Generator(str(converted), device="cpu", intra_threads=int(sys.argv[2]), compute_type="int8")
vocabulary = json.loads((converted / "vocabulary.json").read_text())
for line in sys.stdin:
    ids, n_new = json.loads(line)
    tokens = [vocabulary[i] for i in ids]
    began = time.monotonic()
    generator.generate_batch([tokens], min_length=n_new, max_length=n_new, include_prompt_in_result=False)
    print("seconds", time.monotonic() - began, flush=True)
